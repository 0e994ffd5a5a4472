"""What the command line prints on a terminal, and what it leaves out elsewhere."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess

from conftest import Splash


def on_terminal(splash: Splash, *words: str, **environment: str) -> str:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [splash.program, *words],
        cwd=splash.folder,
        env=splash.environment(TERM="xterm", **environment),
        stdin=subprocess.DEVNULL,
        stdout=child,
        stderr=child,
    )
    os.close(child)
    output = b""
    while select.select([parent], [], [], 60)[0]:
        try:
            piece = os.read(parent, 4096)
        except OSError:
            break
        if not piece:
            break
        output += piece
    process.wait()
    os.close(parent)
    return output.decode()


def test_colours_and_progress_only_on_a_terminal(splash: Splash):
    splash.tiny()
    done = splash("run", "tiny.toml")
    assert "\x1b" not in done.stdout + done.stderr and "\r" not in done.stderr
    assert done.stderr == ""
    assert len(splash("run", "tiny.toml", "--verbose").stderr.splitlines()) == 18
    assert "18/18" in on_terminal(splash, "run", "tiny.toml")
    coloured = re.compile(r"\x1b\[\d+m")
    assert coloured.search(on_terminal(splash, "doctor"))
    assert not coloured.search(on_terminal(splash, "doctor", NO_COLOR="1"))
    assert not coloured.search(on_terminal(splash, "run", "tiny.toml", NO_COLOR="1"))


def test_tables_fit_the_terminal(splash: Splash):
    for width in (60, 100, 200):
        lines = splash("list", "claims", env={"COLUMNS": str(width)}).stdout.splitlines()
        assert max(map(len, lines)) <= width
