"""Files that are whole or not there, for the command lines of the package."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, to write to: renamed to it at the end, removed where writing fails."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield Path(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def rewrite(names: Sequence[str], fill: Callable[[str], str], what: str) -> None:
    """Writes each file anew where `fill` changes its text, and says so: NAME: `what` written."""
    for name in names:
        path = Path(name)
        before = path.read_text()
        after = fill(before)
        if after != before:
            path.write_text(after)
            print(f"{name}: {what} written")
