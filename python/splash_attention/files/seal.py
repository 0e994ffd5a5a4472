"""The checksum line behind a report, as report/seal.h has it: it tells damage, not who wrote the file."""

from __future__ import annotations

import os
import re
from enum import Enum
from pathlib import Path

import numpy as np

MARKER = b"\nsplash-report fnv1a64 "
LENGTH = len(MARKER) + 16 + 1  # marker, hash, line end
BASIS, PRIME = 0xCBF29CE484222325, 0x100000001B3
CHUNK = 1 << 16


class Seal(Enum):
    ABSENT, INTACT, BROKEN = range(3)


def check_seal(content: bytes) -> Seal:
    """Whether the last line of a whole file fits what stands before it."""
    line = content[-LENGTH:]
    if len(content) < LENGTH or not line.startswith(MARKER):
        return Seal.ABSENT
    return Seal.INTACT if line == line_after(content[:-LENGTH]) else Seal.BROKEN


def line_after(content: bytes) -> bytes:
    return MARKER + b"%016x\n" % fnv1a(content)


def seal(path: str | os.PathLike[str]) -> None:
    """Adds the line to a file that has none."""
    content = Path(path).read_bytes()
    if check_seal(content) is Seal.ABSENT:
        with open(path, "ab") as file:
            file.write(line_after(content))


def unsealed(content: bytes) -> bytes:
    """The content without the line."""
    return re.sub(re.escape(MARKER) + rb"[0-9a-f]{16}\n\Z", b"", content)


def fnv1a(content: bytes) -> int:
    """FNV-1a of 64 bits: hash = (hash ^ byte) * PRIME for each byte.

    The exclusive or changes the low byte of the hash alone: it adds a difference d to it, so that n bytes make
    hash * PRIME^n + sum of d_i * PRIME^(n - i), whose terms NumPy adds at once.
    """
    powers = np.cumprod(np.full(CHUNK, PRIME, np.uint64))  # PRIME, PRIME^2, …, mod 2^64
    value = BASIS
    for start in range(0, len(content), CHUNK):
        given = np.frombuffer(content, np.uint8, min(CHUNK, len(content) - start), start)
        mixed, before = _low_bytes(value & 0xFF, given)
        differences = (mixed.astype(np.int64) - before).astype(np.uint64)
        terms = differences * powers[given.size - 1 :: -1] if given.size < CHUNK else differences * powers[::-1]
        total = int(terms.sum(dtype=np.uint64)) + value * int(powers[given.size - 1])
        value = total & (2**64 - 1)
    return value


def _low_bytes(first: int, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(low byte of the hash ^ byte, low byte of the hash) before each multiplication.

    Bit k of a product by an odd number is bit k of the factor, flipped by what the bits below make: from the lowest
    bit to the highest, each bit's history is a running exclusive or of what is known by then.
    """
    mixed, before = np.zeros_like(given), np.zeros_like(given)
    for bit in range(8):
        below = (mixed * np.uint8(PRIME & 0xFF)) & np.uint8(1 << bit)  # of mixed, only lower bits are set so far
        flips = (given & np.uint8(1 << bit)) ^ below
        history = np.bitwise_xor.accumulate(np.concatenate(([np.uint8(first & (1 << bit))], flips)))
        before |= history[:-1]
        mixed |= history[:-1] ^ (given & np.uint8(1 << bit))
    return mixed, before
