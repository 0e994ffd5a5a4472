"""What passes through a model's attention layers and around them, told call by call; the model computes what it always does."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


@contextlib.contextmanager
def watched(model: Any, see: Callable[..., None], name: str = "splash_watching") -> Iterator[None]:
    """Before each attention of the model inside the `with`, see(number, module, query, key, value, attention_mask, others) is called.

    model: of transformers, whose attention goes through its interface. number: the layer's own, or the place of the module in the
    order of first calls. A model with attn_implementation="eager" computes by PyTorch's sdpa meanwhile.
    """
    given = model.config._attn_implementation
    computes = "sdpa" if given in (None, "eager") else given
    places: dict[int, int] = {}  # of modules that do not know their layer, in the order of their first calls

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any) -> Any:
        number = getattr(module, "layer_idx", None)
        number = places.setdefault(id(module), len(places)) if number is None else number
        see(number, module, query, key, value, attention_mask, others)
        return ALL_ATTENTION_FUNCTIONS[computes](module, query, key, value, attention_mask, **others)

    words = (f"{name}_{number}" for number in itertools.count())
    word = next(word for word in words if word not in ALL_ATTENTION_FUNCTIONS)  # one may stand within another
    ALL_ATTENTION_FUNCTIONS[word] = attend
    AttentionMaskInterface.register(word, ALL_MASK_ATTENTION_FUNCTIONS[computes])  # for good; transformers looks nowhere else
    model.set_attn_implementation(word)
    try:
        yield
    finally:
        model.set_attn_implementation(given)
        del ALL_ATTENTION_FUNCTIONS[word]  # or what `see` holds would stay in memory


def causal_of(module: Any, query: Tensor, key: Tensor, mask: Tensor | None, others: dict[str, Any], who: str) -> bool:
    """Whether a call is causal or sees all keys. who: of the refusals, such as "a capture".

    Raises NotImplementedError for scores that are changed (a soft cap, a bias, sinks) and for other masks.
    """
    for option in ("softcap", "position_bias", "s_aux"):
        if others.get(option) is not None:
            raise NotImplementedError(f"{who} cannot say what this model's {option} does to its scores")
    causal = getattr(module, "is_causal", True) if others.get("is_causal") is None else others["is_causal"]
    if mask is not None:
        causal = _is_causal(mask, query.shape[2], key.shape[2], who)
    return bool(causal) or query.shape[2] == 1  # one query sees all that there is, either way


def _is_causal(mask: Tensor, q_len: int, kv_len: int, who: str) -> bool:
    """Of a mask that hides nothing False, of a causal one True."""
    seen = mask if mask.dtype == torch.bool else mask >= 0
    if seen.dim() == 4 and seen.shape[-2:] == (q_len, kv_len):
        if bool(seen.all()):
            return False
        if bool((seen == seen.new_ones(q_len, kv_len).tril(kv_len - q_len)).all()):
            return True
    raise NotImplementedError(f"{who} takes causal masks and none; this model's mask is another (a window, or packed sequences)")


def require_no_padding(arguments: dict[str, Any], who: str) -> None:
    """Raises NotImplementedError where a model's arguments name an attention_mask that hides tokens."""
    mask = arguments.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.all()):
        raise NotImplementedError(f"{who} takes no padding; give the model one text at a time")


@contextlib.contextmanager
def importances(model: Any, tell: Callable[[int, float], None]) -> Iterator[None]:
    """tell(layer, importance) for each attention layer of each call of the model: 1 - cosine of the residual stream before and after
    attention, mean over tokens. tell is called after the layer's attention was.

    Raises NotImplementedError for layers whose residual stream this does not know: what a layer adds must be its attention's output
    (Llama, Mistral, Qwen), or what its norm made of it, before `pre_feedforward_layernorm` (Gemma 2 and 3).
    """
    attention = {id(m): m.layer_idx for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "scaling")}
    parents = [(parent, child) for parent in model.modules() for child in parent.children() if id(child) in attention]
    if not parents or getattr(model.config, "residual_multiplier", 1.0) != 1.0 or not all(hasattr(p, "input_layernorm") for p, _ in parents):
        raise NotImplementedError(f"the residual stream of {type(model).__name__} is not known; give the layers' importances")
    streams: dict[int, Tensor] = {}
    hooks = []
    for parent, child in parents:
        layer = attention[id(child)]

        def before(_: Any, given: tuple[Any, ...], named: dict[str, Any], layer: int = layer) -> None:
            streams[layer] = (given[0] if given else named["hidden_states"]).detach()

        def attended(_: Any, __: Any, out: Any, layer: int = layer) -> None:
            stream = streams.pop(layer)
            tell(layer, _turn(stream, stream + (out[0] if isinstance(out, tuple) else out).detach()))

        def behind(_: Any, given: tuple[Any, ...], layer: int = layer) -> None:
            tell(layer, _turn(streams.pop(layer), given[0].detach()))

        hooks.append(parent.register_forward_pre_hook(before, with_kwargs=True))
        behind_norm = getattr(parent, "pre_feedforward_layernorm", None)
        if behind_norm is None:
            hooks.append(child.register_forward_hook(attended))
        else:
            hooks.append(behind_norm.register_forward_pre_hook(behind))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _turn(before: Tensor, after: Tensor) -> float:
    """1 - cosine, mean over tokens; in float64, for both may be nearly the same."""
    cosine = torch.nn.functional.cosine_similarity(before.double(), after.double(), dim=-1)
    return max(0.0, 1.0 - cosine.mean().item())
