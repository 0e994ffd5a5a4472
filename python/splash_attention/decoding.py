"""Exact entmax decoding over a paged cache of keys and values, for PyTorch.

    cache = PagedCache.empty(batch, 32768, kv_heads, head_dim, device="cuda")
    cache.append(k, v)                       # [batch, kv_heads, n, head_dim]: a prompt, a chunk of it, or one token
    out = decode(q, cache)                   # [batch, q_heads, q_len, head_dim]

Each query attends to every key of its sequence; the result is entmax over all of them. Beside the keys each full page has
a copy in 4 or 8 bits with a certified error. A step reads the copies, and in full only the keys that a copy cannot
exclude and the values of the support. How it works: docs/questions/how-do-i-decode.md.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from splash_attention._core import DECODE_RECENT_WORDS
from splash_attention.backends.torch import decoding as _operators

PAGE_SIZES = (16, 32, 64, 128, 256)
HEAD_DIMS = (64, 128, 256)  # widths of keys that the kernels take
DTYPES = (torch.bfloat16, torch.float16)  # the same; host memory takes float32 and float64, too
FP8 = _operators.FP8  # of keys and values alone
MOST_QUERIES = 16
MOST_SINKS = 16
ALPHAS, SCALES = (1.01, 2.0), (1e-30, 1e30)  # least and most


def stored_width(head_dim: int, device: torch.device | str) -> int:
    """How wide keys of head_dim are stored: on a GPU as its kernels take them, with zeros behind."""
    widths = [width for width in HEAD_DIMS if width >= head_dim] if torch.device(device).type == "cuda" else []
    return widths[0] if widths else head_dim


class DecodeAux(NamedTuple):
    """What a step knows beside its output. z = (α - 1) scale ⟨q, k⟩.

    tau, maximum: float32 [batch, q_heads, q_len]; z's threshold and its largest value. A row without keys has +inf and
    -inf, a bad one NaN. With them and `out`, results over parts of the keys can be merged.
    support: int32 [batch, q_heads, q_len], keys with p > 0.
    screened, candidates, rescored: int32 [units], units = batch * kv_heads * ceil(q_heads / kv_heads * q_len / 8): keys that
    were screened, that the first bounds let through, and that were scored exactly after the last one.
    fell_back: bool [units], where rows were broad and all keys were scored: lists overflowed, or the unit's last step was broad, and
    nothing was screened. All four are empty in host memory.
    """

    tau: Tensor
    maximum: Tensor
    support: Tensor
    screened: Tensor
    candidates: Tensor
    rescored: Tensor
    fell_back: Tensor


class PagedCache:
    """Keys and values of sequences, in pages of a pool.

    keys, values: [pages, page_size, kv_heads, width], with heads_first [pages, kv_heads, page_size, width]; the last
    dimension contiguous. Pages of 16, 32, 64, 128 or 256 keys. On a GPU bfloat16, float16 or float8_e4m3fn and a width of 64, 128 or 256;
    in float8 with strides that are multiples of 16.
    head_dim: numbers of a key, at most width; what is behind them must be zero, and None says that nothing is. empty() makes
    pools as wide as a GPU's kernels need, for any head_dim up to 256.
    block_table: int32 [batch, most_pages], the pages of each sequence in order, as flash-attn and vLLM have it. Sequences may
    share pages. An entry below 0 is a hole, whose keys do not exist.
    lengths: int32 [batch], keys of each sequence. append() and truncate() change it in place.
    bits: 4 or 8 for low-bit copies, 0 for none; then each step reads K whole. A copy takes head_dim * bits / 8 + 2 bytes per
    key and key head, and 4 head_dim bytes per page and key head. In host memory keys have copies if they are 64, 128 or 256 wide; others are
    read whole. None: 4, in float8 0, which has no copies.
    k_scale, v_scale: of float8, as vLLM and FlashInfer have them: what stored keys and values are multiplied by. A number, or a tensor of
    one element; float32 on the device is taken as it is, so that CUDA graphs see what it holds later. None: 1.
    remembers: on a GPU steps keep in `broad` (int32 [batch, kv_heads]) which rows had a broad support, so that the next step reads
    their keys whole at once, and, where there are copies, in `recent` (int32 [batch, kv_heads, 132]) which keys weighed most, so that the
    next step can bound its thresholds by their scores. Both change how long a step takes, not what it returns.

    Tensors are taken as they are, not copied. Call fill() once for pages that are full already. Raises TypeError, ValueError
    and NotImplementedError, with one sentence.
    """

    def __init__(
        self, keys: Tensor, values: Tensor, block_table: Tensor, lengths: Tensor, *, bits: int | None = None, heads_first: bool = False,
        head_dim: int | None = None, remembers: bool = True, k_scale: float | Tensor | None = None, v_scale: float | Tensor | None = None,
    ) -> None:  # fmt: skip
        if keys.dim() != 4 or keys.shape != values.shape:
            raise ValueError(f"keys and values must have one shape of 4 dimensions, not {tuple(keys.shape)} and {tuple(values.shape)}")
        if keys.dtype != values.dtype or not keys.dtype.is_floating_point:
            raise TypeError(f"keys and values must be of one floating dtype, not {keys.dtype} and {values.dtype}")
        if keys.dtype.itemsize == 1 and keys.dtype != FP8:
            raise TypeError(f"keys and values are of {keys.dtype}; of the types of 8 bits decode takes {FP8}")
        if keys.stride(-1) != 1 or values.stride(-1) != 1:
            raise ValueError("the last dimension of keys and values must be contiguous")
        if block_table.dim() != 2 or lengths.shape != block_table.shape[:1]:
            raise ValueError(
                f"block_table must be [batch, width] and lengths [batch], not {tuple(block_table.shape)} and {tuple(lengths.shape)}"
            )
        for name, tensor in {"block_table": block_table, "lengths": lengths}.items():
            if tensor.dtype != torch.int32:
                raise TypeError(f"{name} is of {tensor.dtype}; it must be of torch.int32")
            if not tensor.is_contiguous():
                raise ValueError(f"{name} must be contiguous")
        devices = {tensor.device for tensor in (keys, values, block_table, lengths)}
        if len(devices) > 1:
            raise ValueError(f"keys, values, block_table and lengths must be on one device, not on {', '.join(map(str, devices))}")
        bits = (0 if keys.dtype == FP8 else 4) if bits is None else bits
        if bits not in (0, 4, 8):
            raise ValueError(f"bits is {bits}; allowed are 0, 4, 8")
        if bits and keys.dtype == FP8:
            raise NotImplementedError(f"decode keeps no copies of float8 caches, which are as small: bits must be 0, not {bits}")
        if keys.dtype != FP8 and not (k_scale is None and v_scale is None):
            raise ValueError(f"k_scale and v_scale belong to keys and values of {FP8}, not of {keys.dtype}")
        self.k_scale, self.v_scale = (scale_of(name, one, keys.device) for name, one in (("k_scale", k_scale), ("v_scale", v_scale)))
        page_size = keys.shape[2 if heads_first else 1]
        if page_size not in PAGE_SIZES:
            raise ValueError(f"pages have {page_size} keys; allowed are {', '.join(map(str, PAGE_SIZES))}")
        self.keys, self.values, self.block_table, self.lengths = keys, values, block_table, lengths
        self.bits, self.heads_first, self.page_size = bits, heads_first, page_size
        if head_dim is not None and not 1 <= head_dim <= keys.shape[3]:
            raise ValueError(f"head_dim is {head_dim}; it must be from 1 to {keys.shape[3]}, the pools' last dimension")
        self.kv_heads, self.head_dim = keys.shape[1 if heads_first else 2], keys.shape[3] if head_dim is None else head_dim
        self.low_bit = _operators.new_low_bit(keys, values, heads_first, bits)
        pairs = (lengths.shape[0], self.kv_heads)
        self.broad = self.recent = None
        if remembers and keys.is_cuda:
            self.broad = torch.zeros(pairs, dtype=torch.int32, device=keys.device)
            if bits:
                self.recent = torch.zeros((*pairs, DECODE_RECENT_WORDS), dtype=torch.int32, device=keys.device)

    @classmethod
    def empty(
        cls, batch: int, most_keys: int, kv_heads: int, head_dim: int, *, page_size: int = 64, bits: int | None = None,
        dtype: torch.dtype = torch.bfloat16, device: torch.device | str | None = None, k_scale: float | Tensor | None = None,
        v_scale: float | Tensor | None = None,
    ) -> PagedCache:
        """A cache of `batch` empty sequences with room for `most_keys` keys each, and pages of its own for each."""
        most_pages = -(-most_keys // page_size)
        shape = (batch * most_pages, page_size, kv_heads, stored_width(head_dim, device or torch.get_default_device()))
        keys = torch.zeros(shape, dtype=dtype, device=device)
        table = torch.arange(batch * most_pages, dtype=torch.int32, device=device).view(batch, most_pages)
        lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        return cls(keys, torch.zeros_like(keys), table, lengths, bits=bits, head_dim=head_dim, k_scale=k_scale, v_scale=v_scale)

    def fill(self, from_lengths: Tensor | None = None, most_pages: int | None = None) -> None:
        """Makes the low-bit copies of the pages that end after from_lengths (int32 [batch]; None: 0) and at or before the
        lengths. most_pages: how many one sequence has of them, at most; None for all of its pages."""
        if self.bits == 0:
            return
        if from_lengths is not None and (from_lengths.dtype != torch.int32 or from_lengths.shape != self.lengths.shape):
            raise ValueError(f"from_lengths must be int32 {list(self.lengths.shape)}")
        pages = self.block_table.shape[1] if most_pages is None else most_pages
        torch.ops.splash_attention.decode_fill(
            self.low_bit, self.keys, self.values, self.block_table, self.lengths, from_lengths, pages, self.heads_first, self.bits
        )

    def append(self, k: Tensor, v: Tensor) -> None:
        """Writes keys and values [batch, kv_heads, n, head_dim] of the cache's dtype behind those of each sequence, and fills.

        A float8 cache takes bfloat16 and float16, which it divides by its scales and rounds to the nearest, ±448 at most; NaN stays NaN.
        It takes float8 as it is.
        The table must name a page for each of them: in host memory ValueError says where it does not. A GPU drops what falls
        into a hole; a length beyond the table makes the sequence's rows NaN."""
        before = self.lengths.clone()
        self._store(k, v, before)
        self.lengths += k.shape[2]
        self.fill(before, -(-k.shape[2] // self.page_size))

    def write(self, k: Tensor, v: Tensor, before: Tensor) -> None:
        """As append(), behind `before` (int32 [batch]), where `lengths` tells already what is there afterwards: the layers of a
        model share one table and one `lengths`. Of k and v each sequence keeps as many as its length grew by."""
        self._store(k, v, before)
        self.fill(before, -(-k.shape[2] // self.page_size))

    def _store(self, k: Tensor, v: Tensor, before: Tensor) -> None:
        batch, n = self.lengths.shape[0], k.shape[2] if k.dim() == 4 else -1
        expected = (batch, self.kv_heads, n, self.head_dim)
        if tuple(k.shape) != expected or tuple(v.shape) != expected:
            raise ValueError(f"k and v must be [{batch}, {self.kv_heads}, n, {self.head_dim}], not {list(k.shape)} and {list(v.shape)}")
        if self.keys.dtype == FP8:
            self._store_fp8(k, v, before)
            return
        if k.dtype != self.keys.dtype or v.dtype != self.keys.dtype or k.device != self.keys.device or v.device != self.keys.device:
            raise TypeError(f"k and v must be of {self.keys.dtype} on {self.keys.device}, not of {k.dtype} and {v.dtype} on {k.device} and {v.device}")
        k, v = (self.widened(one) for one in (k, v))
        torch.ops.splash_attention.decode_append(self.keys, self.values, k, v, self.block_table, before, self.heads_first)

    def _store_fp8(self, k: Tensor, v: Tensor, before: Tensor) -> None:
        allowed = (FP8, *DTYPES) if k.is_cuda else (FP8, *DTYPES, torch.float32, torch.float64)
        if k.dtype != v.dtype or k.dtype not in allowed or k.device != self.keys.device or v.device != self.keys.device:
            raise TypeError(
                f"k and v must be of one of {', '.join(map(str, allowed))} on {self.keys.device}, not of {k.dtype} and {v.dtype} on {k.device} and {v.device}"
            )
        scales = (self.k_scale, self.v_scale)
        if k.dtype == FP8:
            k, v, scales = k.to(torch.float16), v.to(torch.float16), (None, None)
        k, v = (self.widened(one) for one in (k, v))
        torch.ops.splash_attention.decode_append(self.keys, self.values, k, v, self.block_table, before, self.heads_first, *scales)

    def widened(self, x: Tensor) -> Tensor:
        """x [..., head_dim] as wide as the pools, with zeros behind."""
        beside = self.keys.shape[3] - self.head_dim
        return torch.nn.functional.pad(x, (0, beside)) if beside else x

    def truncate(self, lengths: Tensor) -> None:
        """Drops the keys at and behind `lengths` (int32 [batch]), for example rejected drafts. Open pages are read exactly until
        they are full again."""
        self.lengths.copy_(torch.minimum(self.lengths, lengths.to(self.lengths)))


def scale_of(name: str, value: float | Tensor | None, device: torch.device) -> Tensor | None:
    """float32 [1] on the device."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} has {value.numel()} elements; it must have one")
        return value.detach().to(device=device, dtype=torch.float32).reshape(1)
    if value is None:
        return None
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}; it must be above 0 and finite")
    return torch.full((1,), value, dtype=torch.float32, device=device)


def block_table_of(
    kv_indptr: Tensor, kv_indices: Tensor, kv_last_page_len: Tensor, page_size: int, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """block_table (int32 [batch, width]) and lengths (int32 [batch]) of FlashInfer's page table.

    kv_indptr: [batch + 1]; sequence i has the pages kv_indices[kv_indptr[i]:kv_indptr[i + 1]], the last with
    kv_last_page_len[i] keys. width: pages of the longest sequence; None asks the tensors, which waits for the device.
    """
    if kv_last_page_len.shape[0] + 1 != kv_indptr.shape[0]:
        raise ValueError(f"kv_indptr must have one entry more than kv_last_page_len, not {kv_indptr.shape[0]} and {kv_last_page_len.shape[0]}")
    counts = kv_indptr[1:] - kv_indptr[:-1]
    if width is None:
        width = int(counts.max()) if counts.numel() else 0
    columns = torch.arange(width, device=kv_indices.device)
    places = (kv_indptr[:-1, None] + columns).clamp(max=max(kv_indices.shape[0] - 1, 0)).long()
    inside = columns < counts[:, None]
    table = torch.where(inside, kv_indices[places] if kv_indices.numel() else torch.zeros_like(places), -1).int()
    lengths = torch.where(counts > 0, (counts - 1) * page_size + kv_last_page_len, 0).int()
    return table.contiguous(), lengths.contiguous()


def of_heads(name: str, value: float | Sequence[float] | Tensor, q_heads: int, device: torch.device, least: float, most: float) -> Tensor:
    """float32 [1] or [q_heads] on the device."""
    given = value.numel() if isinstance(value, Tensor) else len(value) if isinstance(value, Sequence) else 1
    if given not in (1, q_heads):
        raise ValueError(f"{name} has {given} elements; allowed are 1 and q_heads ({q_heads})")
    if isinstance(value, Tensor):
        return value.detach().reshape(-1).to(device=device, dtype=torch.float32).contiguous()
    values = list(value) if isinstance(value, Sequence) else [value]
    for one in values:
        if not least <= one <= most:
            raise ValueError(f"{name} is {one}; it must lie in [{least:g}, {most:g}]")
    if given == 1:
        return torch.full((1,), values[0], dtype=torch.float32, device=device)
    return torch.tensor(values, dtype=torch.float32, device=device)


def decode(
    q: Tensor, cache: PagedCache, *, alpha: float | Sequence[float] | Tensor = 1.5, scale: float | Sequence[float] | Tensor | None = None,
    window: int | None = None, sinks: int = 0, return_aux: bool = False,
) -> Tensor | tuple[Tensor, DecodeAux]:
    """Entmax attention of the last q_len positions of each sequence to its whole cache.

    q: [batch, q_heads, q_len, head_dim] of the cache's dtype (beside float8 bfloat16 or float16), q_heads a multiple of kv_heads, q_len 1 to 16. Query i sees
    the keys below length - (q_len - 1 - i): append the step's keys first.
    alpha: in [1.01, 2]; scale: 1/sqrt(head_dim) where None. One number each, or a list or tensor with one per query head.
    window: each query sees its last `window` keys, itself among them, and the first `sinks` (0 to 16) of the sequence; None: all.
    Returns out like q, with return_aux (out, DecodeAux). The same bits in every run on one kind of GPU, for every number
    of bits of the cache. On a GPU nothing waits for the device, and a CUDA graph can capture the call with later lengths,
    pages and queries in the same tensors. There are no gradients.
    Lengths and pages that do not exist give NaN rows on a GPU and raise ValueError in host memory. In host memory the
    result is that of double precision.
    """
    keys = cache.keys
    if q.dim() != 4 or q.shape[0] != cache.lengths.shape[0] or q.shape[3] != cache.head_dim or q.shape[1] % cache.kv_heads != 0:
        raise ValueError(
            f"q must be [{cache.lengths.shape[0]}, a multiple of {cache.kv_heads}, q_len, {cache.head_dim}] for this cache, not {list(q.shape)}"
        )
    if not 1 <= q.shape[2] <= MOST_QUERIES:
        raise ValueError(f"q has {q.shape[2]} queries; allowed are 1 to {MOST_QUERIES}")
    if keys.dtype == FP8:
        allowed = DTYPES if q.is_cuda else (*DTYPES, torch.float32, torch.float64)
        if q.dtype not in allowed:
            raise TypeError(f"q is of {q.dtype}; beside a cache of {keys.dtype} it must be of one of {', '.join(map(str, allowed))}")
    elif q.dtype != keys.dtype:
        raise TypeError(f"q is of {q.dtype}, the cache of {keys.dtype}; they must be of one dtype")
    if q.device != keys.device:
        raise ValueError(f"q is on {q.device}, the cache on {keys.device}; they must be on one device")
    if window is not None and window < 1 or window is None and sinks or not 0 <= sinks <= MOST_SINKS:
        raise ValueError(f"window is {window} and sinks {sinks}; allowed are None or 1 and more keys, and beside a window 0 to {MOST_SINKS} sinks")
    alphas = of_heads("alpha", alpha, q.shape[1], q.device, *ALPHAS)
    scales = of_heads("scale", cache.head_dim**-0.5 if scale is None else scale, q.shape[1], q.device, *SCALES)
    broad, recent = (one if one is not None and one.shape[0] >= q.shape[0] else None for one in (cache.broad, cache.recent))
    out, tau, maximum, support, counts = torch.ops.splash_attention.decode(
        cache.widened(q), keys, cache.values, cache.low_bit, cache.block_table, cache.lengths, alphas, scales, cache.heads_first, cache.bits,
        window or 0, sinks, broad, recent, cache.k_scale, cache.v_scale,
    )
    out = out[..., : cache.head_dim]
    if not return_aux:
        return out
    return out, DecodeAux(tau, maximum, support, counts[:, 0], counts[:, 1], counts[:, 2], counts[:, 3] != 0)


class BatchDecodeWrapper:
    """decode in the calling style of FlashInfer's BatchDecodeWithPagedKVCacheWrapper, for a pool that exists already.

        wrapper = BatchDecodeWrapper("NHD")
        wrapper.plan(kv_indptr, kv_indices, kv_last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size)
        out = wrapper.run(q, paged_kv_cache)     # once for each layer; q and out: [batch, num_qo_heads, head_dim]

    kv_layout: "NHD", pools [pages, page_size, num_kv_heads, head_dim], or "HND", [pages, num_kv_heads, page_size, head_dim].
    most_pages: of the longest sequence, now or later. With it no plan waits for the device, and plans of one batch size write over the
    same tensors: a CUDA graph of run() then decodes what the last plan said. None asks each plan's tensors.
    """

    def __init__(self, kv_layout: str = "NHD", *, most_pages: int | None = None) -> None:
        if kv_layout not in ("NHD", "HND"):
            raise ValueError(f'kv_layout is {kv_layout!r}; allowed are "NHD" and "HND"')
        self.heads_first, self.most_pages = kv_layout == "HND", most_pages
        self.block_table: Tensor | None = None

    def plan(
        self, kv_indptr: Tensor, kv_indices: Tensor, kv_last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim: int,
        page_size: int, *, pos_encoding_mode: str = "NONE", window_left: int = -1, logits_soft_cap: float | None = None,
        sm_scale: float | Tensor | None = None, alpha: float | Tensor = 1.5,
    ) -> None:  # fmt: skip
        """kv_indptr, kv_indices, kv_last_page_len: as block_table_of takes them; they count on kv_indices' device. sm_scale, alpha: as
        decode takes them; window_left: keys to the left of a query that it sees, -1 for all. Raises ValueError, and NotImplementedError for
        another pos_encoding_mode or logits_soft_cap."""
        soft_cap = logits_soft_cap or None
        asked = {"pos_encoding_mode": (pos_encoding_mode, "NONE"), "logits_soft_cap": (soft_cap, None)}
        for name, (value, served) in asked.items():
            if value != served:
                raise NotImplementedError(f"{name} is {value!r}; decode serves {served!r} alone")
        if num_kv_heads < 1 or num_qo_heads % num_kv_heads != 0:
            raise ValueError(f"num_qo_heads is {num_qo_heads}; it must be a multiple of num_kv_heads ({num_kv_heads})")
        tables = (kv_indptr.to(kv_indices.device), kv_indices, kv_last_page_len.to(kv_indices.device))
        table, lengths = block_table_of(*tables, page_size, self.most_pages)
        if self.block_table is not None and self.block_table.shape == table.shape and self.block_table.device == table.device:
            self.block_table.copy_(table)
            self.lengths.copy_(lengths)
        else:
            self.block_table, self.lengths = table, lengths
        self._q = (lengths.shape[0], num_qo_heads, head_dim)
        self._page = (num_kv_heads, page_size, head_dim) if self.heads_first else (page_size, num_kv_heads, head_dim)
        self._numbers = {"alpha": alpha, "scale": sm_scale, "window": None if window_left < 0 else window_left + 1}

    def run(
        self, q: Tensor, paged_kv_cache: Tensor | tuple[Tensor, Tensor] | PagedCache, *, k_scale: float | Tensor | None = None,
        v_scale: float | Tensor | None = None, return_aux: bool = False,
    ) -> Tensor | tuple[Tensor, DecodeAux]:
        """q: [batch, num_qo_heads, head_dim]. paged_kv_cache: (keys, values), or one tensor [pages, 2, …] of both; K is then read whole.
        Or a PagedCache of these pools, for its low-bit copies, and so that steps remember; call its fill() for pages that became
        full. Its own table and lengths do not count here. k_scale, v_scale: of float8 pools; a PagedCache has its own. Returns out like q, with
        return_aux (out, DecodeAux of one query per sequence)."""
        if self.block_table is None:
            raise RuntimeError("plan() comes before run()")
        if tuple(q.shape) != self._q:
            raise ValueError(f"q is {list(q.shape)}; the plan is of {list(self._q)}")
        if isinstance(paged_kv_cache, PagedCache):
            if not (k_scale is None and v_scale is None):
                raise ValueError("a PagedCache has its own k_scale and v_scale; run takes none beside it")
            cache = copy.copy(paged_kv_cache)
            if cache.heads_first != self.heads_first:
                raise ValueError("the PagedCache and the wrapper's kv_layout differ in the order of heads and tokens")
            cache.block_table, cache.lengths = self.block_table, self.lengths
        else:
            keys, values = (paged_kv_cache[:, 0], paged_kv_cache[:, 1]) if isinstance(paged_kv_cache, Tensor) else paged_kv_cache
            scales = {"k_scale": k_scale, "v_scale": v_scale}
            cache = PagedCache(keys, values, self.block_table, self.lengths, bits=0, heads_first=self.heads_first, remembers=False, **scales)
        page = (*cache.keys.shape[1:3], cache.head_dim)
        if page != self._page:
            raise ValueError(f"pages are {list(page)}; the plan is of {list(self._page)}")
        done = decode(q[:, :, None], cache, **self._numbers, return_aux=return_aux)
        return (done[0][:, :, 0], done[1]) if return_aux else done[:, :, 0]
