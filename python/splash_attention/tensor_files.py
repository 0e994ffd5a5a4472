"""Anybody's q, k and v, from .npz, .safetensors and .pt files, written as a capture: HDF5 of the schema in captures.py.

An array is q, k or v where the last part of its name says so ("q", or what `names` gives); parts are split at "." and "/". A part
that is a number names the layer: "layers.3.q" and "3/q" are of layer 3, "q" is of layer 0. Other arrays are passed over. A .pt file
holds a dict of tensors, nested ones joined with "/", or a list; three tensors (q, k, v) in a row are those.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from splash_attention import checks
from splash_attention.files.apart import NotReadError, try_apart
from splash_attention.files.printable import one_line
from splash_attention.files.seal import Seal, check_seal, seal
from splash_attention.files.whole_file import prepare_place, whole_file

SCHEMA = "splash capture 1"
ENDINGS = (".npz", ".safetensors", ".pt")
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # to [batch, heads, length, head_dim]
    "bhnd": lambda x: x,
    "bnhd": lambda x: x.transpose(0, 2, 1, 3),
    "hnd": lambda x: x[None],
    "nhd": lambda x: x.transpose(1, 0, 2)[None],
    "nd": lambda x: x[None, None],
}
USUAL = {4: "bhnd", 3: "hnd", 2: "nd"}
NAMES = {name: name for name in checks.NAMES}
CONVERSION = "1"  # of the same content another file: the caches of older versions are not used
DEEPEST, LONGEST_NUMBER = 8, 9  # nested dicts of a .pt file; digits of a layer
Heads = tuple[np.ndarray, np.ndarray, np.ndarray]  # q, k and v, [batch, heads, length, head_dim]


@dataclass
class Found:
    layers: dict[int, Heads]
    notes: list[str] = field(default_factory=list)  # what was rounded or passed over, a sentence each


def convert(
    path: str | Path, out: str | Path, *, names: Mapping[str, str] | None = None, layout: str | None = None,
    causal: bool = False, scale: float | None = None,
) -> list[str]:  # fmt: skip
    """Writes the q, k and v of a .npz, .safetensors or .pt file as a capture, `out`, whole or not at all.

    The arrays are [batch, heads, length, head_dim], [heads, length, head_dim] or [length, head_dim], of float16, bfloat16, float32
    or float64; bfloat16 is kept as float32, float64 rounded to it. names: what q, k and v are called, for example {"q": "query"}.
    layout: "bhnd", "bnhd", "hnd", "nhd" or "nd", where the dimensions are in another order. causal, scale: what the file cannot say;
    None: 1/sqrt(head_dim).

    Returns what was rounded or passed over, a sentence each. Raises ValueError where the file is damaged or does not hold such arrays,
    ImportError where safetensors or torch is missing, OSError where a file cannot be read or written.
    """
    path, out = Path(path), Path(out)
    found = read_heads(path, names=names, layout=layout)
    given = checks.check_scale(scale)
    prepare_place(out)
    with whole_file(out) as temporary:
        with h5py.File(temporary, "w") as file:
            file.attrs.update(
                schema=SCHEMA, title="q, k and v of a file of tensors", source=path.name, source_sha256=_sha256(path),
                versions=f"numpy {np.__version__}, h5py {h5py.__version__}",
            )  # fmt: skip
            write_numbers(file, "layer", sorted(found.layers), "layers of the model that are held, from 0")
            held = [found.layers[number] for number in sorted(found.layers)]
            scales = [given or q.shape[-1] ** -0.5 for q, _, _ in held]
            write_heads(file.create_group("call-0"), held, scales, checks.check_flag("causal", causal))
        seal(temporary)
    return found.notes


def cached_capture(path: str | Path) -> Path:
    """The same as a capture in the user's cache folder ($XDG_CACHE_HOME or ~/.cache, splash-attention/captures): made once for each
    content. Raises what convert() does."""
    path = Path(path)
    _require_file(path)
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    out = Path(root, "splash-attention", "captures", f"{_sha256(path)}-{CONVERSION}{path.suffix}.h5")
    if not (out.is_file() and check_seal(out.read_bytes()) is Seal.INTACT):
        try:
            convert(path, out)
        except OSError as error:
            raise ValueError(f"{path} cannot be kept as {out} ({error.strerror or error})") from error
    return out


def read_heads(path: Path, *, names: Mapping[str, str] | None = None, layout: str | None = None) -> Found:
    """q, k and v of each layer, [batch, heads, length, head_dim], float16 or float32. Raises as convert() does."""
    called = {**NAMES, **(names or {})}
    if set(called) != set(NAMES):
        raise ValueError(f"names gives {', '.join(sorted(set(called) - set(NAMES)))}; it names q, k and v")
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; allowed are {', '.join(LAYOUTS)}")
    arrays, layers, others, rounded = _read(path), {}, [], False
    for name, array in arrays.items():
        place = _place(path, name, called)
        if place is None:
            others.append(name)
            continue
        tensor, layer = place
        if tensor in layers.setdefault(layer, {}):
            raise ValueError(f"{path} holds {tensor} of layer {layer} twice, the second time as {one_line(name)!r}")
        rounded |= array.dtype == np.float64
        layers[layer][tensor] = _head(path, name, array, layout)
    _require_all(path, layers, called, arrays)
    notes = [f"{path}: float64 is rounded to float32"] if rounded else []
    if others:
        notes.append(f"{path}: passed over {_listed(others)}")
    return Found({layer: _fitting(path, layer, held) for layer, held in layers.items()}, notes)


def write_numbers(file: h5py.File, name: str, numbers: Sequence[int], long_name: str) -> None:
    file[name] = np.array(numbers, np.int32)
    file[name].attrs["long_name"] = long_name


def write_heads(group: h5py.Group, held: Sequence[Heads], scales: Sequence[float], causal: bool) -> None:
    """One call: q, k and v of each layer. Raises ValueError where the layers differ."""
    for at, (name, heads) in enumerate((("q", "query heads"), ("k", "key heads"), ("v", "key heads"))):
        tensors = [of_layer[at] for of_layer in held]
        if len({tensor.shape for tensor in tensors}) > 1:
            raise ValueError(f"the layers' {heads} differ in number or size; capture them apart, with layers=")
        data = _create_heads(group, name, np.stack(tensors))
        data.attrs["long_name"] = f"{name} of the model's attention: [layer, batch, {heads}, token, head_dim]"
    group["scale"] = np.array(scales)
    group.attrs["causal"] = bool(causal)


def _create_heads(group: h5py.Group, name: str, tensor: np.ndarray) -> h5py.Dataset:
    """A head a chunk. 16 bits are compressed, whose upper half repeats, on all cores: HDF5 itself would take one, for minutes."""
    heads = (1, 1, 1, *tensor.shape[3:])
    if tensor.dtype.itemsize != 2:
        return group.create_dataset(name, data=tensor, chunks=heads)
    data = group.create_dataset(name, tensor.shape, tensor.dtype, chunks=heads, shuffle=True, compression="gzip")
    level, places = data.compression_opts, list(np.ndindex(tensor.shape[:3]))

    def packed(at: tuple[int, ...]) -> bytes:  # what the filters shuffle and gzip would store
        return zlib.compress(np.ascontiguousarray(tensor[at]).view(np.uint8).reshape(-1, 2).T.tobytes(), level)

    with ThreadPoolExecutor() as pool:
        for first in range(0, len(places), 64):  # so many heads are held
            some = places[first : first + 64]
            for at, chunk in zip(some, pool.map(packed, some), strict=True):
                data.id.write_direct_chunk((*at, 0, 0), chunk)
    return data


def _read(path: Path) -> dict[str, Any]:
    """Name -> array, of dtypes as they are, bfloat16 as float32; read in a process of its own first."""
    _require_file(path)
    load = READERS.get(path.suffix)
    if load is None:
        raise ValueError(f"{path} ends with none of {', '.join(ENDINGS)}")
    if path.suffix == ".safetensors":
        import safetensors  # noqa: F401  # what is missing is said here, not by the child
    if path.suffix == ".pt":
        import torch  # noqa: F401

    def read() -> dict[str, Any]:
        try:
            return load(path)
        except MemoryError:
            raise
        except Exception as error:  # the libraries raise a dozen kinds on damaged files
            words = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{path} cannot be read as {path.suffix[1:]} ({one_line(words)})") from error

    try:
        try_apart(path, read, ValueError, path.suffix[1:])
    except NotReadError as error:
        raise ValueError(str(error)) from error
    return {name: _as_array(path, name, value) for name, value in read().items()}


def _require_file(path: Path) -> None:
    if not path.exists():
        raise ValueError(f"{path}: no such file")
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file")


def _read_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import deserialize

    return {name: (held["dtype"], held["shape"], held["data"]) for name, held in deserialize(path.read_bytes())}


def _read_pt(path: Path) -> dict[str, Any]:
    import torch

    return _flat(torch.load(path, map_location="cpu", weights_only=True), torch.Tensor)


READERS = {".npz": _read_npz, ".safetensors": _read_safetensors, ".pt": _read_pt}


def _flat(held: Any, tensor: type, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    if isinstance(held, tensor):
        return {prefix or "tensor": held}
    if depth == DEEPEST:
        raise ValueError(f"its dicts are nested more than {DEEPEST} deep")
    if isinstance(held, (list, tuple)):
        alone = len(held) == 3 and all(isinstance(x, tensor) for x in held)
        held = dict(zip(NAMES if alone else range(len(held)), held))
    if not isinstance(held, dict):
        return {}
    flat: dict[str, Any] = {}
    for key, value in held.items():
        flat |= _flat(value, tensor, f"{prefix}/{key}" if prefix else str(key), depth + 1)
    return flat


def _as_array(path: Path, name: str, held: Any) -> np.ndarray:
    if isinstance(held, np.ndarray):
        return held
    if isinstance(held, tuple):  # of safetensors, whose NumPy part lacks bfloat16
        dtype, shape, data = held
        known = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}.get(dtype)
        array = np.frombuffer(data, known).reshape(shape) if known else np.empty(0, "V1")
        return _widened(array) if dtype == "BF16" else array
    import torch

    held = held.detach()
    if held.dtype == torch.bfloat16:
        return _widened(held.view(torch.int16).numpy().view(np.uint16))
    try:
        return held.numpy()
    except (TypeError, RuntimeError) as error:  # sparse, quantized, of 8 bits
        raise ValueError(f"{path}: {one_line(name)} is no array of numbers ({one_line(str(error))})") from error


def _widened(bits: np.ndarray) -> np.ndarray:
    """bfloat16 as float32, of which it is the upper half."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _place(path: Path, name: str, called: Mapping[str, str]) -> tuple[str, int] | None:
    """(q, k or v, layer)."""
    parts = re.split(r"[./]", name)
    for tensor, word in called.items():
        ending = re.split(r"[./]", word)
        if parts[-len(ending) :] != ending:
            continue
        numbers = [part for part in parts[: -len(ending)] if re.fullmatch(r"[0-9]+", part)]
        if len(numbers) > 1 or any(len(number) > LONGEST_NUMBER for number in numbers):
            raise ValueError(f"{path}: {one_line(name)!r} names no one layer; one part of a name may be a number of up to 9 digits")
        return tensor, int(numbers[0]) if numbers else 0
    return None


def _head(path: Path, name: str, array: np.ndarray, layout: str | None) -> np.ndarray:
    shown = f"{path}: {one_line(name)}"
    if array.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(f"{shown} is of {array.dtype}; allowed are {', '.join(checks.DTYPES)}")
    order = layout or USUAL.get(array.ndim)
    if order is None:
        raise ValueError(f"{shown} has {array.ndim} dimensions; allowed are [batch, heads, n, d], [heads, n, d] and [n, d]")
    if len(order) != array.ndim:
        raise ValueError(f"{shown} has {array.ndim} dimensions; the layout {order} has {len(order)}")
    if array.size == 0:
        raise ValueError(f"{shown} has shape {list(array.shape)}; every extent must be at least 1")
    head = LAYOUTS[order](array)
    with np.errstate(over="ignore"):
        head = head.astype(np.float32) if head.dtype == np.float64 else head
    if not np.isfinite(head).all():
        raise ValueError(f"{shown} holds values that are not finite in {head.dtype}; every value must be")
    return head.astype(head.dtype.newbyteorder("="))


def _require_all(path: Path, layers: Mapping[int, Mapping[str, Any]], called: Mapping[str, str], arrays: Mapping[str, Any]) -> None:
    words = _listed(list(called.values()))
    if not layers:
        raise ValueError(f"{path} holds {_listed(list(arrays)) or 'no arrays'}; none is called {words}; names= (--names) says what they are called")
    for layer, held in sorted(layers.items()):
        for tensor in NAMES:
            if tensor not in held:
                raise ValueError(f"{path} holds no {called[tensor]} of layer {layer}; each layer needs {words}")


def _fitting(path: Path, layer: int, held: Mapping[str, np.ndarray]) -> Heads:
    dtype = np.result_type(*held.values())
    q, k, v = (held[name].astype(dtype, copy=False) for name in NAMES)
    try:
        _, q_heads, kv_heads, *_ = checks.check_inputs(q, k, v)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: layer {layer}: {error}") from error
    if q_heads % kv_heads:
        raise ValueError(f"{path}: layer {layer}: q has {q_heads} heads and k {kv_heads}; the first must be a multiple of the second")
    return q, k, v


def _listed(names: Sequence[str]) -> str:
    shown = [one_line(name)[:60] for name in names[:6]]
    return ", ".join(shown) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
