"""Files that are whole or not there, for command lines."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, to write to: renamed to it at the end, removed where writing fails.

    A link is followed. Raises OSError where `path` is something other than a file: a device would be gone.
    """
    path = _destination(path)
    temporary = _new_file(path)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def prepare_place(path: Path) -> None:
    """Before the work whose result is to be written: makes the folders; raises OSError where whole_file() would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.unlink(_new_file(_destination(path)))


def _destination(path: Path) -> Path:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "it is not a regular file")
    return path.resolve() if path.is_symlink() else path


def _new_file(path: Path) -> Path:
    """Of nobody's else, with the permissions that the umask leaves (tempfile's are the owner's alone)."""
    while True:
        temporary = path.with_name(f".{path.name}.tmp.{secrets.token_hex(6)}")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            return temporary
