"""The random numbers of tests. $SPLASH_TEST_SEED is a number (1 if it is not set), or "random" for new inputs, as in the C++ tests."""

from __future__ import annotations

import os
import secrets
import zlib

VARIABLE = "SPLASH_TEST_SEED"


def settle() -> None:
    """Draws the number of "random", which all processes of a run then share."""
    if os.environ.get(VARIABLE) == "random":
        os.environ[VARIABLE] = str(secrets.randbelow(1 << 31))


def number() -> int:
    return int(os.environ.get(VARIABLE, "1"))


def seed_of(test: str) -> int:
    """A test's own, so that it draws the same numbers after any other tests, or alone."""
    return zlib.crc32(f"{number()} {test}".encode())
