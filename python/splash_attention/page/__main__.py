import sys

from splash_attention.page.cli import main

sys.exit(main())
