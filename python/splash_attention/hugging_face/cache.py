"""A cache of transformers whose steps decode: SplashCache. Its layers keep keys and values in pages of a PagedCache.

update() of a layer returns the new keys and values alone, as a Step, and the model hands it to attention_forward. That stores
them, without padding, and decodes, or attends as without this cache where it was empty or decode does not serve the call. So no
step has a mask or a tensor as long as the text.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import cache_utils

from splash_attention.checks import check_scale
from splash_attention.decoding import ALPHAS, SCALES, PagedCache, decode, of_heads, stored_width

_FIRST_CAPACITY = 1024  # of a cache that grows


class Step:
    """What a call brings to one layer, in the places of its keys and values. k, v: [batch, kv_heads, n, head_dim]."""

    def __init__(self, layer: SplashLayer, k: Tensor, v: Tensor) -> None:
        self.layer, self.k, self.v, self.stored = layer, k, v, False

    def __getattr__(self, name: str) -> Any:
        raise TypeError(
            'SplashCache serves models under attn_implementation="splash" or "splash-kascade" that hand keys and values to attention as the '
            "cache returns them"
        )

    def store(self, mask: Tensor | None) -> None:
        """mask: of key_positions for these n tokens alone."""
        if self.stored:
            return  # layers that share keys
        self.stored = True
        layer, k, v = self.layer, self.k.detach(), self.v.detach()
        sequences, n = layer.sequences, k.shape[2]
        present = None if mask is None or (n == 1 and not layer.first) else mask[:, 0, 0] < n
        if layer.first:
            sequences.advance(n, present)
        if present is not None and n > 1:  # those of padding last: the next tokens lie over them
            k, v = (_in_order(rows, (~present).to(torch.uint8).argsort(dim=1, stable=True)) for rows in (k, v))
        layer.fit()
        layer.paged.write(k, v, sequences.before)

    def refuse_gradients(self, query: Tensor) -> None:
        if torch.is_grad_enabled() and query.requires_grad:
            raise RuntimeError("decoding has no gradients: call the model under torch.no_grad(), or train it without SplashCache")

    def decode(self, query: Tensor, mask: Tensor | None, alpha: Tensor, scale: Tensor) -> Tensor:
        """Of stored tokens. query: [batch, heads, n, head_dim], n at most 16."""
        self.refuse_gradients(query)
        return self.with_padding_first(query, mask, lambda ordered: decode(ordered, self.layer.paged, alpha=alpha, scale=scale))

    @staticmethod
    def with_padding_first(query: Tensor, mask: Tensor | None, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """attend() of queries whose last one is that of the last key, in the order of `query` again. mask: of key_positions for these alone."""
        if mask is None or query.shape[2] == 1:
            return attend(query)
        order = (mask[:, 0, 0] < query.shape[2]).to(torch.uint8).argsort(dim=1, stable=True)
        return _in_order(attend(_in_order(query, order)), order.argsort(dim=1))

    def gather(self, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """All keys and values of stored tokens, [batch, kv_heads, kv_len, head_dim], and a mask of these n queries as key_positions makes it."""
        sequences, paged, n = self.layer.sequences, self.layer.paged, self.k.shape[2]
        kv_len = sequences.columns_held()
        pages = paged.block_table[:, : -(-kv_len // paged.page_size)].long()
        k, v = (pool[pages].flatten(1, 2)[:, :kv_len, :, : paged.head_dim].transpose(1, 2) for pool in (paged.keys, paged.values))
        if not (sequences.padded or torch.compiler.is_compiling()):
            return k, v, None
        new = torch.ones_like(self.k[:, 0, :, 0], dtype=torch.int64) if mask is None else (mask[:, 0, 0] < n).long()
        sees = sequences.before[:, None] + new.cumsum(1)  # keys that each query sees: they lie in order
        places = torch.arange(kv_len, device=k.device).expand(k.shape[0], -1).contiguous()
        return k, v, torch.searchsorted(sees, places, right=True).to(torch.int32)[:, None, None]


    def gather_with_padding_first(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """gather(), but all sequences end together, as a batch that is padded on the left, and so do their queries (with_padding_first)."""
        k, v, mask = self.gather(None)
        if mask is None:
            return k, v, None
        lengths, n = self.layer.sequences.lengths[:, None], self.k.shape[2]
        places = torch.arange(k.shape[2], device=k.device) - (k.shape[2] - lengths)  # below 0: padding
        k, v = (_in_order(one, places.clamp(min=0)) for one in (k, v))
        first = torch.where(places < 0, n, (places - lengths + n).clamp(min=0))
        return k, v, first.to(torch.int32)[:, None, None]


class Sequences:
    """What the layers of a SplashCache share: the page table, and lengths, which the first layer of a call advances.

    columns: tokens of each sequence with padding, as transformers counts; lengths: without. Both are on the device; `host` are the
    columns as far as calls outside of compiled and captured graphs tell. began: whether nothing was there before the last call.
    """

    def __init__(self, capacity: int | None, page_size: int) -> None:
        self.capacity, self.page_size, self.table = capacity, page_size, None
        self.empty, self.began, self.padded, self.host = True, False, False, 0
        self.first_capacity = capacity or _FIRST_CAPACITY

    def begin(self, batch: int, device: torch.device) -> None:
        width = -(-self.first_capacity // self.page_size)
        self.table = torch.arange(batch * width, dtype=torch.int32, device=device).view(batch, width)
        self.lengths, self.before = (torch.zeros(batch, dtype=torch.int32, device=device) for _ in range(2))
        self.columns = torch.zeros((), dtype=torch.int64, device=device)
        self.seen = torch.ones(batch, width * self.page_size, dtype=torch.bool, device=device)  # columns that are no padding
        _keep_addresses(self.table, self.lengths, self.before, self.columns, self.seen)

    def advance(self, n: int, present: Tensor | None) -> None:
        """present: bool [batch, n]; None, or where it is False there is padding."""
        if torch.compiler.is_compiling() and self.capacity is None:
            raise RuntimeError("a compiled step needs a cache that does not grow: give SplashCache max_cache_len")
        if not _traced(self.lengths):
            if self.capacity is not None and self.host + n > self.capacity:
                raise ValueError(f"max_cache_len is {self.capacity}; this call needs room for {self.host + n} tokens of each sequence")
            self.host += n
            self._grow(self.host)
        self.began, self.empty = self.empty, False
        self.padded = self.padded or present is not None
        self.before.copy_(self.lengths)
        if present is None:
            self.lengths.add_(n)
        else:
            self.lengths.add_(present.sum(1))
            self.seen.index_copy_(1, self.columns + torch.arange(n, device=present.device), present.expand(self.seen.shape[0], -1))
        self.columns.add_(n)

    def _grow(self, columns: int) -> None:
        batch, width = self.table.shape
        more = width
        while (width + more) * self.page_size < columns:
            more *= 2
        if columns > width * self.page_size:
            new = torch.arange(batch * width, batch * (width + more), dtype=torch.int32, device=self.table.device).view(batch, more)
            self.table = torch.cat([self.table, new], 1)
            self.seen = torch.nn.functional.pad(self.seen, (0, more * self.page_size), value=True)

    def columns_held(self) -> int:
        """Waits for the device outside of compiled graphs, where it is the table's width."""
        if torch.compiler.is_compiling():
            return self.table.shape[1] * self.page_size
        self.host = int(self.columns)
        return self.host

    def crop(self, n: int) -> None:
        self.host = max(self.host - n, 0)
        self.columns.sub_(n).clamp_(min=0)
        if self.padded:
            kept = torch.arange(self.seen.shape[1], device=self.seen.device) < self.columns
            self.lengths.copy_((self.seen & kept).sum(1))
            self.seen.logical_or_(~kept)
        else:
            self.lengths.sub_(n).clamp_(min=0)

    def reset(self) -> None:
        self.crop(self.table.shape[1] * self.page_size)
        self.empty, self.padded, self.host = True, False, 0

    def take(self, indices: Tensor) -> None:
        """The sequences `indices` in the place of these. Of as many as before the tensors keep their addresses."""
        if indices.numel() == self.lengths.numel():
            for tensor in (self.lengths, self.before, self.seen):
                tensor.copy_(tensor[indices])
        else:
            self.lengths, self.before, self.seen = self.lengths[indices], self.before[indices], self.seen[indices]
            width = self.table.shape[1]
            self.table = torch.arange(indices.numel() * width, dtype=torch.int32, device=indices.device).view(-1, width)


class SplashLayer(cache_utils.CacheLayerMixin):
    """One layer of full attention. It holds `paged`, a PagedCache, in the place of keys and values."""

    is_sliding, is_croppable = False, True

    def __init__(self, sequences: Sequences, first: bool, bits: int) -> None:
        super().__init__()
        self.sequences, self.first, self.bits = sequences, first, bits
        self.is_compileable = sequences.capacity is not None
        self._constants: dict[tuple[Any, ...], Tensor] = {}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, kv_heads, _, head_dim = key_states.shape
        if value_states.shape[3] != head_dim:
            raise NotImplementedError(
                f"SplashCache takes keys and values of one head_dim, not of {head_dim} and {value_states.shape[3]} (v_head_dim)"
            )
        if self.sequences.table is None:
            self.sequences.begin(batch, key_states.device)
        self.head_dim = head_dim
        pages = (self.sequences.table.numel(), self.sequences.page_size, kv_heads, stored_width(head_dim, key_states.device))
        pools = (torch.zeros(pages, dtype=key_states.dtype, device=key_states.device) for _ in range(2))
        self.batch_size, self.device, self.is_initialized = batch, key_states.device, True
        self._page(*pools)

    def _page(self, keys: Tensor, values: Tensor) -> None:
        self.paged = PagedCache(keys, values, self.sequences.table, self.sequences.lengths, bits=self.bits, head_dim=self.head_dim)
        _keep_addresses(keys, values, *(one for one in (self.paged.low_bit, self.paged.broad, self.paged.recent) if one is not None))

    def update(self, key_states: Tensor, value_states: Tensor, *others: Any, **named: Any) -> tuple[Any, Any]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if key_states.shape[0] != self.batch_size:
            raise ValueError(f"the cache is of {self.batch_size} sequences, this call of {key_states.shape[0]}; a new batch needs a cache of its own")
        step = Step(self, key_states, value_states)
        return step, step

    def fit(self) -> None:
        """Pages for a table that has grown."""
        if self.sequences.table is not self.paged.block_table:
            keys, values = self.paged.keys, self.paged.values
            missing = self.sequences.table.numel() - keys.shape[0]
            self._page(*(torch.cat([pool, pool.new_zeros((missing, *pool.shape[1:]))]) for pool in (keys, values)))
            self.paged.fill(most_pages=self.sequences.table.shape[1])

    def take(self, indices: Tensor, table: Tensor) -> None:
        """Sequences.take's, of this layer; table: before it."""
        if not self.is_initialized:
            return
        pools = [pool[table[indices].flatten().long()] for pool in (self.paged.keys, self.paged.values)]
        if indices.numel() == self.batch_size:
            for pool, taken in zip((self.paged.keys, self.paged.values), pools):
                pool[table.flatten().long()] = taken
        else:
            self._page(*pools)
            self.batch_size = indices.numel()
        self.paged.fill()

    def numbers(self, query: Tensor, scaling: float | None, alpha: Any, factor: Any) -> tuple[Tensor, Tensor]:
        """alpha and scale, float32 [1] or [heads] on the device. Of numbers they are made once, in the first call that is neither
        compiled nor captured, so that a step copies nothing to the device."""
        scaling = check_scale(scaling) or query.shape[3] ** -0.5
        scale = [scaling * one for one in factor] if isinstance(factor, (list, tuple)) else scaling * factor
        return self._on_device("alpha", alpha, query, ALPHAS), self._on_device("scale", scale, query, SCALES)

    def _on_device(self, name: str, value: Any, query: Tensor, allowed: tuple[float, float]) -> Tensor:
        if isinstance(value, Tensor):
            return of_heads(name, value, query.shape[1], query.device, *allowed)
        key = (name, *value) if isinstance(value, (list, tuple)) else (name, value)
        if key in self._constants:
            return self._constants[key]
        made = of_heads(name, value, query.shape[1], query.device, *allowed)
        if not _traced(query):
            self._constants[key] = made
        return made

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0  # a mask is of the new tokens alone

    def get_seq_length(self) -> Any:
        return self.sequences.columns if self.is_initialized else 0

    def get_max_length(self) -> int:
        return -1 if self.sequences.capacity is None else self.sequences.capacity


def as_argument(model: Any, cache: Any) -> dict[str, Any]:
    """The cache by the name under which the model takes it: cache, in transformers before 5.24 past_key_values."""
    return {"cache" if "cache" in signature(model.forward).parameters else "past_key_values": cache}


class SplashCache(cache_utils.Cache):
    """A cache for `generate` and `forward` of models under attn_implementation="splash", whose steps decode exactly over pages. Under
    "splash-kascade" (kascade.apply) its steps choose and reuse keys in the pages.

        cache = SplashCache(model.config, max_cache_len=4096)
        model.generate(**inputs, cache=cache)  # past_key_values= in older versions

    config: of the model. max_cache_len: tokens of a sequence, with padding; tensors keep their shapes and addresses, so that a step can
    be compiled or captured in a CUDA graph, which neither waits for the device nor copies to it; ValueError beyond. None: it grows.
    bits: 4 or 8 for low-bit copies of full pages, 0 for none. page_size: 16, 32, 64, 128 or 256 keys.

    All layers run in every call. Up to 16 new tokens per call are decoded, without gradients; more attend to all keys, gathered from
    the pages. So do layers with soft caps, sinks, k_keep or output_attentions. Layers of other kinds (sliding_attention,
    chunked_attention, …) keep transformers' own caches. Padding is what attention_mask [batch, length] hides when a token comes; it is
    not stored. On a GPU the model is bfloat16 or float16, of head_dim up to 256 (keys are stored 64, 128 or 256 wide), else the first call
    raises NotImplementedError; so does the constructor for encoder-decoders, and attention for models under another attn_implementation
    raises TypeError.
    """

    def __init__(self, config: Any, max_cache_len: int | None = None, *, bits: int = 4, page_size: int = 64) -> None:
        if not hasattr(cache_utils.Cache, "get_query_offset"):
            raise ImportError("SplashCache needs a newer transformers, one whose Cache has get_query_offset")
        config = config.get_text_config(decoder=True)
        if getattr(config, "is_encoder_decoder", False):
            raise NotImplementedError("SplashCache serves decoders; is_encoder_decoder is True")
        if max_cache_len is not None and max_cache_len < 1:
            raise ValueError(f"max_cache_len is {max_cache_len}; it must be at least 1")
        types, named = cache_utils.get_layer_types_and_kwargs(config)
        if isinstance(named, dict):  # of all layers, before transformers 5.19
            named = [named] * len(types)
        others = cache_utils.DYNAMIC_LAYER_TYPE_MAPPING if max_cache_len is None else cache_utils.STATIC_LAYER_TYPE_MAPPING
        size = {} if max_cache_len is None else {"max_cache_len": max_cache_len}
        self.sequences, layers = Sequences(max_cache_len, page_size), []
        first = True
        for kind, arguments in zip(types, named):
            if kind == "full_attention":
                layers.append(SplashLayer(self.sequences, first, bits))
                first = False
            else:
                layers.append(others[kind](**size, **arguments))
        super().__init__(layers=layers)

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        of_pages = layer_idx < len(self.layers) and isinstance(self.layers[layer_idx], SplashLayer)
        return 0 if of_pages else super().get_query_offset(layer_idx)

    def reset(self) -> None:
        """Forgets all tokens; tensors stay."""
        if self.sequences.table is not None:
            self.sequences.reset()
        self._others("reset")

    def crop(self, tokens_to_remove: int) -> None:
        """Drops the last -tokens_to_remove tokens of every sequence, for example rejected drafts."""
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove is {int(tokens_to_remove)}; it must be 0, or minus the number of tokens to drop")
        if self.sequences.table is not None:
            self.sequences.crop(-int(tokens_to_remove))
        self._others("crop", tokens_to_remove)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search's: copies the pages of every sequence."""
        self._take(beam_idx)
        self._others("reorder_cache", beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.sequences.table is not None:
            self._take(torch.arange(self.sequences.lengths.numel(), device=self.sequences.lengths.device)[indices])
        self._others("batch_select_indices", indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.sequences.table is not None:
            self._take(torch.arange(self.sequences.lengths.numel(), device=self.sequences.lengths.device).repeat_interleave(repeats))
        self._others("batch_repeat_interleave", repeats)

    def _take(self, indices: Tensor) -> None:
        if self.sequences.table is None:
            return
        indices, table = indices.to(self.sequences.lengths.device), self.sequences.table
        self.sequences.take(indices)
        for layer in self.layers:
            if isinstance(layer, SplashLayer):
                layer.take(indices, table)

    def _others(self, name: str, *arguments: Any) -> None:
        for layer in self.layers:
            if not isinstance(layer, SplashLayer):
                getattr(layer, name)(*arguments)


def _in_order(rows: Tensor, order: Tensor) -> Tensor:
    """rows: [batch, heads, n, dim]; order: [batch or 1, n]."""
    return rows.gather(2, order[:, None, :, None].expand(rows.shape[0], rows.shape[1], -1, rows.shape[3]))


def _traced(tensor: Tensor) -> bool:
    """Whether this call is compiled or captured: what it does will be done again without the host."""
    return torch.compiler.is_compiling() or (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _keep_addresses(*tensors: Tensor) -> None:
    """Tells torch.compile, whose CUDA graphs change them in place."""
    if not torch.compiler.is_compiling():
        for tensor in tensors:
            torch._dynamo.mark_static_address(tensor)
