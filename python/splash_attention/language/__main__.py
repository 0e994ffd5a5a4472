"""python -m splash_attention.language: see --help."""

from __future__ import annotations

import sys

from splash_attention.language.command_line import main

if __name__ == "__main__":
    sys.exit(main())
