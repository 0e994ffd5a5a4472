"""python -m splash_laboratory.kernels.worker FILE.py: a process of `splash bench`, which starts it and judges what it says.

It obeys words on file descriptor 3, a line each, and answers each with a line of JSON; arrays are in the shared memory of
file descriptor 4. experiments/foreign/splash_bench.h does the same for C++ and CUDA.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import splash_laboratory.kernels as kernels
from splash_laboratory.kernels import Array, Kernel

WORDS, SHARED = 3, 4


def dtype_of(name: str) -> torch.dtype:
    return getattr(torch, name)


def as_list(results: Any, names: list[str]) -> list[Any]:
    if isinstance(results, Mapping):
        return [results[name] for name in names]
    return list(results) if isinstance(results, tuple | list) else [results]


class Device:
    """The GPU if PyTorch finds one, else the processor."""

    def __init__(self) -> None:
        self.cuda = torch.cuda.is_available()
        self.name = "cuda" if self.cuda else "cpu"
        if self.cuda:
            properties = torch.cuda.get_device_properties(0)
            self.cache_bytes = properties.L2_cache_size
            self.description = {
                "device": properties.name,
                "compute_capability": 10 * properties.major + properties.minor,
                "multiprocessors": properties.multi_processor_count,
            }
            self.start, self.stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        else:
            names = [n for n in ("SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE") if n in os.sysconf_names]
            self.cache_bytes = max([1 << 20, *(os.sysconf(name) for name in names)])
            self.description = {"device": "cpu", "compute_capability": 0, "multiprocessors": 0}
        self.flushed: torch.Tensor | None = None

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def ready(self, cache: str, tensors: list[torch.Tensor]) -> None:
        if cache == "cold":
            if self.flushed is None:
                self.flushed = torch.zeros(2 * self.cache_bytes, dtype=torch.uint8, device=self.name)
            self.flushed.max()  # read, so that nothing has to be written back during the call
        for tensor in tensors if cache == "warm" else []:
            tensor.view(-1).view(torch.uint8).max()

    def time(self, call: Callable[[], None]) -> float:
        if not self.cuda:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        torch.cuda._sleep(100000)  # while the call is put into the queue
        self.start.record()
        call()
        self.stop.record()
        torch.cuda.synchronize()
        return 1e-3 * self.start.elapsed_time(self.stop)


class Worker:
    def __init__(self, make: Callable[[Mapping[str, int]], Kernel]) -> None:
        self.make, self.device = make, Device()
        self.sets: list[list[torch.Tensor]] = []
        self.returned: dict[int, list[Any]] = {}

    # --- words ---

    def declare(self, *words: str) -> dict[str, Any]:
        self.kernel = self.make({name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)})
        kernel = self.kernel
        arrays = [
            {key: getattr(a, key) for key in ("name", "dtype", "shape", "role", "low", "high", "normal")} for a in kernel.arrays
        ]
        told = {key: getattr(kernel, key) for key in ("name", "sizes", "flops", "bytes", "unit", "relative", "absolute")}
        libraries = {"torch": str(torch.__version__), "python": sys.version.split()[0]}
        if torch.version.cuda:
            libraries["cuda"] = torch.version.cuda
        cache = {"cache_bytes": self.device.cache_bytes}
        return told | {"arrays": arrays, "libraries": libraries} | self.device.description | cache

    def map(self, size: str, stride: str, *offsets: str) -> None:
        self.memory = mmap.mmap(SHARED, int(size))
        self.stride, self.offsets = int(stride), [int(offset) for offset in offsets]

    def prepare(self, _cache: str, count: str) -> None:
        self.returned.clear()
        for number in range(int(count)):
            if number == len(self.sets):
                self.sets.append([self.empty(array) for array in self.kernel.arrays])
            self.fill(self.sets[number], number)

    def collect(self, _cache: str, count: str) -> None:
        for number in reversed(range(int(count))):  # the last call first: what still runs is then not ready
            returned = iter(self.returned.get(number, []))
            for i, array in enumerate(self.kernel.arrays):
                if array.role == "update" or (array.role == "output" and self.kernel.writes_outputs):
                    self.host(number, i).copy_(self.sets[number][i].view(-1))
                elif array.role == "output":
                    self.host(number, i).copy_(self.checked(next(returned, None), array).reshape(-1))

    def time(self, cache: str, count: str) -> dict[str, Any]:
        seconds = []
        for number in range(int(count)):
            self.device.ready(cache, self.sets[number])
            seconds.append(self.device.time(lambda number=number: self.call(number)))
        return {"seconds": seconds}

    def calls(self, cache: str, count: str) -> None:
        self.each(cache, int(count), self.call)

    def nothing(self, cache: str, count: str) -> None:
        self.each(cache, int(count), lambda number: None)

    def launches(self) -> dict[str, Any]:
        if not self.device.cuda:
            return {"launches": []}
        cycles = 4_000_000
        seconds = min(self.device.time(lambda: torch.cuda._sleep(cycles)) for _ in range(2))
        try:
            launches = self.traced()
        except Exception as error:  # noqa: BLE001: a profiler that does not work costs the launches, not the times
            print(f"the launches are not known: {error}", file=sys.stderr)
            launches = []
        return {"launches": launches, "clock_hz": cycles / seconds}

    def reference(self, number: str, output: str, count: str, offset: str) -> None:
        tensors = [self.empty(array) for array in self.kernel.arrays]
        self.fill(tensors, int(number))
        written = [i for i, array in enumerate(self.kernel.arrays) if array.role == "output"]
        updated = [i for i, array in enumerate(self.kernel.arrays) if array.role == "update"]
        names = [self.kernel.arrays[i].name for i in written + updated]
        with torch.no_grad():
            results = as_list(self.kernel.reference(**self.arguments(tensors, False)), names)
        expected = torch.as_tensor(results[(written + updated).index(int(output))]).reshape(-1)
        indices = torch.frombuffer(self.memory, dtype=torch.int64, count=int(count), offset=int(offset))
        values = torch.frombuffer(self.memory, dtype=torch.float64, count=int(count), offset=int(offset) + 8 * int(count))
        values.copy_(expected[indices.to(expected.device)])

    # --- what they are made of ---

    def empty(self, array: Array) -> torch.Tensor:
        return torch.empty(array.shape, dtype=dtype_of(array.dtype), device=self.device.name)

    def host(self, number: int, i: int) -> torch.Tensor:
        array = self.kernel.arrays[i]
        offset = number * self.stride + self.offsets[i]
        return torch.frombuffer(self.memory, dtype=dtype_of(array.dtype), count=math.prod(array.shape), offset=offset)

    def fill(self, tensors: list[torch.Tensor], number: int) -> None:
        for i, array in enumerate(self.kernel.arrays):
            tensors[i].view(-1).copy_(self.host(number, i) if array.load is None else array.load().reshape(-1))

    def arguments(self, tensors: list[torch.Tensor], with_outputs: bool) -> dict[str, Any]:
        given = zip(self.kernel.arrays, tensors, strict=True)
        return {a.name: t for a, t in given if with_outputs or a.role != "output"} | self.kernel.scalars

    def call(self, number: int) -> None:
        results = self.kernel.call(**self.arguments(self.sets[number], bool(self.kernel.writes_outputs)))
        if not self.kernel.writes_outputs:
            names = [array.name for array in self.kernel.arrays if array.role == "output"]
            self.returned[number] = as_list(results, names)

    def checked(self, result: Any, array: Array) -> torch.Tensor:
        """The result if it is what was declared: a tensor in memory, and nothing that would compute when it is read."""
        if isinstance(result, bool | int | float) and not array.shape:
            result = torch.tensor(result, dtype=dtype_of(array.dtype))
        if type(result) is not torch.Tensor:
            raise TypeError(f"'{array.name}' is of type {type(result).__name__}, not torch.Tensor")
        if list(result.shape) != array.shape:
            raise TypeError(f"'{array.name}' has the shape {list(result.shape)}, not {array.shape}")
        if result.dtype != dtype_of(array.dtype):
            raise TypeError(f"'{array.name}' has the dtype {str(result.dtype).removeprefix('torch.')}, not {array.dtype}")
        return result

    def each(self, cache: str, count: int, act: Callable[[int], None]) -> None:
        for number in range(count):
            self.device.ready(cache, self.sets[number])
            self.device.synchronize()
            act(number)
            self.device.synchronize()

    def traced(self) -> list[dict[str, Any]]:
        """The kernels of a call, as CUPTI sees them."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            self.call(0)
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        found = []
        for event in events:
            if event.get("cat") != "kernel":
                continue
            told = event["args"]
            found.append(
                {
                    "kernel": event["name"],
                    "blocks": math.prod(told["grid"]),
                    "threads": math.prod(told["block"]),
                    "registers": told.get("registers per thread", 0),
                    "shared_bytes": told.get("shared memory", 0),
                }
            )
        return found

    def obey(self) -> None:
        allowed = ("declare", "map", "prepare", "collect", "time", "calls", "nothing", "launches", "reference")
        with open(WORDS, "r+b", buffering=0, closefd=False) as words, open(WORDS, "rb", closefd=False) as lines:
            for line in lines:
                name, *rest = line.decode().split()
                try:
                    if name not in allowed:
                        raise ValueError(f"not a word of splash bench: {name}")
                    answer = getattr(self, name)(*rest) or {}
                except Exception as error:  # noqa: BLE001: whatever others' code throws, the other process is told of it
                    answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
                words.write((json.dumps(answer) + "\n").encode())


def make_of_file(path: Path) -> Callable[[Mapping[str, int]], Kernel]:
    spec = importlib.util.spec_from_file_location("splash_bench_kernel", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    if len(kernels.declared) != 1:
        count = len(kernels.declared)
        raise ValueError(f"{path.name} declares {count} kernels where one is needed (splash_laboratory.kernels.declare)")
    return kernels.declared[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--solution", type=Path, help="of flashinfer-bench, for the definition in the file")
    parser.add_argument("--workload", type=Path, help="a file with one line, the workload")
    words = parser.parse_args()

    def make(sizes: Mapping[str, int]) -> Kernel:
        if words.workload is None:
            return make_of_file(words.file)(sizes)
        from splash_laboratory.kernels.flashinfer import kernel_of

        return kernel_of(words.file, words.solution, words.workload)

    Worker(make).obey()


if __name__ == "__main__":
    main()
