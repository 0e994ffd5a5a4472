"""Reading in a process of its own first, as report/hdf5/apart.h does in C++: HDF5 crashes or hangs on some files."""

from __future__ import annotations

import os
import resource
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

SURVIVED, REFUSED, OUT_OF_MEMORY = 0, 10, 12
BYTES, BYTES_PER_BYTE = 1 << 30, 64
SECONDS, BYTES_PER_SECOND = 10, 1 << 20
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGXCPU)


class NotReadError(Exception):
    """The child refused, crashed, or took too much. The message is one sentence."""


def try_apart(path: Path, read: Callable[[], object], refusals: type[Exception], reader: str = "HDF5") -> None:
    """Calls `read` in a child process of limited memory and time; what it makes is lost.

    Raises NotReadError where the child raised one of `refusals`, with its words, or came to no good end. reader: who reads.
    """
    size = path.stat().st_size
    answer, told = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads; the child needs none of them
        child = os.fork()
    if child == 0:
        try:
            os._exit(_run(read, refusals, size, told))
        finally:
            os._exit(1)
    os.close(told)
    with open(answer, "rb") as pipe:
        words = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    if sentence := _sentence(path, status, words, reader):
        raise NotReadError(sentence)


def _run(read: Callable[[], object], refusals: type[Exception], size: int, told: int) -> int:
    for fault in FAULTS:
        signal.signal(fault, signal.SIG_DFL)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, SECONDS + size // BYTES_PER_SECOND)
    _limit(resource.RLIMIT_AS, _address_space() + BYTES + BYTES_PER_BYTE * size)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the C library's words on a heap that HDF5 has spoilt
    try:
        read()
    except refusals as refused:
        os.write(told, str(refused).encode("utf-8", "replace")[: 1 << 15])
        return REFUSED
    except MemoryError:
        return OUT_OF_MEMORY
    return SURVIVED


def _limit(what: int, to: int) -> None:
    _, most = resource.getrlimit(what)
    to = to if most == resource.RLIM_INFINITY else min(to, most)
    resource.setrlimit(what, (to, most))


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _sentence(path: Path, status: int, words: str, reader: str) -> str:
    if os.WIFSIGNALED(status):
        stopped = os.WTERMSIG(status)
        if stopped == signal.SIGXCPU:
            return f"{path}: is damaged, {reader} comes to no end with it"
        return f"{path}: is damaged, {reader} crashes on it ({signal.strsignal(stopped)})"
    code = os.WEXITSTATUS(status)
    if code == OUT_OF_MEMORY:
        return f"{path}: claims more memory than a file of its size may"
    return words if code == REFUSED else f"{path}: is damaged, reading it failed" if code else ""
