"""The probabilities of a row add up to 1, for any alpha and length that the library takes."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import entmax, splash_attention  # noqa: E402

ALPHAS = [1.000001, 1.00001, 1.1, 1.5, 2.0, 3.0, 10.0, 64.0]
BOUNDS = [(np.float32, 1e-5), (np.float64, 1e-9)]


def rows(dtype):
    """Name and scores: ties, sinks, near-equal keys, and numbers at both ends of the type."""
    normal = np.random.default_rng(3).standard_normal
    info = np.finfo(dtype)
    sink = np.zeros(20001)
    sink[7] = 0.1
    made = {
        "three": [0, 0, 1],
        "close": [2, 1.9, 1.5],
        "ties": np.ones(20000),
        "sink": sink,
        "near-equal": 1e-6 * normal(200_000),
        "gaussian": normal(20000),
        "huge": [info.max, -info.max, info.max, info.max / 2],
        "denormal": info.smallest_subnormal * np.arange(8),
    }
    return {name: np.asarray(row, dtype) for name, row in made.items()}


@pytest.mark.parametrize("dtype, bound", BOUNDS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax_adds_up_to_1(dtype, bound, alpha):
    for name, row in rows(dtype).items():
        p = entmax(row, alpha)
        assert abs(math.fsum(p) - 1) <= bound, name
        for value in np.unique(row)[-8:]:  # equal scores, equal shares
            assert len(np.unique(p[row == value])) == 1, name


@pytest.mark.parametrize("dtype, bound", BOUNDS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_attention_to_values_of_1_is_1(dtype, bound, alpha):
    for name, row in rows(dtype).items():
        q, k = np.zeros((1, 1, 1, 8), dtype), np.zeros((1, 1, len(row), 8), dtype)
        q[..., 0] = 1
        k[0, 0, :, 0] = row
        out = splash_attention(q, k, np.ones_like(k), alpha=alpha, scale=1.0)
        assert np.abs(out - 1).max() <= min(bound, 1e-6), name


@pytest.mark.parametrize("alpha", [1 + 9e-7, 64.01, 1e308, math.inf, math.nan])
def test_only_what_lies_outside_is_refused(alpha):
    x = np.zeros((2, 3))
    for given in (alpha, np.array([1.5, alpha])):
        with pytest.raises(ValueError, match="alpha is") as caught:
            entmax(x, given)
        assert "\n" not in str(caught.value)
