"""What a method in softmax's place costs: perplexity, with the keys that each head uses and how far each head's output moves."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from splash_attention.hugging_face.learning import attention_layers
from splash_attention.language.attention import Call, applied, observed
from splash_attention.language.intervals import mean_interval
from splash_attention.language.methods import Attention, Method

_LOGITS = 1 << 27  # at once: 512 MiB of float32


@dataclass(frozen=True)
class Measured:
    """Of one method on some windows."""

    method: Method
    nll: tuple[float, ...]
    """Mean negative log-likelihood of a token, nats, of each window."""
    support_mean: np.ndarray
    """[layers, heads]: keys with weight of a query, mean over the queries of the windows that were looked at; likewise the next two."""
    support_median: np.ndarray
    support_p95: np.ndarray
    nmse: np.ndarray
    """[layers, heads]: squared error of the head's output against softmax's on the same inputs, over softmax's squared output."""
    layer_nmse: np.ndarray
    """[layers]: the same of all heads of a layer together."""
    seconds: float
    window_seconds: tuple[float, ...] = ()
    """Wall clock of each window; the first `looked_at` take longer."""
    looked_at: int = 0

    @property
    def perplexity(self) -> float:
        return math.exp(sum(self.nll) / len(self.nll))

    @property
    def seconds_a_window(self) -> float:
        """Median over the windows that were not looked at, where there are such."""
        return float(np.median(self.window_seconds[self.looked_at :] or self.window_seconds))

    def difference(self, other: Measured, level: float = 0.95) -> tuple[float, float, float]:
        """(mean, low, high) of this nll less the other's, window by window; Student's t interval over windows, NaN for one."""
        if len(self.nll) != len(other.nll):
            raise ValueError(f"the measures are of {len(self.nll)} and {len(other.nll)} windows; they must be of the same")
        return mean_interval([a - b for a, b in zip(self.nll, other.nll)], level)

    def support(self) -> dict[str, float]:
        """Over heads, of their mean supports: median, 95th percentile and largest; and the 95th percentile of queries in the largest."""
        means = self.support_mean.ravel()
        low, high = np.quantile(means, [0.5, 0.95])
        return {"median": float(low), "p95": float(high), "largest": float(means.max()), "largest_p95": float(self.support_p95.max())}

    def as_dict(self, baseline: Measured | None = None) -> dict[str, Any]:
        """For JSON: no NaN in it."""
        told: dict[str, Any] = {
            "title": self.method.title,
            "method": self.method.as_dict(),
            "perplexity": self.perplexity,
            "nll": list(self.nll),
            "support": self.support(),
            "support_of_heads": {
                "mean": self.support_mean.round(3).tolist(),
                "median": self.support_median.tolist(),
                "p95": self.support_p95.tolist(),
            },
            "nmse_of_heads": self.nmse.tolist(),
            "nmse_of_layers": self.layer_nmse.tolist(),
            "seconds": self.seconds,
        }
        if baseline is not None:
            mean, low, high = self.difference(baseline)
            interval = None if math.isnan(low) else [low, high]
            told["nll_less_softmax"] = {"mean": mean, "interval": interval, "level": 0.95, "how": "Student's t over windows"}
        return told


def perplexity(model: Any, windows: Tensor, method: Method | None = None, *, looked_at: int = 2) -> Measured:
    """The model's nll on each window with the method in softmax's place, and what its heads did on the first `looked_at` windows.

    model: a causal language model of transformers, on any device. windows: token ids [windows, length]. method: None is softmax.
    looked_at: windows of which support and nmse are measured, at least 1; they cost a second, fused softmax a layer.

    Memory: the scores of no method but the dense ones (dense_methods) are held, and logits only a part at a time. Raises ValueError
    for windows of another shape, or a model whose logits are not its output embedding's product with its last states.
    """
    if windows.dim() != 2 or windows.shape[0] < 1 or windows.shape[1] < 2:
        raise ValueError(f"windows has shape {list(windows.shape)}; it must be [windows, length], at least 1 of 2 tokens")
    if not 1 <= looked_at:
        raise ValueError(f"looked_at is {looked_at}; it must be at least 1")
    method = Method(Attention()) if method is None else method
    heads = _Heads(len(attention_layers(model)))
    losses, ends = [], [time.perf_counter()]
    with torch.no_grad(), applied(model, method):
        _check_head(model, windows[:1, :16])
        ends.append(time.perf_counter())
        for at, window in enumerate(windows):
            if at < looked_at:
                with observed(heads.see):
                    losses.append(nll_of(model, window[None]))
            else:
                losses.append(nll_of(model, window[None]))
            ends.append(time.perf_counter())
    seconds = tuple(end - begin for begin, end in zip(ends[1:], ends[2:]))
    return Measured(method, tuple(losses), *heads.summary(), ends[-1] - ends[0], seconds, looked_at)


def nll_of(model: Any, ids: Tensor) -> float:
    """Mean nll of the tokens behind the first; ids: [1, length]."""
    ids = ids.to(model.device)
    states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
    table, total = model.get_output_embeddings(), 0.0
    rows = max(1, _LOGITS // table.weight.shape[0])
    for begin in range(0, len(states) - 1, rows):
        end = min(begin + rows, len(states) - 1)
        logits = table(states[begin:end]).float()
        total += F.cross_entropy(logits, ids[0, begin + 1 : end + 1], reduction="sum").item()
    return total / (len(states) - 1)


def _check_head(model: Any, ids: Tensor) -> None:
    ids = ids.to(model.device)
    states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    ours, theirs = model.get_output_embeddings()(states).float(), model(input_ids=ids, use_cache=False).logits.float()
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2):
        raise ValueError(f"{type(model).__name__} changes its logits behind its output embedding; such models are not served")


class _Heads:
    """What the windows that are looked at tell, gathered layer by layer."""

    def __init__(self, layers: int) -> None:
        self.rows: list[list[Tensor]] = [[] for _ in range(layers)]  # of each layer: supports [heads, queries]
        self.errors: list[list[Tensor]] = [[] for _ in range(layers)]  # of each layer: [2, heads], squared error and size

    def see(self, call: Call) -> None:
        self.rows[call.layer].append(call.support[0].to("cpu", torch.int32))
        exact = call.softmax()[0].float()
        error = (call.out[0].float() - exact).square().sum((1, 2))
        self.errors[call.layer].append(torch.stack((error, exact.square().sum((1, 2)))).double().cpu())

    def summary(self) -> tuple[np.ndarray, ...]:
        rows = np.stack([torch.cat(of_layer, 1).numpy() for of_layer in self.rows])  # [layers, heads, queries]
        errors = torch.stack([torch.stack(of_layer).sum(0) for of_layer in self.errors]).numpy()  # [layers, 2, heads]
        together = errors.sum(2)
        return (
            rows.mean(2), np.median(rows, 2), np.quantile(rows, 0.95, 2),
            errors[:, 0] / errors[:, 1], together[:, 0] / together[:, 1],
        )  # fmt: skip


def table(measured: Sequence[Measured], baseline: Measured) -> str:
    """For a terminal: a line a method."""
    columns = f"{'method':42} {'perplexity':>10}  {'nll less softmax (95 %)':30} {'keys: median':>12} {'p95':>7} {'largest':>8}"
    lines = [f"{columns} {'nmse':>7} {'s':>6}"]
    for one in measured:
        mean, low, high = one.difference(baseline)
        told = "" if one is baseline else f"{mean:+.4f}" + ("" if math.isnan(low) else f" [{low:+.4f}, {high:+.4f}]")
        keys = one.support()
        lines.append(
            f"{one.method.title[:42]:42} {one.perplexity:10.3f}  {told:30} {keys['median']:12.1f} {keys['p95']:7.1f} "
            f"{keys['largest']:8.1f} {np.median(one.layer_nmse):7.3f} {one.seconds:6.1f}"
        )
    return "\n".join(lines)


def compare(
    model: Any, windows: Tensor, methods: Sequence[Method], *, looked_at: int = 2, said: Any = None
) -> tuple[list[Measured], Measured]:
    """(one measure a method, softmax's own, which comes first). said: called with a method's title before it is measured."""
    say = said or (lambda title: None)
    softmax = Method(Attention())
    say(softmax.title)
    baseline = perplexity(model, windows, softmax, looked_at=looked_at)
    measured = [baseline]
    for method in methods:
        if method.default == softmax.default and not method.layers:
            continue
        say(method.title)
        measured.append(perplexity(model, windows, method, looked_at=looked_at))
    return measured, baseline


def report(measured: Sequence[Measured], baseline: Measured, about: Mapping[str, Any]) -> dict[str, Any]:
    """For JSON. about: model, text and windows."""
    return {"schema": "splash perplexity 1", **about, "methods": [one.as_dict(baseline) for one in measured]}
