"""transformers' attention interface: the kernels where they take a layer's scores, every score computed where they do not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from splash_attention import checks
from splash_attention.backends.torch import cuda, modified
from splash_attention.backends.torch.functional import check_tensors, to_one_width
from splash_attention.decoding import MOST_QUERIES
from splash_attention.distributed import context
from splash_attention.functional import splash_attention
from splash_attention.hugging_face.cache import Step
from splash_attention.hugging_face.head_order import in_kernel_order, in_model_order, scaled_queries
from splash_attention.hugging_face.masks import is_packed, is_positions, is_window, lengths_of, seen_keys, tables_of

try:  # some models do not pass output_attentions on: transformers collects what they ask for here
    from transformers.utils.output_capturing import _active_collector as _collector
except ImportError:  # before transformers had it
    _collector = None

_T5 = ("t5", "mt5", "umt5", "switch_transformers", "pop2piano")  # model types whose position_bias follows from head and distance
_MANY = 1 << 28  # probabilities of a layer: 1 GiB of float32
_observers: list[Callable[..., None]] = []  # (module, alpha, support [batch, heads, q_len], seen keys, bool)


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """transformers' attention interface. query: [batch, heads, q_len, head_dim]; key: [batch, kv_heads, kv_len, head_dim]; value:
    [batch, kv_heads, kv_len, value_dim]; attention_mask: what key_positions returned, or one's own [batch or 1, heads or 1, q_len,
    kv_len], bool, or real and added to the scores. key and value may be a Step, what a SplashCache returned. softcap, position_bias, s_aux
    (sinks) and sliding_window: as models of transformers pass them.
    others: cu_seq_lens_q and cu_seq_lens_k are lengths of packed sequences, beside their position_ids.

    Returns [batch, q_len, heads, value_dim], and with output_attentions the probabilities [batch, heads, q_len, kv_len], else None.
    What has no kernel yet (position_bias of models other than T5's, masks that are added) is computed from every score, and said once. Raises NotImplementedError for a mask of integers.
    Inside distributed.context_parallel query, key and value are a rank's tokens; what is not served there raises NotImplementedError.
    """
    if context.active():
        _check_sharded(module, key, attention_mask, sliding_window, position_bias, output_attentions, others)
    if isinstance(key, Step):
        modified_there = softcap is not None or s_aux is not None or (dropout > 0 and module.training)
        counted = _asks_for_attentions(output_attentions) or (bool(_observers) and not torch.compiler.is_compiling())
        if position_bias is not None or not getattr(module, "is_causal", True) or others.get("cu_seq_lens_q") is not None:
            name = type(module).__name__
            raise NotImplementedError(f"SplashCache serves causal attention without position_bias and packed sequences; {name} calls another")
        done = _step(module, key, query, attention_mask, scaling, modified_there or counted)
        if isinstance(done, Tensor):
            return in_model_order(done), None
        key, value, attention_mask = done
    check_tensors(query, key, value)
    checks.check_rank(query, key, value)
    if attention_mask is not None and not (
        is_positions(attention_mask) or is_window(attention_mask) or is_packed(attention_mask, 1)
        or attention_mask.dtype == torch.bool or attention_mask.is_floating_point()
    ):
        raise NotImplementedError(
            f"splash attention takes no mask of shape {list(attention_mask.shape)} and {str(attention_mask.dtype)[6:]}; pass the "
            "tokenizer's [batch, length], or [batch, 1, q_len, kv_len] of bool or real numbers"
        )
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    windowed = attention_mask is not None and is_window(attention_mask)
    causal = is_causal if attention_mask is None or windowed else False
    bias = position_bias
    if attention_mask is not None and attention_mask.is_floating_point():
        added = attention_mask[..., : key.shape[2]]
        bias, attention_mask = added if bias is None else bias + added, None
    dropout = dropout if module.training else 0.0
    output_attentions = _asks_for_attentions(output_attentions)
    call = {"scaling": scaling, "k_keep": _setting(module, "splash_k_keep", None), **heads_of(module)}
    modifications = {"softcap": softcap, "sinks": s_aux, "dropout": dropout}
    width = max(query.shape[3], value.shape[3])
    by_distance = position_bias is not None and bias is position_bias and _is_by_distance(module, position_bias)
    modified_there = softcap is not None or s_aux is not None or dropout > 0 or by_distance
    served = not (modified_there and query.is_cuda) or cuda.takes_modified(query.dtype, width, call["alpha"])
    why = [
        name
        for name, there in (
            ("soft caps, sinks, dropout and biases of such tensors", not served),
            ("an additive bias", bias is not None and not by_distance),
        )
        if there
    ]
    of_pairs = attention_mask is not None and not is_positions(attention_mask) and not (windowed and sliding_window)
    packed = None if output_attentions or by_distance or why else _packed_lengths(query, others, attention_mask, sliding_window)
    observed = bool(_observers) and not torch.compiler.is_compiling() and (attention_mask is not None or not packed)
    if packed:  # say what the mask of position_ids says
        told = attention_mask is not None and is_packed(attention_mask, sliding_window)  # which is causal, and has a window or none
        of_pairs, causal, windowed = False, told or is_causal, bool(sliding_window) and not (told and is_packed(attention_mask, None))
    for reason in why:
        modified.tell_once(reason)
    if why or output_attentions:
        mask = None if attention_mask is None else seen_keys(attention_mask, False, query, key.shape[2])
        if output_attentions:
            _say_size(query, key)
        out = modified_attention_of_heads(
            query, key, value, **call, **modifications, causal=bool(causal) and mask is None, mask=mask, bias=bias,
            return_probabilities=output_attentions or observed,
        )  # fmt: skip
        out, p = out if isinstance(out, tuple) else (out, None)
        support = (p > 0).sum(-1) if observed else None
    else:
        if of_pairs:
            modifications["mask"], causal, windowed = seen_keys(attention_mask, False, query, key.shape[2]), False, False
            tables = {}
        else:
            tables = packed or ({} if attention_mask is None else tables_of(attention_mask, query, key))
        call["window"] = sliding_window if windowed else None
        if by_distance:
            modifications |= {"bias": _distances_of(position_bias), "bias_first": 1 - key.shape[2]}
        given = map(_behind_one_another, (query, key, value)) if packed else (query, key, value)
        done = attention_of_heads(*given, **call, **modifications, causal=causal, return_support=observed, **tables)
        out, support = done if observed else (done, None)
        if packed:
            out, support = (None if x is None else x[0].unflatten(1, (query.shape[0], -1)).transpose(0, 1) for x in (out, support))
        p = None
    if observed:
        for observer in _observers:
            observer(module, call["alpha"], support, seen_keys(attention_mask, bool(causal), query, key.shape[2]))
    return in_model_order(out), p if output_attentions else None


def _check_sharded(
    module: torch.nn.Module, key: Any, mask: Tensor | None, window: int | None, position_bias: Tensor | None,
    output_attentions: bool | None, others: dict[str, Any],
) -> None:  # fmt: skip
    """What inside context_parallel would be of this rank's tokens alone."""
    why = {
        "SplashCache": isinstance(key, Step),
        "mask of one's own, nor a window that the layer does not name": mask is not None and not (is_window(mask) and window),
        "position_bias": position_bias is not None,
        "output_attentions": _asks_for_attentions(output_attentions),
        "cu_seq_lens_q (pass context_parallel cu_seqlens of the whole sequence)": others.get("cu_seq_lens_q") is not None,
        "counting supports": bool(_observers),
    }
    for name, there in why.items():
        if there:
            raise NotImplementedError(f"{type(module).__name__} inside context_parallel takes no {name}")


def _step(
    module: torch.nn.Module, step: Step, query: Tensor, mask: Tensor | None, scaling: float | None, more: bool
) -> Tensor | tuple[Tensor, Tensor, Tensor | None]:
    """Stores a step of a SplashCache and decodes it: [batch, heads, q_len, head_dim]. Where it asks for more than decode does: (key, value, mask)."""
    if not (mask is None or is_positions(mask)):
        raise NotImplementedError(f"SplashCache takes the tokenizer's attention_mask [batch, length], not one of shape {list(mask.shape)}")
    more = more or _setting(module, "splash_k_keep", None) is not None
    numbers = None if more else step.layer.numbers(query, scaling, **heads_of(module))
    step.store(mask)
    if numbers is not None and query.shape[2] <= MOST_QUERIES:
        return step.decode(query, mask, *numbers)
    return (step.k, step.v, mask) if step.layer.sequences.began else step.gather(mask)


def attention_of_heads(
    query: Tensor, key: Tensor, value: Tensor, *, alpha: Any = 1.5, factor: Any = 1.0, k_keep: int | Sequence[int] | None = None,
    scaling: float | None = None, return_support: bool = False, **call: Any,
) -> Any:  # fmt: skip
    """splash_attention with a factor of the scale and a k_keep for each head.

    query: [batch, heads, q_len, head_dim]; key: [batch, kv_heads, kv_len, head_dim]; value: so, of any width. factor: of scaling (None:
    1/√head_dim), a number, or a list or float32 tensor of heads entries, differentiable: by it the queries are multiplied, in float32,
    and rounded to their dtype once more. k_keep: a number, or a list of heads entries, where 0 keeps all. call: what splash_attention
    takes besides. Returns out, of value's width; with return_support (out, support [batch, heads, q_len]). Raises as splash_attention
    does.
    """
    query, scaling, k_keep = _of_heads(query, factor, scaling, k_keep)
    width, head_dim = value.shape[-1], query.shape[-1]
    if width > head_dim:
        scaling = checks.check_scale(scaling) or head_dim**-0.5
    query, key, value = map(in_kernel_order, to_one_width(query, key, value))
    sharded = context.active()
    attend = sharded.attend if sharded else splash_attention
    done = attend(query, key, value, alpha=alpha, scale=scaling, k_keep=k_keep, return_aux=return_support, **call)
    out = done[0] if return_support else done
    out = out[..., :width] if width < head_dim else out
    return (out, done[1].support) if return_support else out


def modified_attention_of_heads(
    query: Tensor, key: Tensor, value: Tensor, *, alpha: Any = 1.5, factor: Any = 1.0, k_keep: int | Sequence[int] | None = None,
    scaling: float | None = None, **call: Any,
) -> Any:  # fmt: skip
    """modified.attention with a factor of the scale and a k_keep for each head, as attention_of_heads. call: what it takes besides."""
    query, scaling, k_keep = _of_heads(query, factor, scaling, k_keep)
    return modified.attention(query, key, value, alpha=alpha, scale=scaling, k_keep=k_keep, **call)


def _of_heads(query: Tensor, factor: Any, scaling: float | None, k_keep: Any) -> tuple[Tensor, float | None, Any]:
    """(query, scaling, k_keep), with the factor in one of the first two."""
    if isinstance(factor, (list, tuple)) and len(set(factor)) == 1:
        factor = factor[0]
    if isinstance(factor, (int, float)):
        if factor != 1:  # what is passed on as it came, splash_attention checks
            scaling = factor * (checks.check_scale(scaling) or query.shape[-1] ** -0.5)
    else:
        given = factor if isinstance(factor, Tensor) else torch.tensor(factor, dtype=torch.float32, device=query.device)
        factors = given.reshape(-1)
        if factors.numel() not in (1, query.shape[1]):
            raise ValueError(f"factor has {factors.numel()} entries; allowed: 1, or {query.shape[1]} (one a query head)")
        query = scaled_queries(query, factors)
    if isinstance(k_keep, (list, tuple)):
        if len(k_keep) != query.shape[1]:
            raise ValueError(f"k_keep has {len(k_keep)} entries; allowed: 1, or {query.shape[1]} (one a query head)")
        if len(set(k_keep)) == 1:  # a number keeps the fastest path
            k_keep = k_keep[0] or None
    return query, scaling, k_keep


def _is_by_distance(module: torch.nn.Module, bias: Tensor) -> bool:
    return getattr(getattr(module, "config", None), "model_type", None) in _T5 and bias.shape[0] == 1


def _distances_of(bias: Tensor) -> Tensor:
    """[heads, q_len + kv_len - 1], of a bias [1, heads, q_len, kv_len] by distance: its first column from the last query up, then its
    first row."""
    return torch.cat([bias[0, :, 1:, 0].flip(-1), bias[0, :, 0]], -1)


def heads_of(module: torch.nn.Module) -> dict[str, Any]:
    """alpha and factor of a layer: learned ones, else its settings."""
    learned = getattr(module, "splash_heads", None)
    if learned is not None:
        return {"alpha": learned.alpha, "factor": learned.factor}
    return {"alpha": _setting(module, "splash_alpha", 1.5), "factor": _setting(module, "splash_factor", 1.0)}


def apply(model: Any, method: Any) -> None:
    """The attention of every layer from here on: method, a splash_attention.language.Method or the name of its file."""
    from splash_attention.language import Method, apply

    apply(model, Method.read(method) if isinstance(method, (str, Path)) else method)


def _setting(module: torch.nn.Module, name: str, otherwise: Any) -> Any:
    own = getattr(module, name, None)
    return getattr(getattr(module, "config", None), name, otherwise) if own is None else own


def _packed_lengths(
    query: Tensor, others: dict[str, Any], mask: Tensor | None, window: int | None
) -> dict[str, Tensor] | None:
    """cu_seqlens of packed sequences, as DataCollatorWithFlattening(return_flash_attn_kwargs=True) gives them or the mask of position_ids
    has them; None where there are none."""
    given = others.get("cu_seq_lens_q"), others.get("cu_seq_lens_k")
    if query.shape[0] == 1 and given[0] is not None and given[1] is not None:
        return {"cu_seqlens_q": given[0], "cu_seqlens_k": given[1]}
    if mask is None or not is_packed(mask, window):
        return None
    lengths = lengths_of(mask)
    return {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths}


def _behind_one_another(tensor: Tensor) -> Tensor:
    """The batch's entries as one: [1, heads, batch·length, dim]."""
    return tensor if tensor.shape[0] == 1 else tensor.transpose(0, 1).flatten(1, 2)[None]


def _asks_for_attentions(output_attentions: bool | None) -> bool:
    if output_attentions is not None or _collector is None or torch.compiler.is_compiling():
        return bool(output_attentions)
    return any(name.endswith("attentions") for name in _collector.get() or ())


def _say_size(query: Tensor, key: Tensor) -> None:
    entries = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    if not torch.compiler.is_compiling() and entries > _MANY:
        warnings.warn(
            f"output_attentions=True makes a dense matrix of {entries} probabilities ({entries * query.element_size() / 2**30:.1f} GiB) "
            "of each layer; splash_attention(..., return_aux=True) gives them sparse",
            stacklevel=3,
        )
