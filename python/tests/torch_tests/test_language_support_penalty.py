"""The penalty on support: its first-order model of the count of keys, and that training with it comes to the bounds."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest

from tiny_llama import llama, one_thread, torch, windows  # noqa: F401

pytest.importorskip("safetensors", reason="the package safetensors is not installed")
from splash_attention import entmax, splash_attention  # noqa: E402
from splash_attention.language import Plan, convert, perplexity  # noqa: E402
from splash_attention.language.conversion import prepare  # noqa: E402
from splash_attention.language.support_penalty import Keys, count_keys, log_bounds, penalty  # noqa: E402


def random_keys():
    q, k = (torch.randn(1, heads, 400, 16, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2))
    return q, k


@pytest.mark.parametrize("alpha", [1.25, 1.5, 1.9])
def test_support_falls_in_alpha_as_the_thresholds_condition_says(alpha):
    """Row by row support never grows in alpha or the scale; in the mean it falls in alpha by 1 / (alpha - 1) and the entropy of what
    it falls in log(scale)."""
    q, k = random_keys()

    def support(alpha, scale):
        return splash_attention(q, k, k, alpha=alpha, scale=scale, return_aux=True)[1].support.float()

    step = 0.05
    here, up, sharp = support(alpha, 0.5), support(alpha + step, 0.5), support(alpha, 0.5 * 1.1)
    assert (up <= here).all() and (sharp <= here).all() and (up < here).any() and (sharp < here).any()
    ratio = (support(alpha - step, 0.5) - up).mean() / (2 * step) / ((support(alpha, 0.5 / 1.05) - support(alpha, 0.525)).mean() / 0.0976)
    p = entmax(0.5 * q @ k.repeat_interleave(2, 1).transpose(2, 3), alpha)
    entropy = torch.special.entr(p).sum(-1).mean()
    assert ratio.item() == pytest.approx(1 / (alpha - 1) + entropy.item(), rel=0.2)


def test_keys_near_where_they_were_counted():
    converted = prepare(llama(), Plan(factor=0.3))
    ids = windows(1, 120)
    keys = count_keys(converted, ids, slopes=True)
    assert keys.log_keys.exp().numpy() == pytest.approx(perplexity(converted.model, ids, converted.method()).support_mean, rel=1e-5)
    assert (keys.by_log_factor <= -0.5).all() and (keys.by_alpha <= keys.by_log_factor / 0.5).all()
    for name, step in (("size", 0.1), ("place", -0.2)):
        with torch.no_grad():
            for heads in converted.heads:
                getattr(heads, name).add_(step)
        predicted = keys.at(converted.of_heads("alpha"), converted.of_heads("factor"))
        counted = count_keys(converted, ids, slopes=False).log_keys
        assert (counted - keys.log_keys).abs().min() > 0
        assert (predicted - counted).abs().max() < 0.4 * (counted - keys.log_keys).abs().max()
        keys = count_keys(converted, ids, slopes=True)


@pytest.mark.parametrize(
    ("bounds", "above"),
    [
        ({"most_keys": 4.0}, [[0.0, 0.0], [0.0, 1.0]]),
        ({"median_keys": 2.0}, [[0.0, 1.0], [0.0, 0.0]]),  # of 1, 2, 3, 5 the median lies between 2 and 3; the broadest head is free
        ({"median_keys": 1.5, "most_keys": 4.5}, [[0.0, 1.5], [0.5, 0.5]]),
        ({"median_keys": 6.0}, [[0.0, 0.0], [0.0, 0.0]]),
    ],
)
def test_the_price_is_of_what_lies_above_the_bounds(bounds, above):
    log_keys, above = torch.tensor([[1.0, 3.0], [2.0, 5.0]]), torch.tensor(above)
    alpha, factor = torch.full((2, 2), 1.5, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    keys = Keys(log_keys, alpha.detach(), torch.zeros(2, 2), torch.full((2, 2), -4.0), torch.full((2, 2), -1.0))
    penalty(keys, alpha, factor, Plan(price=0.1, **{name: math.exp(bound) for name, bound in bounds.items()})).backward()
    assert factor.grad.numpy() == pytest.approx((-0.1 * above).numpy(), abs=1e-5)
    assert alpha.grad.numpy() == pytest.approx((-0.4 * above).numpy(), abs=1e-5)


def test_bounds_of_quantiles_are_enough_and_no_more_than_needed():
    log_keys = torch.randn(30, 9, generator=torch.Generator().manual_seed(4)) + 3
    plan = Plan(median_keys=16.0, p95_keys=64.0)
    lowered = log_keys.minimum(log_bounds(log_keys, plan))
    median, p95 = np.quantile(lowered.exp().numpy(), [0.5, 0.95])
    assert median == pytest.approx(16) and p95 == pytest.approx(64)
    free = int(lowered.argmax())
    assert lowered.flatten()[free] == log_keys.flatten()[free] > math.log(64)


def test_training_comes_to_the_bounds(tmp_path):
    text = torch.randint(0, 320, (2000,), generator=torch.Generator().manual_seed(3))
    common = {"steps": 60, "batch": 1, "length": 64, "rank": 2, "factor": 0.15, "head_rate": 5e-2}
    ends = {}
    for name, bounds in (("free", {}), ("most", {"most_keys": 6.0}), ("median", {"median_keys": 5.0})):
        done = convert(llama(), text, Plan(**common, **bounds), tmp_path / name)
        ends[name] = count_keys(done, text[None, :64], slopes=False).log_keys.exp()
        rows = list(csv.DictReader((tmp_path / name / "log.csv").open()))
        assert len(rows) == 60 and all(float(row["loss"]) > 0 for row in rows)
        counted = [row for row in rows if row["keys_median"]]
        assert len(counted) == (7 if bounds else 4)  # the last step is counted too
        assert float(counted[0]["keys_median"]) <= float(counted[0]["keys_p95"]) <= float(counted[0]["keys_largest"])
    assert ends["free"].max() > 9 and ends["free"].median() > 7
    assert 3 < ends["most"].median() < ends["most"].max() < 6 * 1.15
    assert ends["median"].median() == pytest.approx(5, rel=0.15)
