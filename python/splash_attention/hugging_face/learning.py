"""alpha and factor of each head as parameters of a model of transformers, and what training logs of them."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback

from splash_attention.hugging_face import attention
from splash_attention.learned_heads import ALPHA_HIGH, ALPHA_LOW, LearnedHeads

_SETTING = "splash_learned"  # of the configuration: {"low": …, "high": …}, and the model has the parameters from its making on


def learn_alpha(model: Any, alpha: Any = 1.5, factor: Any = 1.0, low: float = ALPHA_LOW, high: float = ALPHA_HIGH) -> Any:
    """Gives every attention layer of the model, which is changed in place, a parameter alpha between low and high and a factor of the
    scale above 0, for each query head; `module.splash_heads.alpha` and `.factor` are their values. alpha, factor: where they start.

    save_pretrained keeps them with the weights, and from_pretrained loads them where splash_attention.hugging_face is imported.
    Returns the model. Raises ValueError for values out of bounds, a model without attention layers, and one that has them already.
    """
    layers = attention_modules(model)
    if not layers:
        raise ValueError(f"{type(model).__name__} has no attention layers of transformers' interface")
    if any(hasattr(module, "splash_heads") for module in layers.values()):
        raise ValueError("the model has learned heads already")
    made = {name: LearnedHeads(query_heads(module), alpha, factor, low, high) for name, module in layers.items()}
    for name, module in layers.items():
        module.splash_heads = made[name].to(next(module.parameters()).device)
    setattr(model.config, _SETTING, {"low": low, "high": high})
    return model


def load_learned_heads() -> None:
    """Lets models whose configuration tells of learned heads have them before from_pretrained loads weights. transformers calls
    post_init at the end of each model's making, and has no hook there for others."""
    usual = PreTrainedModel.post_init
    if getattr(usual, "splash_heads", False):
        return

    def post_init(self: Any, *arguments: Any, **named: Any) -> Any:
        bounds = getattr(self.config, _SETTING, None)
        if bounds:
            for module in attention_modules(self).values():
                if not hasattr(module, "splash_heads"):
                    module.splash_heads = LearnedHeads(query_heads(module), **bounds)
        return usual(self, *arguments, **named)

    post_init.splash_heads = True  # type: ignore[attr-defined]
    PreTrainedModel.post_init = post_init


def attention_modules(model: Any) -> dict[str, torch.nn.Module]:
    """By name, the modules that call transformers' attention interface."""
    return {name: module for name, module in model.named_modules() if _calls_interface(type(module))}


def attention_layers(model: Any) -> dict[int, torch.nn.Module]:
    """The model's attention modules by layer. Raises ValueError where there are none that transformers numbers."""
    found = {module.layer_idx: module for module in attention_modules(model).values() if hasattr(module, "layer_idx")}
    if not found:
        raise ValueError(f"{type(model).__name__} has no attention layers of transformers' interface")
    return found


def query_heads(module: Any) -> int:
    for name in ("num_heads", "n_heads", "num_attention_heads"):
        if isinstance(getattr(module, name, None), int):
            return getattr(module, name)
    return module.config.num_attention_heads


_calling: dict[type, bool] = {}


def _calls_interface(kind: type) -> bool:
    if kind not in _calling:
        try:
            _calling[kind] = "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(inspect.unwrap(kind.forward))
        except (AttributeError, OSError, TypeError):
            _calling[kind] = False
    return _calling[kind]


class SplashCallback(TrainerCallback):
    """Logs of each attention layer and query head, beside the loss: alpha, support (mean keys with weight of a query) and zeros (share of
    visible keys without). Names are splash/NAME/LAYER/HEAD, LAYER the module's name.

    It looks at the steps that are logged, whose forward passes then count their support: on the kernels' path that costs little. Compiled
    models are not looked at, but for alpha that is learned.
    """

    def __init__(self) -> None:
        self._seen: dict[int, list[Tensor]] = {}  # by module: alpha, support, visible keys and rows, each [heads] or []

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        steps = max(1, int(getattr(state, "logging_steps", None) or getattr(args, "logging_steps", 1) or 1))
        if (state.global_step + 1) % steps == 0 and self._see not in attention._observers:
            self._seen.clear()
            attention._observers.append(self._see)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._see in attention._observers:
            attention._observers.remove(self._see)

    on_train_end = on_step_end

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, model: Any = None, **others: Any) -> None:
        if logs is None or model is None:
            return
        for name, module in attention_modules(model).items():
            heads = query_heads(module)
            learned = getattr(module, "splash_heads", None)
            values = {} if learned is None else {"alpha": learned.alpha.detach()}
            if id(module) in self._seen:
                alpha, support, visible, rows = self._seen[id(module)]
                values = {"alpha": alpha.expand(heads), "support": support / rows, "zeros": 1 - support / visible.clamp(min=1), **values}
            for what, of_heads in values.items():
                logs.update({f"splash/{what}/{name}/{head}": value for head, value in enumerate(of_heads.tolist())})
        self._seen.clear()

    def _see(self, module: Any, alpha: Any, support: Tensor, seen: Tensor) -> None:
        """An observer of attention_forward."""
        with torch.no_grad():
            rows = torch.tensor(float(support.shape[0] * support.shape[2]), device=support.device)
            visible = seen.sum(-1, dtype=torch.float32).expand(support.shape).sum((0, 2))
            given = torch.as_tensor(alpha, dtype=torch.float32, device=support.device).detach().reshape(-1)
            now = [support.sum((0, 2), dtype=torch.float32), visible, rows]
            before = self._seen.get(id(module))
            self._seen[id(module)] = [given, *(now if before is None else (a + b for a, b in zip(before[1:], now)))]
