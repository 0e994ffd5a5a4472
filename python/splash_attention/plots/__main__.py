import sys

from splash_attention.plots.cli import main

sys.exit(main())
