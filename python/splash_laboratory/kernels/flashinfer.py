"""Reads flashinfer-bench's Definition, Solution and Workload (JSON; https://bench.flashinfer.ai/docs, Apache-2.0) as a kernel
of `splash bench`. The format, not its package. Their Python code is run; all else in them is checked first.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from splash_laboratory.kernels import Array, Kernel

MOST_BYTES, MOST_ENTRIES, MOST_DEPTH, MOST_SOURCES = 16 << 20, 64, 16, 256
DTYPES = {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"}


class Refused(ValueError):
    """A file that is not what the format says, or that cannot be benched here; one sentence."""


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The object in the file. Raises Refused if it is larger or deeper than anyone needs, or no object."""
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        raise Refused(f"the {what} is no file of up to {MOST_BYTES >> 20} MiB")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused(f"the {what} is no JSON: {error}") from None

    def depth(value: Any, level: int) -> None:
        if level > MOST_DEPTH:
            raise Refused(f"the {what} is nested deeper than {MOST_DEPTH} levels")
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
            depth(inner, level + 1)

    depth(found, 0)
    if not isinstance(found, dict):
        raise Refused(f"the {what} is no JSON object")
    return found


def part(of: dict[str, Any], name: str, kind: type, what: str) -> Any:
    if not isinstance(of.get(name), kind):
        raise Refused(f"the {what} has no '{name}' that is a {kind.__name__}")
    if kind is dict and (len(of[name]) > MOST_ENTRIES or not all(key.isidentifier() for key in of[name])):
        raise Refused(f"'{name}' of the {what} has more than {MOST_ENTRIES} entries, or one whose name is no identifier")
    return of[name]


def module_of(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def solution_of(path: Path, definition: str, folder: Path) -> tuple[str, Callable[..., Any], bool | None]:
    """Name, entry point, and whether it is told to write its outputs. Writes its sources into the folder."""
    solution = read_json(path, "solution")
    if part(solution, "definition", str, "solution") != definition:
        raise Refused(f"the solution is of the definition '{solution['definition']}', not '{definition}'")
    spec = part(solution, "spec", dict, "solution")
    file, _, function = part(spec, "entry_point", str, "solution's spec").partition("::")
    if not file.endswith(".py") or not function.isidentifier():
        raise Refused(f"the entry point '{spec['entry_point']}' is no function of a Python file; others are not built here")
    sources = part(solution, "sources", list, "solution")
    if len(sources) > MOST_SOURCES:
        raise Refused(f"the solution has more than {MOST_SOURCES} sources")
    for source in sources:
        place = PurePosixPath(part(source, "path", str, "source")) if isinstance(source, dict) else PurePosixPath("/")
        if place.is_absolute() or ".." in place.parts or "\\" in str(place) or "\0" in str(place):
            raise Refused(f"the source '{place}' lies outside of the solution's folder")
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(part(source, "content", str, "source"), encoding="utf-8")
    if not (folder / file).is_file():
        raise Refused(f"the entry point's file '{file}' is not among the sources")
    sys.path.insert(0, str(folder))
    entry = getattr(module_of(folder / file, "splash_bench_solution"), function, None)
    if not callable(entry):
        raise Refused(f"'{file}' has no function '{function}'")
    told = spec.get("destination_passing_style")
    return part(solution, "name", str, "solution"), entry, told if isinstance(told, bool) else None


def loader(path: Path, key: str, shape: list[int]) -> Callable[[], torch.Tensor]:
    def load() -> torch.Tensor:
        from safetensors import safe_open

        with safe_open(str(path), framework="pt") as file:
            tensor = file.get_tensor(key)
        if list(tensor.shape) != shape:
            raise Refused(f"'{key}' of {path.name} has the shape {list(tensor.shape)}, not {shape}")
        return tensor

    return load


def by_name(function: Callable[..., Any], order: list[str]) -> Callable[..., Any]:
    """The function, called by name if its parameters have these names, else in this order."""
    named = inspect.signature(function).parameters
    if all(name in named for name in order):
        return function
    return lambda **given: function(*(given[name] for name in order))


def kernel_of(definition_path: Path, solution_path: Path | None, workload_path: Path) -> Kernel:
    """The solution's kernel on the workload; without a solution the reference takes its place."""
    definition, workload = read_json(definition_path, "definition"), read_json(workload_path, "workload")
    name = part(definition, "name", str, "definition")
    given_axes, given_inputs = part(workload, "axes", dict, "workload"), part(workload, "inputs", dict, "workload")
    sizes: dict[str, int] = {}
    for axis, told in part(definition, "axes", dict, "definition").items():
        value = told.get("value") if isinstance(told, dict) and told.get("type") == "const" else given_axes.get(axis)
        if type(value) is not int or not 0 < value < 1 << 40:
            raise Refused(f"the axis '{axis}' has no value that is a whole number above 0")
        sizes[axis] = value
    arrays, scalars = [], {}
    root = Path(workload.get("root", "."))
    groups = {role: part(definition, f"{role}s", dict, "definition") for role in ("input", "output")}
    for role, group in groups.items():
        for tensor, told in group.items():
            dtype, extents = part(told, "dtype", str, tensor), told.get("shape")
            source = given_inputs.get(tensor, {}) if role == "input" else {}
            if source.get("type") == "scalar" or (extents is None and role == "input"):
                if type(source.get("value")) not in (int, float, bool):
                    raise Refused(f"the workload gives no value for the scalar '{tensor}'")
                scalars[tensor] = source["value"]
                continue
            if dtype not in DTYPES or not all(extent in sizes for extent in extents or []):
                raise Refused(f"'{tensor}' has the dtype '{dtype}' or an axis that is not benched here")
            shape = [sizes[extent] for extent in extents or []]
            load = None
            if source.get("type") == "safetensors":
                place = root / part(source, "path", str, tensor)
                load = loader(place, part(source, "tensor_key", str, tensor), shape)
            whole = not dtype.startswith(("float", "bfloat"))
            arrays.append(Array(tensor, dtype, shape, "fixed" if load else role, 0 if whole else -1, 1, not whole, load))
    order = [*definition["inputs"]]
    folder = Path(tempfile.mkdtemp(prefix="splash-bench-"))  # gone with the process's scratch: TMPDIR is the other process's
    (folder / "splash_bench_reference.py").write_text(part(definition, "reference", str, "definition"), encoding="utf-8")
    reference = getattr(module_of(folder / "splash_bench_reference.py", "splash_bench_reference"), "run", None)
    if not callable(reference):
        raise Refused("the definition's reference has no function 'run'")
    label, call, writes = name, reference, False
    if solution_path is not None:
        label, call, told = solution_of(solution_path, name, folder)
        parameters = len(inspect.signature(call).parameters)
        writes = told if told is not None else parameters == len(order) + len(definition["outputs"])
    return Kernel(
        name=label,
        sizes={axis: sizes[axis] for axis in given_axes if axis in sizes},
        arrays=arrays,
        call=by_name(call, order + (list(definition["outputs"]) if writes else [])),
        reference=by_name(reference, order),
        scalars=scalars,
        writes_outputs=writes,
    )
