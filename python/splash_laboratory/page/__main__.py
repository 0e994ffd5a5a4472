import sys

from splash_laboratory.page.cli import main

sys.exit(main())
