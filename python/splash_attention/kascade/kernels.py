"""The kernels of an anchor and of the layers that reuse its keys, on tensors in a GPU's memory. Softmax, causal, forward alone.

starts: the first key that each sequence of the batch sees; those before it are padding."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from splash_attention import _core
from splash_attention._core import KASCADE_STEP_ROWS
from splash_attention.backends.torch.cuda import contiguous_and_aligned, current_stream

if TYPE_CHECKING:
    from splash_attention.kascade.attention import Budget
    from splash_attention.kascade.keys_in_8_bits import KeysIn8Bits

_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
_NO_VALUES, _NO_PAGES = [0] * 2, [0] * 7  # as the bindings take them


def is_step(q: Tensor, k: Tensor, tile: int) -> bool:
    """Whether a call has so few queries that the kernels take padding, and choose from keys in 8 bits where these are given."""
    q_len, kv_len = q.shape[2], k.shape[2]
    return q_len < kv_len and q_len <= tile and q.shape[1] // k.shape[1] * q_len <= KASCADE_STEP_ROWS


def are_for(
    q: Tensor, k: Tensor, v: Tensor | None, scaling: float, tile: int, starts: Sequence[int] | None, alpha: float | None
) -> bool:  # fmt: skip
    """Whether the kernels take such a call; else plain PyTorch does. v: None where keys are looked for. starts: None for a mask that hides
    other keys. Other arguments as of attention.attend_to."""
    if not _core.has_cuda or not q.is_cuda or starts is None or alpha is not None or q.dtype not in _NAMES or 0 in q.shape:
        return False
    if any(starts) and not is_step(q, k, tile):
        return False
    if v is not None and (v.shape[3] != q.shape[3] or torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))):
        return False
    return takes(_problem(q, k, scaling), tile)


def tell_normalizers(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether dense() takes such a call, for which are_for holds."""
    takes = getattr(torch.backends.cuda, "can_use_cudnn_attention", None)  # not in every PyTorch
    if takes is None or q.shape[2] != k.shape[2]:  # PyTorch's causal mask meets the keys at their start
        return False
    return takes(torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, True, q.shape[1] != k.shape[1]))


def dense(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Causal softmax by PyTorch's call of cuDNN: out, and of each query log(sum of exp(score)), float32 [batch, heads, q_len]."""
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, is_causal=True, scale=scaling)
    return found[0], found[1].reshape(q.shape[:3]).contiguous()


def quantize_takes(k: Tensor) -> bool:
    """Whether quantize() takes such keys; else plain PyTorch does."""
    return _core.has_cuda and k.is_cuda and k.dtype in _NAMES and 0 not in k.shape and takes(_problem(k, k, 1.0), 32)


def quantize(k: Tensor, codes: Tensor, scales: Tensor, begin: int) -> None:
    """Writes the keys from `begin` on as keys_in_8_bits.KeysIn8Bits holds them: contiguous, with room for as many keys."""
    k = contiguous_and_aligned(k)
    _problem(k, k, 1.0).quantize(k.data_ptr(), [codes.data_ptr(), scales.data_ptr()], codes.shape[2], begin, current_stream(k))


def attend_to_all_and_find(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, budget: Budget, starts: Sequence[int]
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out, keys), as attention.attend_to_all_and_find, of a step: keys and values are read once each."""
    out = q.new_empty(q.shape)
    return out, _find(q, k, scaling, budget, starts, None, None, [contiguous_and_aligned(v), out])


def find(
    q: Tensor, k: Tensor, scaling: float, budget: Budget, starts: Sequence[int], normalizers: Tensor | None = None, k8: KeysIn8Bits | None = None
) -> Tensor:  # fmt: skip
    """As attention.tile_keys. normalizers: of dense(); without them a pass over all scores finds them. k8: of the same keys; they are read
    where a key head has at most 32 rows and a tile."""
    return _find(q, k, scaling, budget, starts, normalizers, k8, [])


def _find(
    q: Tensor, k: Tensor, scaling: float, budget: Budget, starts: Sequence[int], normalizers: Tensor | None, k8: KeysIn8Bits | None,
    v_and_out: list[Tensor],
) -> Tensor:  # fmt: skip
    problem, (counts, most) = _problem(q, k, scaling), _counts(budget, q.shape[2], *k.shape[1:3], tuple(starts), q.device)
    q, k = (contiguous_and_aligned(x) for x in (q, k))
    in_8_bits, room = ([0, 0], 0) if k8 is None else ([k8.codes.data_ptr(), k8.scales.data_ptr()], k8.codes.shape[2])
    keys = q.new_empty((*counts.shape, most), dtype=torch.int32)
    workspace = q.new_empty(problem.find_bytes(bool(v_and_out)), dtype=torch.uint8)
    given = 0 if normalizers is None else normalizers.data_ptr()
    hidden = on_device(tuple(starts), q.device).data_ptr() if any(starts) else 0
    addresses = q.data_ptr(), k.data_ptr(), in_8_bits, room, given, hidden, counts.data_ptr(), keys.data_ptr()
    values = [x.data_ptr() for x in v_and_out] or _NO_VALUES
    problem.find(*addresses, most, workspace.data_ptr(), workspace.numel(), current_stream(q), values, _NO_PAGES)
    return keys


def attend(
    keys: Tensor, heads: Sequence[int], q: Tensor, k: Tensor, v: Tensor, budget: Budget, scaling: float, starts: Sequence[int]
) -> Tensor:  # fmt: skip
    """As attention.attend_to."""
    problem, (counts, _), most = _problem(q, k, scaling), _counts(budget, q.shape[2], *k.shape[1:3], tuple(starts), q.device), keys.shape[3]
    q, k, v, keys = (contiguous_and_aligned(x) for x in (q, k, v, keys))
    out, workspace = torch.empty_like(q), q.new_empty(problem.reuse_bytes(most), dtype=torch.uint8)
    of_heads, addresses = on_device(tuple(heads), q.device), [x.data_ptr() for x in (q, k, v, out)]
    given = counts.data_ptr(), keys.data_ptr(), most, of_heads.data_ptr()
    problem.attend(addresses, *given, workspace.data_ptr(), current_stream(q), _NO_PAGES)
    return out


def _problem(q: Tensor, k: Tensor, scaling: float) -> Any:
    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _) = q.shape, k.shape
    return problem_of((batch, heads, kv_heads, q_len, kv_len, head_dim), scaling, q)


def problem_of(sizes: tuple[int, ...], scaling: float, q: Tensor) -> Any:
    """sizes: batch, heads, kv_heads, q_len, kv_len, head_dim. q: float16 or bfloat16, on a GPU."""
    return _made(sizes, scaling, _NAMES[q.dtype], q.get_device())


@functools.lru_cache(maxsize=256)
def _made(sizes: tuple[int, ...], scaling: float, dtype: str, device: int) -> Any:
    return _core.DeviceKascade(sizes, scaling, dtype, device)


@functools.lru_cache(maxsize=256)
def takes(problem: Any, tile: int) -> bool:
    """problem: of problem_of."""
    return not problem.not_taken(tile)


@functools.lru_cache(maxsize=256)
def _counts(
    budget: Budget, q_len: int, kv_heads: int, kv_len: int, starts: tuple[int, ...], device: torch.device
) -> tuple[Tensor, int]:  # fmt: skip
    """Of each sequence, key head and tile, and the largest."""
    of_starts = {start: _core.kascade_keys_of_tiles(*budget, q_len, kv_len - start) for start in set(starts)}
    counts = torch.tensor([of_starts[start] for start in starts], dtype=torch.int32, device=device)
    return counts[:, None].repeat(1, kv_heads, 1), max(max(of_start) for of_start in of_starts.values())


@functools.lru_cache(maxsize=1024)
def on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)
