"""Declares a function of PyTorch tensors, such as one that starts a Triton kernel, for `splash bench my_kernel.py`.

    @declare(
        sizes={"n": 1 << 24},
        inputs={"x": ("float32", ["n"]), "y": ("float32", ["n"])},
        outputs={"z": ("float32", ["n"])},
        flops=lambda n: 2 * n,
        reference=lambda x, y: 2 * x.double() + y,
    )
    def saxpy(x, y):
        return 2 * x + y
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# dtype and extents (numbers or names of sizes); of inputs and updates the range of the values may follow: (low, high), or "normal"
Declared = Mapping[str, Sequence[Any]]
Count = float | Callable[..., float]


@dataclass
class Array:
    """An array of a call. `role`: input, output, update (read and written), or fixed: an input that `load` gives."""

    name: str
    dtype: str
    shape: list[int]
    role: str
    low: float = -1
    high: float = 1
    normal: bool = False
    load: Callable[[], Any] | None = None


@dataclass
class Kernel:
    """What a process of `splash bench` runs. Arguments go by name, in the order of `arguments`; `scalars` are among them."""

    name: str
    sizes: dict[str, int]
    arrays: list[Array]
    call: Callable[..., Any]
    reference: Callable[..., Any]
    flops: float = 0
    bytes: float = -1
    unit: str = "float32"
    relative: float = -1
    absolute: float = -1
    scalars: dict[str, Any] = field(default_factory=dict)
    writes_outputs: bool | None = None  # whether the call takes its outputs as arguments; None: its signature tells

    def __post_init__(self) -> None:
        if self.writes_outputs is None:
            names = inspect.signature(self.call).parameters
            self.writes_outputs = all(array.name in names for array in self.arrays if array.role == "output")


declared: list[Callable[[Mapping[str, int]], Kernel]] = []


def _arrays(given: Declared, role: str, sizes: Mapping[str, int]) -> list[Array]:
    arrays = []
    for name, (dtype, extents, *values) in given.items():
        shape = [sizes[extent] if isinstance(extent, str) else int(extent) for extent in extents]
        low, high = values[0] if values and values[0] != "normal" else (-1, 1)
        arrays.append(Array(name, dtype, shape, role, low, high, normal=values == ["normal"]))
    return arrays


def declare(
    *,
    inputs: Declared,
    outputs: Declared,
    reference: Callable[..., Any],
    sizes: Mapping[str, int] | None = None,
    updates: Declared | None = None,
    flops: Count = 0,
    bytes: Count = -1,
    unit: str = "float32",
    tolerance: tuple[float, float] = (-1, -1),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares the function below it; a file has one.

    inputs, outputs, updates: name -> (dtype, extents). Inputs and updates may add the range of their values, (low, high), or
      "normal". The function gets inputs and updates by name and returns its outputs, one tensor or a tuple in order; if its
      parameters name the outputs too, it writes them instead. Updates are written in place.
    reference: of inputs and updates, as PyTorch tensors; returns what outputs and updates should hold, in that order. It is called
      in another process.
    sizes: name -> usual value; `splash bench --set n=1024` changes it.
    flops, bytes: of a call, a number or a function of the sizes. Without bytes, each array once, and updates twice.
    unit: what multiplies: "float32", or tensor cores in "tf32", "float16", "bfloat16".
    tolerance: relative and absolute; below 0 they follow from the outputs' types and the reference's size.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def make(asked: Mapping[str, int]) -> Kernel:
            usual = dict(sizes or {})
            for name in asked:
                if name not in usual:
                    raise ValueError(f"there is no size '{name}'")
            chosen = {**usual, **asked}

            def count(of: Count) -> float:
                return float(of(**chosen) if callable(of) else of)

            arrays = [*_arrays(inputs, "input", chosen), *_arrays(updates or {}, "update", chosen)]
            return Kernel(
                name=function.__name__,
                sizes=chosen,
                arrays=[*arrays, *_arrays(outputs, "output", chosen)],
                call=function,
                reference=reference,
                flops=count(flops),
                bytes=count(bytes),
                unit=unit,
                relative=tolerance[0],
                absolute=tolerance[1],
            )

        declared.append(make)
        return function

    return register
