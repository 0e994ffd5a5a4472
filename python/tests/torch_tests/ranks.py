"""Runs a function on several ranks: processes of one group of torch.distributed, gloo on the CPU or NCCL on as many GPUs."""

from __future__ import annotations

import datetime
import os
import queue
import tempfile
import time
import traceback
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as multiprocessing  # noqa: E402

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)


def run(count, function, *given, backend="gloo", seconds=120, timeout=30):
    """What function(*given) returns on each rank, in their order. A rank that raises, or ends without a result, fails the test.

    gloo's ranks are forks, which need not import PyTorch again. seconds: for all; timeout: of the group."""
    context = multiprocessing.get_context("fork" if backend == "gloo" else "spawn")
    with tempfile.TemporaryDirectory() as folder:
        done, meeting = context.Queue(), f"file://{Path(folder) / 'store'}"
        ranks = [
            context.Process(target=_rank, args=(rank, count, backend, meeting, timeout, done, function, given), daemon=True)
            for rank in range(count)
        ]
        for process in ranks:
            process.start()
        found, until = {}, time.monotonic() + seconds
        while len(found) < count and time.monotonic() < until:
            ended = all(process.exitcode is not None for process in ranks)
            try:
                rank, result, error = done.get(timeout=0.5)
                found[rank] = result, error
            except queue.Empty:
                if ended:
                    break
        for process in ranks:
            process.join(5)
            if process.is_alive():
                process.kill()
    errors = [f"rank {rank}:\n{error}" for rank, (_, error) in sorted(found.items()) if error]
    missing = sorted(set(range(count)) - set(found))
    assert not errors and not missing, "\n".join([*errors, f"no result of ranks {missing}"])
    return [found[rank][0] for rank in range(count)]


def _rank(rank, count, backend, meeting, timeout, done, function, given):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        if backend == "nccl":
            torch.cuda.set_device(rank)
        limit = datetime.timedelta(seconds=timeout)
        dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=count, timeout=limit)
        done.put((rank, function(*given), ""))
    except BaseException:
        done.put((rank, None, traceback.format_exc()))
    finally:
        if backend == "nccl" and dist.is_initialized():
            dist.destroy_process_group()


def error_of(call, *given, **named):
    """The type and the sentence of what a call raises."""
    try:
        call(*given, **named)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", "nothing was raised"
