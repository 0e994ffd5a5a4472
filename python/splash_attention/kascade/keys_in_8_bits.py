"""A layer's keys once more, in 8 bits, from which an anchor chooses in a step of decoding: it is bound by reading them."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from splash_attention._core import KASCADE_KEY_GROUP
from splash_attention.kascade import kernels


class KeysIn8Bits:
    """Keys as scale · code: codes int8 [batch, kv_heads, capacity, head_dim], scales float32 [batch, kv_heads, capacity], of which `length`
    are there. A scale is a key's largest |number| / 127, codes are rounded to the nearest, the even one of two. A key that is not finite has
    the scale NaN, so that a query that sees it chooses none."""

    def __init__(self) -> None:
        self.length = 0
        self.codes, self.scales = torch.empty(0, dtype=torch.int8), torch.empty(0)

    def reset(self) -> None:
        """Holds no key. The memory stays, for the next ones."""
        self.length = 0

    @torch.no_grad()
    def append(self, k: Tensor) -> None:
        """Takes the keys behind those that it holds. k [batch, kv_heads, kv_len, head_dim]: all keys, of which the first `length` are not read.

        Raises ValueError where k is of another batch, other heads or another device than the keys that it holds, or has fewer.
        """
        (batch, heads, kv_len, dim), begin = k.shape, self.length
        fits = self.codes.shape[:2] == (batch, heads) and self.codes.shape[3:] == (dim,) and self.codes.device == k.device
        if begin > 0 and (not fits or kv_len < begin):
            raise ValueError(f"keys {list(k.shape)} do not continue the {begin} keys in 8 bits of {list(self.codes.shape)}")
        if not fits or kv_len > self.codes.shape[2]:
            self._make_room(k, kv_len + max(kv_len // 8, 256))
        if kernels.quantize_takes(k):
            kernels.quantize(k, self.codes, self.scales, begin)
        else:
            self.codes[:, :, begin:kv_len], self.scales[:, :, begin:kv_len] = quantized(k[:, :, begin:])
        self.length = kv_len

    def values(self) -> Tensor:
        """float32 [batch, kv_heads, length, head_dim]."""
        return self.codes[:, :, : self.length].float() * self.scales[:, :, : self.length, None]

    @property
    def nbytes(self) -> int:
        """Of memory, room for later keys included."""
        return self.codes.nbytes + self.scales.nbytes

    def _make_room(self, k: Tensor, capacity: int) -> None:
        capacity, held = -(-capacity // KASCADE_KEY_GROUP) * KASCADE_KEY_GROUP, self.length
        with torch.inference_mode(False):  # else they could not be written outside of it
            codes = torch.empty((*k.shape[:2], capacity, k.shape[3]), dtype=torch.int8, device=k.device)
            scales = torch.empty((*k.shape[:2], capacity), dtype=torch.float32, device=k.device)
        if held > 0:
            codes[:, :, :held], scales[:, :, :held] = self.codes[:, :, :held], self.scales[:, :, :held]
        self.codes, self.scales = codes, scales


def quantized(k: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of keys, as the kernel computes them."""
    numbers = k.float()
    largest = numbers.abs().amax(-1)
    scales = largest / torch.full_like(largest, 127)  # by a number, a GPU would multiply by its reciprocal
    scales = scales.masked_fill(~scales.isfinite(), torch.nan)
    codes = (numbers / scales[..., None]).round().clamp(-127, 127)
    return codes.masked_fill(~(scales > 0)[..., None], 0).to(torch.int8), scales


def rounded(k: Tensor) -> Tensor:
    """Keys as their copies in 8 bits have them, float32."""
    codes, scales = quantized(k)
    return codes.float() * scales[..., None]


class CopiesOfCache:
    """Of some layers' keys in a cache a copy in 8 bits each. A copy goes on where the cache held the very tensor that was copied last, just
    before this call put its new keys behind it; a cache of another call, one that was cropped or reordered holds another, and is copied
    anew."""

    def __init__(self) -> None:
        self.copies: dict[int, KeysIn8Bits] = {}
        self.copied: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # layer -> keys, their version
        self.goes_on: set[int] = set()

    def see(self, layer: int, keys: Tensor | None) -> None:
        """keys: what the cache holds of a layer before a call; None where it holds nothing."""
        copied, version = self.copied.get(layer, (None, 0))
        self.goes_on.discard(layer)
        if keys is not None and copied is not None and copied() is keys and version == _version(keys):
            self.goes_on.add(layer)

    def of(self, layer: int, k: Tensor, added: int) -> KeysIn8Bits:
        """All keys of a layer, k, of which this call added so many."""
        copy = self.copies.setdefault(layer, KeysIn8Bits())
        if layer not in self.goes_on or copy.length + added != k.shape[2]:
            copy.reset()
        self.copied.pop(layer, None)  # should append fail
        copy.append(k)
        self.copied[layer] = weakref.ref(k), _version(k)
        self.goes_on.discard(layer)
        return copy

    def forget(self, layer: int) -> None:
        """Gives the memory of a layer's copy back."""
        self.copies.pop(layer, None)
        self.copied.pop(layer, None)


def _version(keys: Tensor) -> int:
    """How often they were written in place; of what inference_mode made PyTorch does not count it."""
    return 0 if keys.is_inference() else keys._version
