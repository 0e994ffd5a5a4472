"""Documents of which a part is written anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from splash_attention.files.whole_file import whole_file


def rewrite(names: Sequence[str], fill: Callable[[str], str], what: str) -> None:
    """Writes each file anew where `fill` changes its text, and says so: NAME: `what` written."""
    for name in names:
        path = Path(name)
        before = path.read_text()
        after = fill(before)
        if after != before:
            with whole_file(path) as temporary:
                temporary.write_text(after)
            print(f"{name}: {what} written")
