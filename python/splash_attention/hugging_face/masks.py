"""transformers' masks as the kernels take them, or as boolean tensors."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Sequence

import torch
from torch import Tensor
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from splash_attention.decoding import MOST_QUERIES
from splash_attention.distributed import context

_ANOTHER_MASK = (
    "this compiled graph takes causal masks and padding; this mask (packed sequences, or one of your own) is another: set "
    "config.splash_any_mask to True before you compile, or do not compile"
)

# Not a context variable: Dynamo of PyTorch 2.11 traces none, and threads of autograd have contexts of their own.
_whole: list[None] = []


@contextlib.contextmanager
def whole_sequences() -> Iterator[None]:
    """Inside, a batch is of whole sequences, neither packed nor padded: for who captures a CUDA graph. There transformers cannot look
    whether they are packed, and takes them for it."""
    _whole.append(None)
    try:
        yield
    finally:
        _whole.pop()


def key_positions(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor | None:
    """transformers' mask interface: None where the model's own causality says all; where each key is seen by a query and by all behind
    it, as in causal masks with any padding, the first query that sees it (q_length for none), int32 [batch, 1, 1, kv_len]; for a sliding
    window the first query that sees each key and the first behind it that no longer does, int32 [1, 1, 2, kv_len], and where there is
    padding a third row, 1 for keys that are none, [batch, 1, 3, kv_len]; for packed sequences the same two rows, a row of ones and the first key of each
    key's sequence, [batch, 1, 4, kv_len], [batch, 1, 5, kv_len] where a window hides more; else (masks of one's own) bool [batch, 1, q_len, kv_len]. What has
    four dimensions, transformers passes on as it is.
    Inside distributed.context_parallel the mask is that of the whole sequence: causality, cu_seqlens of the context, and a layer's window.
    Raises RuntimeError where a graph that was compiled without splash_any_mask meets packed sequences, NotImplementedError inside
    context_parallel for padding and masks of one's own.
    """
    window, config = others.get("local_size"), others.get("config")
    if context.active() or _whole:
        return _of_whole_sequences(q_length, kv_length, window, config, attention_mask, device, others)
    compiling = torch.compiler.is_compiling()
    # As few tokens as a step of decoding has wait for nothing.
    if attention_mask is not None and q_length == kv_length == attention_mask.shape[-1] > MOST_QUERIES and hides_nothing(attention_mask):
        attention_mask = None
    # A chunk is a local size, too. transformers lets a mask be skipped where nothing is added to it.
    if "allow_is_causal_skip" not in others or getattr(config, "sliding_window", None) != window:
        window = None
    both_sides = "allow_is_bidirectional_skip" in others
    alone = bool(others.get("allow_is_bidirectional_skip" if both_sides else "allow_is_causal_skip")) and not others.get("use_vmap")
    causal = mask_function is causal_mask_function
    if attention_mask is None and mask_function is bidirectional_mask_function:
        return None
    aligned = (window is not None or causal) and _ends_meet(q_offset + q_length, kv_offset + kv_length, compiling)
    if window is not None and not both_sides and aligned and alone and kv_length <= window:
        causal = True  # the window hides nothing
    if attention_mask is None and causal and aligned:
        return None
    device = device if attention_mask is None else attention_mask.device
    present = None if attention_mask is None else _padding(attention_mask, kv_length)
    if causal or mask_function is bidirectional_mask_function:
        keys = torch.arange(kv_length, device=device)
        first = (keys + (kv_offset - q_offset)).clamp(0, q_length)
        first = (first if causal else 0 * keys).repeat(batch_size, 1)
        return _positions(first if present is None else first.masked_fill(~present, q_length))
    if window is not None and aligned and alone:
        return _window(q_length, kv_length, window, both_sides, present, device)
    mask = sdpa_mask(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, device=device,
        **{**others, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False, "allow_torch_fix": False},
    )  # fmt: skip
    # What a compiler traces has no values yet, and without a mask and a cache transformers takes every model for packed sequences there.
    if compiling and getattr(config, "splash_any_mask", False):
        return mask
    if compiling and others.get("local_size") is not None and (not aligned or present is not None or others.get("use_vmap")):
        return mask
    if aligned and window is not None:
        form = _window(q_length, kv_length, window, both_sides, present, device)
    else:
        seen = mask[:, 0]
        form = _positions(torch.where(seen.any(1), seen.to(torch.uint8).argmax(1), q_length))
    served = (mask == _seen(form, q_length)).all()
    if compiling or type(served) is not Tensor or served.is_meta:
        torch._assert_async(served, _ANOTHER_MASK)
    elif not served:
        return mask if both_sides else _packed(mask, others.get("local_size"))
    return form


def _of_whole_sequences(
    q_length: int, kv_length: int, window: int | None, config: Any, attention_mask: Tensor | None, device: torch.device | str,
    others: dict[str, Any],
) -> Tensor | None:  # fmt: skip
    """Of a rank's tokens, or inside whole_sequences. A rank's position_ids leap from chunk to chunk, which transformers takes for packed
    sequences."""
    inside, packed = ("context_parallel", ", or packed ones by cu_seqlens") if context.active() else ("whole_sequences", "")
    if attention_mask is not None and not bool(attention_mask.all()):
        raise NotImplementedError(f"{inside} takes no padding in attention_mask; pass whole sequences" + packed)
    chunked = window is not None and getattr(config, "sliding_window", None) != window
    if others.get("use_vmap") or chunked or (window is not None and "allow_is_bidirectional_skip" in others):
        raise NotImplementedError(f"{inside} takes causal masks, sliding windows and bidirectional layers; this model's mask is another")
    return None if window is None else _window(q_length, kv_length, window, False, None, device)


def is_positions(mask: Tensor) -> bool:
    """Whether key_positions made it so, in the kernels' form without a window."""
    return mask.dtype == torch.int32 and tuple(mask.shape[1:3]) == (1, 1)


def is_window(mask: Tensor) -> bool:
    """Whether key_positions made it so, for a sliding window."""
    return mask.dtype == torch.int32 and mask.shape[1] == 1 and mask.shape[2] in (2, 3)


def is_packed(mask: Tensor, window: int | None) -> bool:
    """Whether key_positions made it so, for packed sequences. window: of the layer; a mask with one is the layer's only if it has one, too."""
    return mask.dtype == torch.int32 and mask.shape[1] == 1 and (mask.shape[2] == 4 or mask.shape[2] == 5 and bool(window))


def lengths_of(mask: Tensor) -> Tensor:
    """cu_seqlens of packed sequences, of the batch's entries behind one another, int32 [sequences + 1]. To find them waits for a GPU; the
    layers share a mask, which keeps them."""
    lengths = getattr(mask, "_splash_lengths", None)
    if lengths is None:
        starts = mask[:, 0, 3] == torch.arange(mask.shape[3], device=mask.device)
        lengths = torch.nn.functional.pad(starts.flatten().nonzero()[:, 0], (0, 1), value=starts.numel()).to(torch.int32)
        mask._splash_lengths = lengths  # type: ignore[attr-defined]
    return lengths


def packed_lengths(mask: Tensor | None) -> tuple[int, ...]:
    """lengths_of as numbers; () where the mask is none of packed sequences, or hides more by a window. The layers share it, as lengths_of."""
    if mask is None or not is_packed(mask, None):
        return ()
    numbers = getattr(mask, "_splash_packed_lengths", None)
    if numbers is None:
        numbers = mask._splash_packed_lengths = tuple(lengths_of(mask).tolist())  # type: ignore[attr-defined]
    return numbers


def packed_by(lengths: Sequence[int], device: torch.device | str) -> Tensor:
    """The mask of key_positions for one text of packed sequences, of its cu_seqlens: [1, 1, 4, kv_len]."""
    ends = torch.tensor(lengths, dtype=torch.int32, device=device)
    first, last = (some.repeat_interleave(ends.diff()) for some in (ends[:-1], ends[1:]))
    mask = torch.stack([torch.arange(first.numel(), dtype=torch.int32, device=device), last, torch.ones_like(first), first])[None, None]
    mask._splash_packed_lengths = tuple(sorted(set(lengths)))  # type: ignore[attr-defined]  # without those of no token
    return mask


def left_padding(mask: Tensor, q_len: int) -> tuple[int, ...] | None:
    """How many keys are hidden before each sequence of the batch, of a mask of key_positions for q_len queries whose ends meet the keys'.
    None where a mask hides something else (padding elsewhere, a whole sequence), or cannot tell yet. To find it waits for a GPU; the layers
    share a mask, which keeps it."""
    if not is_positions(mask) or not _is_known(mask):
        return None
    counts = getattr(mask, "_splash_left_padding", None)
    if counts is None:
        counts = mask._splash_left_padding = _left_padding(mask, q_len)  # type: ignore[attr-defined]
    return None if -1 in counts else counts


def _left_padding(mask: Tensor, q_len: int) -> tuple[int, ...]:
    """Of each sequence, -1 where it is something else."""
    first, keys = mask[:, 0, 0], torch.arange(mask.shape[3], device=mask.device)
    hidden = (first >= q_len).sum(-1, keepdim=True)
    wanted = torch.where(keys < hidden, q_len, (keys - (keys.numel() - q_len)).clamp(min=0))
    fits = (first == wanted).all(-1) & (hidden[:, 0] < keys.numel())
    return tuple(torch.where(fits, hidden[:, 0], -1).tolist())


def tables_of(mask: Tensor, q: Tensor, k: Tensor) -> dict[str, Tensor]:
    """The positions that splash_attention takes, of a mask in the kernels' form; with a window only those of padding."""
    if is_positions(mask):
        return {"q_positions": torch.arange(q.shape[2], device=q.device), "k_positions": mask[:, 0, 0, : k.shape[2]]}
    if mask.shape[2] == 2:
        return {}
    hidden = 1 - mask[:, 0, 2, : k.shape[2]]
    return {"q_positions": torch.zeros(q.shape[2], dtype=torch.int32, device=q.device), "k_positions": hidden}


def seen_keys(mask: Tensor | None, causal: bool, q: Tensor, kv_len: int) -> Tensor:
    """bool, broadcasts to [batch, q_heads, q_len, kv_len]: the keys that each query sees. mask: of key_positions, or bool."""
    if mask is not None:
        return mask[..., :kv_len] if mask.dtype == torch.bool else _seen(mask[..., :kv_len], q.shape[2])
    rows, keys = torch.arange(q.shape[2], device=q.device)[:, None], torch.arange(kv_len, device=q.device)
    return (keys <= rows + (kv_len - q.shape[2]) if causal else keys.expand(q.shape[2], -1) >= 0)[None, None]


def _seen(form: Tensor, q_length: int) -> Tensor:
    """Of a mask in the kernels' form: bool [batch or 1, 1, q_len, kv_len]."""
    rows = torch.arange(q_length, device=form.device)[:, None]
    seen = form[:, :, :1] <= rows
    if form.shape[2] > 1:
        seen = seen & (rows < form[:, :, 1:2])
    return seen & (form[:, :, 2:3] > 0) if form.shape[2] > 2 else seen


def _ends_meet(q_end: Any, kv_end: Any, compiling: bool) -> bool:
    """Whether the last query's place is the last key's; unknown is no."""
    return not (compiling and isinstance(q_end, Tensor)) and bool(q_end == kv_end)


def _positions(first: Tensor) -> Tensor:
    """int32, which tells them from a mask of the user's, which transformers passes on as it is."""
    return first.to(torch.int32)[:, None, None, :]


def _window(
    q_length: int, kv_length: int, window: int, both_sides: bool, present: Tensor | None, device: torch.device | str
) -> Tensor:
    """Of queries whose ends meet the keys'. window: keys that a query sees, or, to both sides, that it sees on each beside the one at its
    place. present: [batch, kv_len], False where there is padding."""
    place = torch.arange(q_length - kv_length, q_length, dtype=torch.int32, device=device)
    form = torch.stack([place - window, place + window + 1] if both_sides else [place, place + window]).clamp(0, q_length)[None]
    if present is not None:
        form = torch.cat([form.expand(present.shape[0], -1, -1), present[:, None].to(torch.int32)], 1)
    return form[:, None]


def _packed(mask: Tensor, window: int | None) -> Tensor:
    """A causal mask of packed sequences in the kernels' form; what is none as it is. mask: bool [batch, 1, q_len, kv_len]."""
    batch, _, q_length, kv_length = mask.shape
    if q_length != kv_length:
        return mask
    places = torch.arange(kv_length, dtype=torch.int32, device=mask.device)
    goes_on = torch.nn.functional.pad(mask[:, 0].diagonal(-1, 1, 2), (1, 0))  # whether a query sees the key before its own
    first = torch.where(goes_on, 0, places).cummax(1).values  # of its sequence
    begins = torch.nn.functional.pad(~goes_on[:, 1:], (0, 1), value=True)
    end = torch.where(begins, places + 1, kv_length).flip(1).cummin(1).values.flip(1)
    last = end if window is None else end.minimum(places + window)
    rows = [places.expand(batch, -1), last, torch.ones_like(first), first]
    if bool((last < end).any()):
        rows.append(first)
    form = torch.stack(rows, 1).to(torch.int32)[:, None]
    return form if bool((mask == _seen(form, q_length)).all()) else mask


def hides_nothing(attention_mask: Tensor) -> bool:
    """Whether tokens are all there, as a tokenizer says of one text. Such a call takes the kernels of a call without a mask: positions would
    keep it off a GPU's fast path. A GPU is waited for, as transformers itself does under SDPA; False where that is not possible."""
    return _is_known(attention_mask) and bool(attention_mask.to(torch.bool).all())


def _is_known(mask: Tensor) -> bool:
    """Whether its values can be waited for."""
    known = type(mask) is Tensor and not mask.is_meta and not torch.compiler.is_compiling()
    return known and not (mask.is_cuda and torch.cuda.is_current_stream_capturing())


def _padding(attention_mask: Tensor, kv_length: int) -> Tensor:
    """[batch, kv_length], False where there is padding or nothing yet."""
    mask = attention_mask[:, -kv_length:].to(torch.bool)
    missing = kv_length - mask.shape[1]
    return torch.nn.functional.pad(mask, (0, missing)) if missing else mask
