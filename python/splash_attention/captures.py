"""What a model's attention works on, kept in a file: its own q, k and v on its own text, to study or to time.

    with capture(model, "heads.h5", layers=[0, 12]):
        model(**tokenizer(text, return_tensors="pt"))
    q, k, v, scale, causal = read_capture("heads.h5", layer=12)

    python -m splash_laboratory.bench --inputs heads.h5 --layer 12
    splash run my-heads.toml                          (with input = "heads.h5")

Tensors that another program wrote become such a file (tensor_files.py says which names and shapes are taken):

    python -m splash_attention.captures tensors.npz heads.h5 --names q=query,k=key,v=value --layout bnhd --causal

The file is HDF5: /layer names the layers, each /call-N holds one call of the model: q [layer, batch, q_heads, q_len, head_dim],
k and v [layer, batch, kv_heads, kv_len, head_dim], after rotation and with what a cache holds; scale [layer]; causal; token_id
[batch, token] where the model was given input_ids; importance [layer] where it was asked for; kv_head names the key heads where not all
are held. The root's attributes tell of the model.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py

from splash_attention import checks
from splash_attention.files.apart import NotReadError, try_apart
from splash_attention.files.contained import NotContainedError, require_contained
from splash_attention.files.printable import one_line
from splash_attention.files.seal import Seal, check_seal, seal
from splash_attention.files.whole_file import prepare_place, whole_file
from splash_attention.tensor_files import ENDINGS, LAYOUTS, SCHEMA, cached_capture, convert, write_heads, write_numbers

if TYPE_CHECKING:  # files are converted without PyTorch
    from torch import Tensor

USAGE = 2


@dataclass(frozen=True)
class _Wanted:
    layers: list[int] | None
    heads: list[int] | None
    queries: int | None
    dtype: str


@dataclass
class _Call:
    layers: dict[int, tuple[Tensor, Tensor, Tensor, float]] = field(default_factory=dict)
    causal: bool | None = None
    token_id: Tensor | None = None
    importance: dict[int, float] = field(default_factory=dict)


@contextlib.contextmanager
def capture(
    model: Any, path: str | Path, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None,
    queries: int | None = None, dtype: str = "float32", notes: Mapping[str, str] | None = None, importances: bool = False,
) -> Iterator[None]:  # fmt: skip
    """Writes what each call of the model inside the `with` gives its attention to; the model computes what it always does.

    model: of transformers (5.0 or newer), whose attention goes through its attention interface. path: an HDF5 file, written
    whole when the `with` ends without an exception. layers: their numbers, from 0; None: all. heads: key heads, from 0, each with all
    of its query heads; None: all. queries: of each call the last so many, over all keys; None: all. dtype: "float32", to which bfloat16
    is widened without loss, or "float16", half as large and rounded. notes: further attributes of the file's root. importances: whether
    each layer's is kept, 1 - cosine of the residual stream before and after attention, by which `splash kascade plan` weighs layers.
    While it runs, a model with attn_implementation="eager" computes by PyTorch's sdpa.

    Raises ValueError for a layer that no call reached, for a head that the model lacks, for a model whose attention does not pass here, and for layers whose heads
    differ in number or size (capture them apart); NotImplementedError for padded batches, for masks that are neither causal
    nor absent (sliding windows, packed sequences) and for layers that attend more than once (cross-attention): their heads are not
    what the file would say; OSError where the file cannot be
    written, which is tried first. With importances also NotImplementedError for a model whose residual stream is not known.
    """
    import torch

    from splash_attention.watching import importances as told_importances, require_no_padding, watched

    if dtype not in ("float32", "float16"):
        raise ValueError(f'dtype is {dtype!r}; allowed are "float32" and "float16"')
    if queries is not None and queries < 1:
        raise ValueError(f"queries is {queries}; it must be at least 1, or None")
    path, wanted = Path(path), _Wanted(_numbers(layers), _numbers(heads), queries, dtype)
    prepare_place(path)
    given = model.config._attn_implementation
    calls: list[_Call] = []

    def see(number: int, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, others: dict[str, Any]) -> None:
        if calls and (wanted.layers is None or number in wanted.layers):
            _keep(calls[-1], number, module, query, key, value, mask, others, wanted)

    def begin(_: Any, words: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = named.get("input_ids", words[0] if words else None)
        require_no_padding(named, "a capture")
        calls.append(_Call(token_id=ids.detach().cpu() if isinstance(ids, torch.Tensor) and ids.dim() == 2 else None))

    def tell(layer: int, importance: float) -> None:
        if calls:
            calls[-1].importance[layer] = importance

    hook = model.register_forward_pre_hook(begin, with_kwargs=True)
    try:
        with watched(model, see, "splash_capture"), told_importances(model, tell) if importances else contextlib.nullcontext():
            yield
    finally:
        hook.remove()
    _write(path, calls, wanted, {**_told(model, given), **(notes or {})})


def _numbers(given: Sequence[int] | None) -> list[int] | None:
    return None if given is None else sorted(set(given))


def _keep(
    call: _Call, number: int, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
    others: dict[str, Any], wanted: _Wanted,
) -> None:  # fmt: skip
    import torch

    from splash_attention.watching import causal_of

    causal = causal_of(module, query, key, mask, others, "a capture")
    if call.causal not in (None, causal):
        raise NotImplementedError("some of the model's layers are causal and some are not; capture them apart")
    call.causal = causal
    if number in call.layers:
        raise NotImplementedError(
            f"layer {number} attends more than once in a call (an encoder beside a decoder, or cross-attention); a capture takes models "
            "whose layers attend once"
        )
    scale = others.get("scaling")
    kept = tuple(t.detach().to("cpu", getattr(torch, wanted.dtype)) for t in _wanted_part(query, key, value, wanted))
    call.layers[number] = (*kept, query.shape[-1] ** -0.5 if scale is None else float(scale))


def _wanted_part(query: Tensor, key: Tensor, value: Tensor, wanted: _Wanted) -> tuple[Tensor, Tensor, Tensor]:
    if wanted.heads is not None:
        kv_heads = key.shape[1]
        if not wanted.heads or wanted.heads[0] < 0 or wanted.heads[-1] >= kv_heads:
            raise ValueError(f"heads is {wanted.heads}; the model has the key heads 0 to {kv_heads - 1}")
        query = query.unflatten(1, (kv_heads, -1))[:, wanted.heads].flatten(1, 2)
        key, value = key[:, wanted.heads], value[:, wanted.heads]
    return query if wanted.queries is None else query[:, :, -wanted.queries :], key, value


def _write(path: Path, calls: list[_Call], wanted: _Wanted, told: Mapping[str, str]) -> None:
    reached = sorted({number for call in calls for number in call.layers})
    if not reached:
        raise ValueError("no layer was captured: call the model inside the `with`; its attention must go through transformers' interface")
    missing = set(wanted.layers or ()) - set(reached)
    if missing:
        raise ValueError(f"layers {sorted(missing)} were not reached; of those asked for, {reached} were")
    with whole_file(path) as temporary:
        with h5py.File(temporary, "w") as file:
            file.attrs.update(told)
            write_numbers(file, "layer", reached, "layers of the model that are held, from 0")
            if wanted.heads is not None:
                write_numbers(file, "kv_head", wanted.heads, "key heads of the model that are held, from 0")
            for at, call in enumerate(call for call in calls if call.layers):
                _write_call(file.create_group(f"call-{at}"), call, reached)
        seal(temporary)


def _write_call(group: h5py.Group, call: _Call, reached: list[int]) -> None:
    if sorted(call.layers) != reached:
        raise ValueError(f"one call reached the layers {sorted(call.layers)}, another {reached}; capture them apart")
    held = [call.layers[number] for number in reached]
    heads = [tuple(tensor.numpy() for tensor in of_layer[:3]) for of_layer in held]
    write_heads(group, heads, [of_layer[3] for of_layer in held], bool(call.causal))
    if call.importance:
        group["importance"] = [call.importance[number] for number in reached]
        group["importance"].attrs["long_name"] = "1 - cosine of the residual stream before and after attention, mean over tokens"
    if call.token_id is not None:
        group["token_id"] = call.token_id.numpy()


def _told(model: Any, implementation: Any) -> dict[str, str]:
    import torch
    import transformers

    config = model.config.to_json_string(use_diff=False)
    return {
        "schema": SCHEMA,
        "title": "q, k and v of a model's attention",
        "model": str(getattr(model.config, "_name_or_path", "") or type(model).__name__),
        "model_class": type(model).__name__,
        "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
        "weights_dtype": str(model.dtype)[6:],
        "attn_implementation": str(implementation),
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "written": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def read_capture(path: str | Path, *, layer: int, call: int = 0) -> tuple[Tensor, Tensor, Tensor, float, bool]:
    """(q, k, v, scale, causal) of one layer in one call: q [batch, q_heads, q_len, head_dim], k and v [batch, kv_heads, kv_len,
    head_dim], on the CPU. path: a capture, or a .npz, .safetensors or .pt file, which becomes one in the user's cache folder
    (tensor_files.cached_capture). Raises ValueError where the file is no capture, is damaged, holds data elsewhere, or holds no such layer or
    call; OSError where it cannot be opened."""
    path = Path(path)
    if path.suffix in ENDINGS:
        path = cached_capture(path)
    with open(path, "rb") as file:
        if not path.is_file():
            raise ValueError(f"{path} is not a regular file")
        if check_seal(file.read()) is Seal.BROKEN:
            raise ValueError(f"{path} is damaged, its checksum does not match its content")
    try:
        try_apart(path, lambda: _read(path, layer, call), ValueError)  # HDF5 crashes on some files
    except NotReadError as error:
        raise ValueError(str(error)) from error
    return _read(path, layer, call)


def _read(path: Path, layer: int, call: int) -> tuple[Tensor, Tensor, Tensor, float, bool]:
    import torch

    try:
        with h5py.File(path, "r") as file:
            require_contained(file)
            if file.attrs.get("schema") != SCHEMA:
                raise ValueError(f"{path} is no capture of splash_attention.capture")
            held, calls = file["layer"][()].tolist(), sum(name.startswith("call-") for name in file)
            if layer not in held:
                raise ValueError(f"{path} holds the layers {held}, not {layer}")
            if not 0 <= call < calls:
                raise ValueError(f"{path} holds the calls 0 to {calls - 1}, not {call}")
            group, at = file[f"call-{call}"], held.index(layer)
            q, k, v = (torch.from_numpy(group[name][at]) for name in "qkv")
            checks.check_inputs(q, k, v)
            return q, k, v, float(group["scale"][at]), bool(group.attrs["causal"])
    except NotContainedError as error:
        raise ValueError(f"{path}: {error}") from error
    except (OSError, TypeError, KeyError, AttributeError, IndexError, RuntimeError) as error:  # h5py's, of what is not as it should be
        raise ValueError(f"{path} cannot be read as a capture ({one_line(str(error))})") from error


def _names(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name in ("q", "k", "v") and called for name, _, called in pairs):
        raise argparse.ArgumentTypeError(f"it is {text!r}; it gives names to q, k or v, as in q=query,k=key,v=value")
    return {name: called for name, _, called in pairs}


def main(arguments: list[str] | None = None) -> int:
    """Converts a file of tensors. Returns 0, or 2 where it is not taken."""
    parser = argparse.ArgumentParser(
        prog="python -m splash_attention.captures", description="Writes the q, k and v of a .npz, .safetensors or .pt file as a capture."
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="ends with .npz, .safetensors or .pt")
    parser.add_argument("out", type=Path, metavar="OUT.h5")
    parser.add_argument("--names", type=_names, metavar="q=…,k=…,v=…", help="what q, k and v are called, where it is not q, k and v")
    parser.add_argument("--layout", choices=LAYOUTS, help="order of the dimensions: batch, heads, n tokens, d; bhnd, hnd or nd unless given")
    parser.add_argument("--causal", action="store_true", help="a query sees only itself and earlier keys")
    parser.add_argument("--scale", type=float, help="scores are scale <q, k>; 1/sqrt(d) unless given")
    words = parser.parse_args(arguments)
    try:
        notes = convert(words.file, words.out, names=words.names, layout=words.layout, causal=words.causal, scale=words.scale)
    except ImportError as error:
        print(f"error: {words.file}: {error}; install it (pip install {error.name})", file=sys.stderr)
        return USAGE
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    for note in notes:
        print(note, file=sys.stderr)
    print(words.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
