"""How long one step of decoding takes a language model, and where the time goes: entmax over pages beside PyTorch's fused softmax.

A step is one word of each sequence through the whole model, to its most probable next word. On a GPU it is captured in a CUDA graph, and
each replay is timed by events; then the word is taken back, so that each begins with the same keys. Steps:
  splash            attn_implementation="splash" with SplashCache
  sdpa              attn_implementation="sdpa" with transformers' StaticCache, as they come
  sdpa without mask the same cache, and the fastest of PyTorch's kernels over the keys that are there: what a server would run
  no attention      the model without attention and cache: what the others share
Attention alone is timed over the caches and queries of the steps, layer after layer, so that each layer finds L2 cold, all layers in one
graph. Caches remember no keys of the last step here: every replay asks the same, and would find its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, DynamicCache, StaticCache

from splash_attention.decoding import DecodeAux, decode
from splash_attention.hugging_face import SplashCache, attention_forward
from splash_attention.hugging_face.cache import as_argument
from splash_attention.hugging_face.learning import attention_layers
from splash_attention.language.intervals import spread
from splash_attention.language.methods import Method

_ROOM = 64  # tokens beside the context
_AHEAD = 8_000_000  # cycles that the GPU waits for the host to queue a replay
_FUSED = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
_NAME = "splash_decode_step"


def prompts(tokens: np.ndarray, batch: int, context: int) -> Tensor:
    """[batch, context]: of one text, from places far apart, and from its beginning again where it ends."""
    starts = np.arange(batch) * len(tokens) // batch
    return torch.from_numpy(tokens[(starts[:, None] + np.arange(context)) % len(tokens)].astype(np.int64))


def set_method(model: Any, method: Method) -> None:
    """alpha and factor of each layer. Raises ValueError for what decode does not do."""
    for layer, module in attention_layers(model).items():
        one = method.of(layer)
        if one.kind != "entmax" or one.k_keep is not None:
            raise ValueError(f"layer {layer} has {one.kind}{' with k_keep' if one.k_keep else ''}; decode does entmax over all keys")
        module.splash_alpha, module.splash_factor = (list(x) if isinstance(x, tuple) else x for x in (one.alpha, one.factor))


@torch.inference_mode()
def measure(
    model: Any, ids: Tensor, *, bits: int = 4, page_size: int = 64, replays: int = 200, rows: int = 8, said: Callable[[str], None] = print
) -> dict[str, Any]:
    """ids: [batch, context], on the host. rows: sequences that are prefilled at once. Times in ms; set_method comes before."""
    batch, context = ids.shape
    device, layers = model.device, attention_layers(model)
    word, place = ids[:, -1:].to(device), torch.full((batch, 1), context, device=device)
    steps: dict[str, Any] = {}

    def step(name: str, implementation: str, cache: Any) -> None:
        model.set_attn_implementation(implementation)

        def call() -> Tensor:
            return model(word, position_ids=place, use_cache=cache is not None, **as_argument(model, cache)).logits[:, -1].argmax(-1)

        undo = (lambda: None) if cache is None else (lambda: _take_back(cache))
        (times,) = _times([_captured(call, undo, device)], undo, replays, device)
        steps[name] = spread(times)
        said(f"batch {batch}, {name}: {steps[name]['median']:.3f} ms")

    nothing = _registered(lambda module, query, key, value, mask, **others: (query.transpose(1, 2).contiguous(), None))
    step("no attention", nothing, None)

    cache = _pages(model, ids, bits, page_size, rows)
    held = {n: cache.layers[n] for n in layers}
    for one in held.values():
        one.paged.recent = None  # every replay asks the same: it would remember its own keys
    step("splash", "splash", cache)
    queries = _queries(model, attention_forward, cache, word, place)
    numbers = {n: held[n].numbers(queries[n], layers[n].scaling, layers[n].splash_alpha, layers[n].splash_factor) for n in layers}
    aux = {n: decode(queries[n], held[n].paged, alpha=numbers[n][0], scale=numbers[n][1], return_aux=True)[1] for n in layers}
    calls = [lambda n=n: decode(queries[n], held[n].paged, alpha=numbers[n][0], scale=numbers[n][1]) for n in layers]
    attention: dict[str, Any] = {"splash": _alone(calls, replays, device)}
    support = [_support(one) for one in aux.values()]
    said(f"batch {batch}, decode alone: {attention['splash']['median']:.3f} ms")
    del cache, held, calls, aux  # before the other cache

    cache = _rows_of_softmax(model, ids, rows)
    kept = {n: (cache.layers[n].keys[:, :, : context + 1], cache.layers[n].values[:, :, : context + 1]) for n in layers}
    fused: dict[str, tuple[SDPBackend, bool]] = {}
    for name, backend in _FUSED.items():
        for grouped in (False, True):
            told = f"{name}, a group's queries as rows" if grouped else name
            calls = [lambda n=n: _sdpa(queries[n], *kept[n], layers[n].scaling, backend, grouped) for n in layers]
            try:
                calls[0]()
            except RuntimeError as error:
                attention[told] = {"refused": str(error).splitlines()[0]}
                continue
            attention[told] = _alone(calls, replays, device)
            said(f"batch {batch}, {told} alone: {attention[told]['median']:.3f} ms")
            fused[told] = (backend, grouped)
    if not fused:
        raise RuntimeError("PyTorch has no fused attention for these tensors here")
    fastest = min(fused, key=lambda told: attention[told]["median"])
    backend, grouped = fused[fastest]

    def without_mask(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None, **others: Any) -> Any:
        there = (key[:, :, : context + 1], value[:, :, : context + 1])
        return _sdpa(query, *there, scaling, backend, grouped).transpose(1, 2).contiguous(), None

    step("sdpa without mask", _registered(without_mask), cache)
    try:
        step("sdpa", "sdpa", cache)
    except RuntimeError as error:  # transformers' own step need not be one that a graph captures
        steps["sdpa"] = {"refused": str(error).splitlines()[0]}

    medians = {name: one["median"] for name, one in steps.items() if "median" in one}
    shares = {name: {"attention": attention[of]["median"] / medians[name], "no attention": medians["no attention"] / medians[name]}
              for name, of in (("splash", "splash"), ("sdpa without mask", fastest))}  # fmt: skip
    return {
        "batch": batch, "context": context, "bits": bits, "page_size": page_size, "replays": replays, "unit": "ms",
        "steps": steps, "attention": attention, "fastest_sdpa": fastest, "shares_of_the_step": shares, "support_of_layers": support,
        "sdpa_over_splash": medians["sdpa"] / medians["splash"] if "sdpa" in medians else None,
        "sdpa_without_mask_over_splash": medians["sdpa without mask"] / medians["splash"],
    }  # fmt: skip


def table(measured: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| batch × keys | step | ms | attention alone | the rest of the model | what is left |", "|---|---|---|---|---|---|"]
    for one in measured:
        rest = one["steps"]["no attention"]["median"]
        for name, of in (("splash", "splash"), ("sdpa without mask", one["fastest_sdpa"]), ("sdpa", None)):
            whole = one["steps"][name].get("median", math.nan)
            alone = one["attention"][of]["median"] if of else None
            parts = ("", "", "") if alone is None else (f"{alone:.3f}", f"{rest:.3f}", f"{whole - alone - rest:.3f}")
            lines.append(f"| {one['batch']} × {one['context']} | {name} | {whole:.3f} | {' | '.join(parts)} |")
    return "\n".join(lines)


def _alone(calls: list[Callable[[], Any]], replays: int, device: torch.device) -> dict[str, Any]:
    """All layers in one graph; and each in its own, which adds some microseconds to each."""
    together = lambda: [call() for call in calls]
    (whole,) = _times([_captured(together, lambda: None, device)], lambda: None, replays, device)
    apart = _times([_captured(one, lambda: None, device) for one in calls], lambda: None, replays, device)
    return {**spread(whole), "of_layers": np.median(apart, 1).tolist()}


def _take_back(cache: Any) -> None:
    """Drops the step's token, also from static layers without crop, as transformers before 5.19 has them."""
    if isinstance(cache, SplashCache) or all(hasattr(layer, "crop") for layer in cache.layers):
        return cache.crop(-1)
    for layer in cache.layers:
        layer.cumulative_length -= 1


def _support(aux: DecodeAux) -> dict[str, Any]:
    told: dict[str, Any] = {"mean": float(aux.support.float().mean()), "largest": int(aux.support.max())}
    if aux.rescored.numel():  # on a GPU
        told |= {"rescored": float(aux.rescored.sum() / aux.screened.sum().clamp(min=1)), "fell_back": float(aux.fell_back.float().mean())}
    return told


def _registered(function: Callable[..., Any]) -> str:
    AttentionInterface.register(_NAME, function)  # without a mask's function transformers makes none
    return _NAME


def _sdpa(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, backend: SDPBackend, grouped: bool) -> Tensor:
    batch, heads, _, dim = query.shape
    q = query.reshape(batch, key.shape[1], heads // key.shape[1], dim) if grouped else query
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(q, key, value, scale=scaling, enable_gqa=q.shape[1] != key.shape[1])
    return out.reshape(query.shape)


def _pages(model: Any, ids: Tensor, bits: int, page_size: int, rows: int) -> SplashCache:
    """A SplashCache after the prompts, prefilled some rows at a time."""
    model.set_attn_implementation("splash")
    batch, context = ids.shape
    cache = SplashCache(model.config, context + _ROOM, bits=bits, page_size=page_size)
    for first, part, some in _prefilled(model, ids, rows, lambda: SplashCache(model.config, context + _ROOM, bits=0, page_size=page_size)):
        if not first:
            paged = some.layers[0].paged
            cache.early_initialization(batch, paged.kv_heads, paged.head_dim, paged.keys.dtype, model.device)
        for whole, one in zip(cache.layers, some.layers):
            for pool, taken in ((whole.paged.keys, one.paged.keys), (whole.paged.values, one.paged.values)):
                pool.unflatten(0, (batch, -1))[first : first + part] = taken.unflatten(0, (part, -1))
    cache.sequences.advance(context, None)
    for layer in cache.layers:
        layer.paged.fill()
    return cache


def _rows_of_softmax(model: Any, ids: Tensor, rows: int) -> StaticCache:
    """A StaticCache after the prompts under softmax; and room for the step's word."""
    model.set_attn_implementation("sdpa")
    batch, context = ids.shape
    cache = StaticCache(model.config, max_cache_len=context + _ROOM)
    for first, part, some in _prefilled(model, ids, rows, lambda: DynamicCache(config=model.config)):
        if not first:
            _, kv_heads, _, dim = some.layers[0].keys.shape
            cache.early_initialization(batch, kv_heads, dim, some.layers[0].keys.dtype, model.device)
        for whole, one in zip(cache.layers, some.layers):
            whole.keys[first : first + part, :, :context] = one.keys
            whole.values[first : first + part, :, :context] = one.values
    for layer in cache.layers:
        layer.cumulative_length.fill_(context)
    return cache


def _prefilled(model: Any, ids: Tensor, rows: int, empty: Callable[[], Any]) -> Iterator[tuple[int, int, Any]]:
    """(first row, rows, their cache)."""
    for first in range(0, len(ids), rows):
        cache, part = empty(), ids[first : first + rows].to(model.device)
        model.base_model(part, use_cache=True, **as_argument(model, cache))
        yield first, len(part), cache


def _queries(model: Any, attend: Callable[..., Any], cache: Any, word: Tensor, place: Tensor) -> dict[int, Tensor]:
    """Each layer's queries of one step; the step's keys stay in the cache."""
    found: dict[int, Tensor] = {}

    def recorded(module: Any, query: Tensor, *others: Any, **named: Any) -> Any:
        found[module.layer_idx] = query.clone()
        return attend(module, query, *others, **named)

    model.set_attn_implementation(_registered(recorded))
    model(word, position_ids=place, use_cache=True, **as_argument(model, cache))
    return found


def _captured(call: Callable[[], Any], undo: Callable[[], None], device: torch.device) -> Callable[[], Any]:
    """On a GPU the replay of its CUDA graph; undo takes back what one call leaves."""
    if device.type != "cuda":
        return call
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
            undo()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _times(calls: list[Callable[[], Any]], undo: Callable[[], None], replays: int, device: torch.device) -> np.ndarray:
    """ms, [calls, replays]: all calls one after another, so often; undo between."""
    marks = []
    for at in range(-(-replays // 10) + replays):  # the first tenth warms up
        if device.type == "cuda":
            torch.cuda._sleep(_AHEAD)
        row = []
        for call in calls:
            with _marked(row, device):
                call()
        undo()
        marks.append(row)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    between = (lambda a, b: a.elapsed_time(b)) if device.type == "cuda" else (lambda a, b: 1e3 * (b - a))
    return np.array([[between(*pair) for pair in row] for row in marks[-replays:]]).T


@contextmanager
def _marked(row: list[Any], device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        before = time.perf_counter()
        yield
        row.append((before, time.perf_counter()))
        return
    pair = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
    pair[0].record()
    yield
    pair[1].record()
    row.append(pair)
