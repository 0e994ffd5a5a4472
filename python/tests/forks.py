"""Many short programs in Python that need PyTorch or transformers, without loading them for each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# Loads what takes seconds, then runs each line of code that it is sent in a fork of its own, for 300 s at most. A program still has to import what it uses.
_PROGRAM = """
import importlib.util, json, os, signal, sys, tempfile
for package in ("torch", "transformers"):
    if importlib.util.find_spec(package): __import__(package)
if "transformers" in sys.modules: from transformers import AutoModelForCausalLM, LlamaForCausalLM
for line in iter(sys.stdin.readline, ""):
    with tempfile.TemporaryFile("w+") as said:
        if (fork := os.fork()) == 0:
            signal.alarm(300)
            for stream in (1, 2): os.dup2(said.fileno(), stream)
            exec(compile(json.loads(line), "example", "exec"), {"__name__": "__main__"})
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        said.seek(0)
        print(json.dumps([code, said.read()]), flush=True)
"""


class Forks:
    """A Python that is asked by `run`; a warning of UserWarning's kind is an error in it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        words = [sys.executable, "-W", "error::UserWarning", "-c", _PROGRAM]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(words, cwd=folder, env=environment, **pipes)

    def run(self, code: str) -> tuple[int, str]:
        """The exit code, and what was printed to stdout and stderr."""
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        return tuple(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()
