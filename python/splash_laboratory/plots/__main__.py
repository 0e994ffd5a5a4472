import sys

from splash_laboratory.plots.cli import main

sys.exit(main())
