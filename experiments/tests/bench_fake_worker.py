#!/usr/bin/env python3
"""Stands for the Python of a kernel's process in tests of `splash bench`: y = 2 x without PyTorch, on what says that it is a GPU.

The file that it is given names, line by line, words whose answer is to be another: `time {"seconds": []}`.
"""

import array
import json
import mmap
import os
import sys
import time

N = 1000
ARRAYS = [
    {"name": name, "dtype": "float32", "role": role, "shape": [N], "low": -1, "high": 1}
    for name, role in (("x", "input"), ("y", "output"))
]
DECLARED = {"sizes": {"n": N}, "arrays": ARRAYS, "flops": 2 * N, "bytes": -1, "unit": "float32", "relative": -1, "absolute": -1}
GPU = {"device": "NVIDIA H200", "compute_capability": 90, "multiprocessors": 132, "cache_bytes": 1 << 20}
USE = {"kernel": "doubled", "blocks": 16, "threads": 256, "registers": 20, "shared_bytes": 0}


def floats(place: int) -> array.array:
    return array.array("f", bytes(memory[place : place + 4 * N]))


def main() -> None:
    global memory
    odd = dict(line.strip().split(" ", 1) for line in open(sys.argv[-1]) if " " in line)
    with open(3, "rb", closefd=False) as lines:
        for line in lines:
            word, *rest = line.decode().split()
            answer = {"declare": DECLARED | GPU, "time": {"seconds": [1e-3] * int(rest[-1])} if word == "time" else {}}.get(word, {})
            if word == "map":
                memory, stride = mmap.mmap(4, int(rest[0])), int(rest[1])
                x, y = (int(offset) for offset in rest[2:])
            elif word == "calls":
                time.sleep(1e-3 * int(rest[-1]))
            elif word == "collect":
                for number in range(int(rest[-1])):
                    results = array.array("f", [2 * value for value in floats(number * stride + x)])
                    memory[number * stride + y : number * stride + y + 4 * N] = results.tobytes()
            elif word == "launches":
                answer = {"clock_hz": 1.7e9, "launches": [USE]}
            elif word == "reference":
                count, place = int(rest[2]), int(rest[3])
                indices = array.array("q", bytes(memory[place : place + 8 * count]))
                values, inputs = array.array("d"), floats(x)
                values.extend(2 * inputs[i] for i in indices)
                memory[place + 8 * count : place + 16 * count] = values.tobytes()
            if odd.get(word) == "SHRINK":
                os.ftruncate(4, 0)
            text = odd[word] if word in odd else json.dumps(answer)
            os.write(3, (text + "\n").encode())


main()
