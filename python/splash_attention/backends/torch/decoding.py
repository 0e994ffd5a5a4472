"""PyTorch's custom operators for decoding: ``torch.ops.splash_attention.decode``, ``decode_fill`` and ``decode_append``.

  decode(q [batch, q_heads, q_len, head_dim], keys, values, low_bit, block_table [batch, width], lengths [batch], alpha [1 or
         q_heads], scale [1 or q_heads], heads_first, bits, window=0, sinks=0, broad!=None [batch or more, kv_heads],
         recent!=None [batch or more, kv_heads, _core.DECODE_RECENT_WORDS], k_scale=None [1], v_scale=None [1])
         -> out, tau, maximum, support [batch, q_heads, q_len], counts
  decode_fill(low_bit!, keys, values, block_table, lengths, from_lengths or None, most_pages, heads_first, bits)
  decode_append(keys!, values!, k, v [batch, kv_heads, n, head_dim], block_table, lengths before them, heads_first, k_scale=None,
         v_scale=None): tokens without a page are dropped on a GPU; ValueError in host memory

keys, values: [pages, page_size, kv_heads, head_dim], with heads_first [pages, kv_heads, page_size, head_dim]. On a GPU the
kernels of gpu/decode run; in host memory decode_step of cpu_ref/decode, whose result is that of double precision. low_bit: the copies, as in
core/low_bit_page.h; empty: there are none. counts, int32 [units, 4], is empty in host memory; what it means: gpu/decode/problem.h. broad and
recent, int32: StepInputs::broad and recent of gpu/decode/decode.h. No gradients.
Pools in float8_e4m3fn have k_scale and v_scale, float32 on their device: what their numbers are multiplied by; None: 1. q, k and v are then
in another dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from splash_attention import _core
from splash_attention.backends.torch.operators import NAMESPACE

_pools = "Tensor keys, Tensor values"
_numbers = "bool heads_first, int bits"
FP8, FP8_MOST = torch.float8_e4m3fn, 448.0
LOW_BIT_WIDTHS = (64, 128, 256)  # of keys with copies
library = torch.library.Library(NAMESPACE, "FRAGMENT")
library.define(
    f"decode(Tensor q, {_pools}, Tensor low_bit, Tensor block_table, Tensor lengths, Tensor alpha, Tensor scale, {_numbers},"
    " int window=0, int sinks=0, Tensor(a!)? broad=None, Tensor(b!)? recent=None, Tensor? k_scale=None, Tensor? v_scale=None)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
library.define(
    f"decode_fill(Tensor(a!) low_bit, {_pools}, Tensor block_table, Tensor lengths, Tensor? from_lengths, int most_pages, {_numbers})"
    " -> ()"
)
library.define(
    "decode_append(Tensor(a!) keys, Tensor(b!) values, Tensor k, Tensor v, Tensor block_table, Tensor lengths, bool heads_first,"
    " Tensor? k_scale=None, Tensor? v_scale=None) -> ()"
)


def _sizes(keys: Tensor, heads_first: bool) -> tuple[int, int, int, int]:
    """pages, page_size, kv_heads, head_dim."""
    pages, first, second, dim = keys.shape
    return (pages, second, first, dim) if heads_first else (pages, first, second, dim)


def _strides(pool: Tensor, heads_first: bool) -> list[int]:
    """Of pages, tokens and heads."""
    page, first, second, _ = pool.stride()
    return [page, second, first] if heads_first else [page, first, second]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def device_cache(
    keys: Tensor, values: Tensor, low_bit: Tensor | None, heads_first: bool, bits: int, rows: torch.dtype = torch.bfloat16,
    k_scale: Tensor | None = None, v_scale: Tensor | None = None,
) -> Any:  # fmt: skip
    """rows: dtype of queries and new keys, which counts beside float8 alone."""
    if not hasattr(_core, "DeviceCache"):
        raise RuntimeError("this build of splash_attention has no CUDA kernels")
    device, sizes = keys.device.index or 0, [*_sizes(keys, heads_first), bits]
    pools = (keys.data_ptr(), _strides(keys, heads_first), values.data_ptr(), _strides(values, heads_first))
    if keys.dtype == FP8:
        return _core.DeviceCache(device, sizes, *pools, _name(rows), [_address(k_scale), _address(v_scale)])
    return _core.DeviceCache(device, _name(keys.dtype), sizes, *pools, _address(low_bit))


def new_low_bit(keys: Tensor, values: Tensor, heads_first: bool, bits: int) -> Tensor:
    """Memory for the copies of a pool. In host memory all margins are NaN at first: a step reads the keys of a page that was never filled.
    There are none there of keys whose width the layout does not have."""
    if keys.is_cuda:
        size = device_cache(keys, values, None, heads_first, bits).low_bit_bytes()
        return torch.empty(size, dtype=torch.uint8, device=keys.device)
    pages, page_size, kv_heads, dim = _sizes(keys, heads_first)
    page = 4 * dim + 2 * page_size + page_size * dim * bits // 8  # of one key head; in Python, so that torch.compile can look into it
    size = pages * kv_heads * page if bits and dim in LOW_BIT_WIDTHS else 0
    return torch.full((size,), 0xFF, dtype=torch.uint8, device=keys.device)


def _row_strides(rows: Tensor) -> list[int]:
    batch, head, query, _ = rows.stride()
    return [batch, query, head]


def _results(q: Tensor, units: int) -> tuple[Tensor, ...]:
    rows = q.shape[:3]
    return (
        torch.empty(q.shape, dtype=q.dtype, device=q.device),
        torch.empty(rows, dtype=torch.float32, device=q.device),
        torch.empty(rows, dtype=torch.float32, device=q.device),
        torch.empty(rows, dtype=torch.int32, device=q.device),
        torch.empty((units, 4), dtype=torch.int32, device=q.device),
    )


def _units(q: Tensor, kv_heads: int) -> int:
    batch, q_heads, q_len, _ = q.shape
    return batch * kv_heads * -(-(q_heads // kv_heads * q_len) // _core.DECODE_ROWS)


def _takeable(rows: Tensor) -> Tensor:
    """As the kernels read rows: 16 bytes at a time."""
    aligned = rows.stride(-1) == 1 and all(stride % 8 == 0 for stride in rows.stride()[:3]) and rows.data_ptr() % 16 == 0
    return rows if aligned else rows.contiguous()


@torch.library.impl(library, "decode", "CUDA")
def _decode_cuda(q: Tensor, keys: Tensor, values: Tensor, low_bit: Tensor, block_table: Tensor, lengths: Tensor, alpha: Tensor,
                 scale: Tensor, heads_first: bool, bits: int, window: int = 0, sinks: int = 0,
                 broad: Tensor | None = None, recent: Tensor | None = None, k_scale: Tensor | None = None,
                 v_scale: Tensor | None = None) -> tuple[Tensor, ...]:
    cache = device_cache(keys, values, low_bit, heads_first, bits, q.dtype, k_scale, v_scale)
    q = _takeable(q)
    batch, width = block_table.shape
    numbers = [q.shape[1], q.shape[2], alpha.numel(), scale.numel(), min(window, 2**30), sinks]
    results = _results(q, _units(q, _sizes(keys, heads_first)[2]))
    size = cache.workspace_bytes(batch, width, numbers)
    workspace = torch.empty(size, dtype=torch.uint8, device=q.device)
    stream = torch.cuda.current_stream(q.device).cuda_stream
    cache.decode(
        block_table.data_ptr(), lengths.data_ptr(), batch, width, numbers, q.data_ptr(), _row_strides(q),
        [result.data_ptr() for result in results], _row_strides(results[0]), alpha.data_ptr(), scale.data_ptr(),
        [_address(memory) for memory in (broad, recent)], workspace.data_ptr(), size, stream,
    )
    return results


def _host_pool(pool: Tensor, heads_first: bool, scale: float = 1.0) -> tuple[int, list[int], float]:
    return pool.data_ptr(), _strides(pool, heads_first), scale


def _host_array(tensor: Tensor) -> Any:
    return tensor.int().contiguous().numpy()


@torch.library.impl(library, "decode", "CPU")
def _decode_cpu(q: Tensor, keys: Tensor, values: Tensor, low_bit: Tensor, block_table: Tensor, lengths: Tensor, alpha: Tensor,
                scale: Tensor, heads_first: bool, bits: int, window: int = 0, sinks: int = 0,
                broad: Tensor | None = None, recent: Tensor | None = None, k_scale: Tensor | None = None,
                v_scale: Tensor | None = None) -> tuple[Tensor, ...]:
    keys, values = (pool if pool.stride(-1) == 1 else pool.contiguous() for pool in (keys, values))
    pools = [_host_pool(pool, heads_first, 1.0 if factor is None else float(factor)) for pool, factor in ((keys, k_scale), (values, v_scale))]
    found = _core.decode_cpu(
        _name(keys.dtype), _sizes(keys, heads_first), *pools, _host_array(block_table), _host_array(lengths),
        q.detach().double().contiguous().numpy(), alpha.double().tolist(), scale.double().tolist(), window, sinks,
        low_bit.numpy(), bits,
    )
    out, tau, maximum, support = (torch.from_numpy(array) for array in found)
    return out.to(q.dtype), tau.float(), maximum.float(), support.int(), torch.empty((0, 4), dtype=torch.int32)


@torch.library.register_fake(f"{NAMESPACE}::decode", lib=library)
def _decode_fake(q: Tensor, keys: Tensor, values: Tensor, low_bit: Tensor, block_table: Tensor, lengths: Tensor, alpha: Tensor,
                 scale: Tensor, heads_first: bool, bits: int, window: int = 0, sinks: int = 0,
                 broad: Tensor | None = None, recent: Tensor | None = None, k_scale: Tensor | None = None,
                 v_scale: Tensor | None = None) -> tuple[Tensor, ...]:
    units = 0 if q.device.type == "cpu" else _units(q, keys.shape[1 if heads_first else 2])
    return _results(q, units)


@torch.library.impl(library, "decode_fill", "CUDA")
def _fill_cuda(low_bit: Tensor, keys: Tensor, values: Tensor, block_table: Tensor, lengths: Tensor, from_lengths: Tensor | None,
               most_pages: int, heads_first: bool, bits: int) -> None:
    cache = device_cache(keys, values, low_bit, heads_first, bits)
    batch, width = block_table.shape
    cache.fill(block_table.data_ptr(), lengths.data_ptr(), batch, width, 0 if from_lengths is None else from_lengths.data_ptr(),
               most_pages, torch.cuda.current_stream(keys.device).cuda_stream)


@torch.library.impl(library, "decode_fill", "CPU")
def _fill_cpu(low_bit: Tensor, keys: Tensor, values: Tensor, block_table: Tensor, lengths: Tensor, from_lengths: Tensor | None,
              most_pages: int, heads_first: bool, bits: int) -> None:
    if low_bit.numel() == 0:
        return
    froms = lengths.new_empty(0) if from_lengths is None else from_lengths
    _core.decode_fill_cpu(
        _name(keys.dtype), _sizes(keys, heads_first), _host_pool(keys, heads_first), _host_array(block_table), _host_array(lengths),
        _host_array(froms), most_pages, low_bit.numpy(), bits,
    )


@torch.library.register_fake(f"{NAMESPACE}::decode_fill", lib=library)
def _fill_fake(low_bit: Tensor, keys: Tensor, values: Tensor, block_table: Tensor, lengths: Tensor, from_lengths: Tensor | None,
               most_pages: int, heads_first: bool, bits: int) -> None:
    pass


@torch.library.impl(library, "decode_append", "CUDA")
def _append_cuda(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, block_table: Tensor, lengths: Tensor, heads_first: bool,
                 k_scale: Tensor | None = None, v_scale: Tensor | None = None) -> None:
    cache = device_cache(keys, values, None, heads_first, 0, k.dtype, k_scale, v_scale)
    batch, width = block_table.shape
    k, v = _takeable(k), _takeable(v)
    cache.append(block_table.data_ptr(), lengths.data_ptr(), batch, width, [k.data_ptr(), v.data_ptr()],
                 [*_row_strides(k), *_row_strides(v)], k.shape[2], torch.cuda.current_stream(keys.device).cuda_stream)


def _quantized(rows: Tensor, scale: Tensor | None) -> Tensor:
    numbers = rows.float() if scale is None else rows.float() / scale
    return numbers.clamp(-FP8_MOST, FP8_MOST).to(FP8)


@torch.library.impl(library, "decode_append", "CPU")
def _append_cpu(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, block_table: Tensor, lengths: Tensor, heads_first: bool,
                k_scale: Tensor | None = None, v_scale: Tensor | None = None) -> None:
    page_size = _sizes(keys, heads_first)[1]
    places = lengths[:, None].long() + torch.arange(k.shape[2])
    ordinals = places // page_size
    if places.numel() and int(ordinals.max()) >= block_table.shape[1]:
        raise ValueError(f"block_table has room for {block_table.shape[1] * page_size} keys per sequence, not for {int(places.max()) + 1}")
    pages = block_table.gather(1, ordinals).long()
    if (pages < 0).any() or (pages >= keys.shape[0]).any():
        raise ValueError("block_table names no page of the pool for some of the new keys")
    for pool, rows, scale in ((keys, k, k_scale), (values, v, v_scale)):
        by_token = pool.transpose(1, 2) if heads_first else pool
        if pool.dtype == FP8:  # which has no indices of its own
            by_token, rows = by_token.view(torch.uint8), _quantized(rows, scale).view(torch.uint8)
        by_token[pages, places % page_size] = rows.transpose(1, 2)


@torch.library.register_fake(f"{NAMESPACE}::decode_append", lib=library)
def _append_fake(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, block_table: Tensor, lengths: Tensor, heads_first: bool,
                 k_scale: Tensor | None = None, v_scale: Tensor | None = None) -> None:
    pass
