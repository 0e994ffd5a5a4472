"""Exact entmax attention over one GPU and over several, and PyTorch's dense softmax: a group of ranks for many jobs.

Reads one JSON object a line, the parameters of the kind gpu-distributed; answers each with what rank 0 of experiments/distributed/measure.py
answers: seconds, numbers and texts, or {"unavailable": why}. torchrun starts the ranks, which stay for the jobs of as many ranks, and for
those of one GPU. Ranks that end before they answer are a job's result; the next job starts others.
"""

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALONE = ("entmax", "softmax")  # on one GPU


def ranks_of(job):
    return 1 if job["implementation"] in ALONE else job["ranks"]


def torchrun(ranks):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


class Group:
    """Ranks on one device, whose rank 0 reads jobs and writes answers. unavailable: why they could not start, or None."""

    def __init__(self, ranks, device):
        self.ranks, self.device, self.errors = ranks, device, tempfile.TemporaryFile()
        words = [*torchrun(ranks), str(ROOT / "experiments/distributed/measure.py"), "--serve", "--device", device]
        environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **os.environ}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        self.process = subprocess.Popen(words, text=True, env=environment, **pipes)
        self.unavailable = self.read().get("unavailable")

    def serves(self, job):
        """Whether such ranks are there, or could not start. Any ranks that are there serve one GPU's jobs."""
        if self.device != job["device"]:
            return False
        if self.unavailable:
            return self.ranks == ranks_of(job)
        return self.process.poll() is None and (self.ranks == job["ranks"] or job["implementation"] in ALONE)

    def answer(self, job):
        if self.unavailable:
            return {"unavailable": self.unavailable}
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        return self.read()

    def read(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"unavailable": f"the {self.ranks} ranks ended: {self.last_error()}"}

    def last_error(self):
        """What a rank that failed said last, or all; torchrun's own report comes behind it."""
        self.process.wait()
        self.errors.seek(0)
        said = [line.strip() for line in self.errors.read().decode(errors="replace").splitlines()]
        errors = [line for line in said if re.match(r"(\[rank\d+\]: ?)?(?!.*ChildFailedError)[\w.]*(Error|Exception)\b", line)]
        signals = [line.removeprefix("traceback : ") for line in said if line.startswith("traceback : Signal")]
        return (errors or signals or [line for line in said if line] or ["they said nothing"])[-1]

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


class Peer:
    def __init__(self):
        self.group = None

    def answer(self, job):
        if importlib.util.find_spec("torch") is None:
            return {"unavailable": f"{sys.executable} has no torch; SPLASH_PEER_PYTHON must name a Python that has torch and splash_attention"}
        if self.group is None or not self.group.serves(job):
            self.end()
            self.group = Group(ranks_of(job), job["device"])
        return self.group.answer(job)

    def end(self):
        if self.group is not None:
            self.group.end()
        self.group = None


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # packages may print; only answers go to stdout
    peer = Peer()
    for line in sys.stdin:
        print(json.dumps(peer.answer(json.loads(line))), file=answers, flush=True)
    peer.end()
