"""Where fetched models and tokenised texts are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$SPLASH_CACHE, or splash-attention in $XDG_CACHE_HOME, or in ~/.cache. It need not be there yet."""
    own = os.environ.get("SPLASH_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "splash-attention"
