"""python -m splash_attention.language: see --help."""

from __future__ import annotations

import sys

from splash_attention.extras import needed_by

try:
    with needed_by("python -m splash_attention.language", "language"):
        from splash_attention.language.command_line import main
except ImportError as error:
    sys.exit(f"error: {error}")

if __name__ == "__main__":
    sys.exit(main())
