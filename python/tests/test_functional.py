"""entmax and splash_attention of NumPy arrays, and of what speaks DLPack."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
import types

import dense
import numpy as np
import pytest

pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import backends, entmax, entmax15, sparsemax, splash_attention  # noqa: E402


def tensors(shape_q, kv_heads, kv_len, dtype=np.float32):
    batch, _, _, dim = shape_q
    return tuple(
        np.random.standard_normal(shape).astype(dtype)
        for shape in (shape_q, (batch, kv_heads, kv_len, dim), (batch, kv_heads, kv_len, dim))
    )


@pytest.mark.parametrize("dtype, bound", [(np.float64, 1e-9), (np.float32, 2e-6), (np.float16, 2e-3)])
@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 3.0])
def test_entmax_is_the_root_of_its_equation(dtype, bound, alpha):
    x = (3 * np.random.standard_normal((5, 4, 33))).astype(dtype)
    p = entmax(x, alpha)
    assert p.dtype == dtype and p.shape == x.shape
    slack = bound ** (1 / max(1, alpha - 1))  # beyond 2 p is infinitely steep where it begins
    np.testing.assert_allclose(p, dense.entmax(x, alpha), atol=slack)


def test_entmax_along_any_dimension_with_an_alpha_for_each_row():
    x = np.random.standard_normal((3, 7, 5))
    alpha = np.array([1.2, 1.5, 2.0])
    for given in (alpha[:, None], alpha[:, None, None]):
        np.testing.assert_allclose(entmax(x, given, dim=1), dense.entmax(x.swapaxes(1, 2), alpha[:, None]).swapaxes(1, 2), atol=1e-9)
    np.testing.assert_array_equal(sparsemax(x, dim=0), entmax(x, 2.0, dim=0))
    np.testing.assert_array_equal(entmax15(x), entmax(x))


def test_entmax_of_rows_that_are_masked_tied_or_not_finite():
    inf = np.inf
    p = entmax(np.array([[-inf, -inf], [1, 1], [np.nan, 0], [inf, 0], [1e30, 0]]))
    np.testing.assert_allclose(p[:2], [[0, 0], [0.5, 0.5]], rtol=1e-14)
    assert np.isnan(p[2:4]).all()
    np.testing.assert_array_equal(p[4], [1, 0])
    assert entmax(np.zeros((0, 4))).shape == (0, 4)


@pytest.mark.parametrize("dtype, bound", [(np.float64, 1e-9), (np.float32, 1e-5), (np.float16, 4e-3)])
def test_attention_is_the_dense_one(dtype, bound):
    q, k, v = tensors((2, 4, 19, 24), 2, 31, dtype)
    alpha = np.array([1.2, 1.5, 1.8, 2.0])
    for causal in (False, True):
        out = splash_attention(q, k, v, alpha=alpha, causal=causal, scale=0.7)
        visible = dense.causal(19, 31) if causal else None
        assert out.dtype == dtype
        np.testing.assert_allclose(out, dense.attention(q, k, v, alpha, visible, 0.7)[0], atol=bound)


def test_positions_packed_sequences_and_k_keep():
    q, k, v = tensors((2, 2, 12, 8), 2, 12)
    q_positions, k_positions = np.random.randint(0, 12, (2, 12)), np.random.randint(0, 12, (2, 12))
    visible = (k_positions[:, None, None, :] <= q_positions[:, None, :, None])
    out = splash_attention(q, k, v, q_positions=q_positions, k_positions=k_positions)
    np.testing.assert_allclose(out, dense.attention(q, k, v, 1.5, visible)[0], atol=1e-5)
    cu = np.array([0, 5, 5, 12])
    sequence = np.searchsorted(cu, np.arange(12), side="right")
    visible = (sequence[:, None] == sequence[None, :]) & dense.causal(12, 12)
    out = splash_attention(q, k, v, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu)
    np.testing.assert_allclose(out, dense.attention(q, k, v, 1.5, visible)[0], atol=1e-5)
    scores = (q.astype(np.float64) @ k.swapaxes(-1, -2))
    kept = scores >= np.sort(scores, -1)[..., -3:-2]
    out = splash_attention(q, k, v, k_keep=3)
    np.testing.assert_allclose(out, dense.attention(q, k, v, 1.5, kept)[0], atol=1e-5)


@pytest.mark.parametrize("dtype, bound", [(np.float64, 1e-9), (np.float32, 1e-5)])
@pytest.mark.parametrize("q_len, kv_len", [(12, 12), (5, 31), (1, 20), (31, 7)])
def test_windows(dtype, bound, q_len, kv_len):
    q, k, v = tensors((2, 4, q_len, 8), 2, kv_len, dtype)
    for causal, window in itertools.product((True, False), (1, 2, 5, 20, 10**20)):
        out, aux = splash_attention(q, k, v, causal=causal, window=window, return_aux=True)
        visible = (dense.causal if causal else dense.near)(q_len, kv_len, min(window, 10**6))
        np.testing.assert_allclose(out, dense.attention(q, k, v, 1.5, visible)[0], atol=bound)
        assert (aux.support <= visible.sum(-1)).all() and (aux.support > 0).sum() == 8 * visible.any(-1).sum()
    if q_len == kv_len:
        cu = np.array([0, 5, 5, 12])
        sequence = np.searchsorted(cu, np.arange(12), side="right")
        visible = (sequence[:, None] == sequence[None, :]) & dense.causal(12, 12, 3)
        out = splash_attention(q, k, v, causal=True, window=3, cu_seqlens_q=cu, cu_seqlens_k=cu)
        np.testing.assert_allclose(out, dense.attention(q, k, v, 1.5, visible)[0], atol=bound)
        visible = visible & (cu[1] <= np.arange(12))  # and by positions
        out = splash_attention(
            q, k, v, causal=True, window=3, cu_seqlens_q=cu, cu_seqlens_k=cu, q_positions=np.zeros(12, int), k_positions=(np.arange(12) < 5).astype(int)
        )
        np.testing.assert_allclose(out, dense.attention(q, k, v, 1.5, visible)[0], atol=bound)


def test_windows_that_are_none():
    q, k, v = tensors((1, 1, 4, 8), 1, 4)
    for window, what in ((0, "window is 0; it must be at least 1"), (-2, "window is -2; it must be at least 1")):
        with pytest.raises(ValueError, match=what):
            splash_attention(q, k, v, causal=True, window=window)
    with pytest.raises(TypeError, match="window is a float; it must be an integer or None, which is no window"):
        splash_attention(q, k, v, causal=True, window=2.0)


def test_aux_tells_of_the_probabilities():
    q, k, v = tensors((1, 4, 40, 16), 2, 40, np.float64)
    out, aux = splash_attention(3 * q, k, v, causal=True, return_aux=True)
    p = dense.attention(3 * q, k, v, 1.5, dense.causal(40, 40))[1]
    np.testing.assert_array_equal(aux.support, (p > 0).sum(-1))
    assert aux.sparsity_by_token == pytest.approx(1 - (p > 0).sum() / (4 * 40 * 41 / 2))
    blocks = (p.reshape(4, 5, 8, 5, 8) > 0).any((2, 4))
    assert aux.sparsity_by_block(8) == pytest.approx(1 - blocks.sum() / (4 * 15))
    offsets, columns, values = aux.probabilities()
    sparse = np.zeros((160, 40))
    sparse[np.repeat(np.arange(160), np.diff(offsets)), columns] = values
    np.testing.assert_allclose(sparse, p.reshape(160, 40), atol=1e-9)
    z = 0.5 * 3 * (q @ np.repeat(k, 2, 1).swapaxes(-1, -2)) / 4
    np.testing.assert_allclose(np.where(p > 0, z - aux.tau[..., None], 0) ** 2, p, atol=1e-9)


class Foreign:
    """An array of another library: readable through DLPack alone, made from it by its namespace."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, **options):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        class Namespace:
            from_dlpack = staticmethod(lambda other: Foreign(np.from_dlpack(other)))

        return Namespace


def test_arrays_of_other_libraries_come_back_as_such():
    q, k, v = tensors((1, 2, 6, 8), 2, 6)
    out = splash_attention(Foreign(q), Foreign(k), Foreign(v))
    assert isinstance(out, Foreign)
    np.testing.assert_array_equal(out.array, splash_attention(q, k, v))
    np.testing.assert_array_equal(entmax(Foreign(q)).array, entmax(q))


def test_arrays_on_a_gpu_go_through_pytorch():
    """What is around the kernels, here on PyTorch's CPU; with a GPU: torch_tests/test_torch_cuda.py."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from splash_attention.backends import gpu_arrays

    q, k, v = tensors((1, 2, 6, 8), 2, 6)
    none = dict.fromkeys(("q_positions", "k_positions", "cu_seqlens_q", "cu_seqlens_k"))
    alpha = np.array([1.5, 1.25])
    expected, numpys = splash_attention(q, k, v, alpha=alpha, causal=True, return_aux=True)
    out, aux = gpu_arrays.attention(*map(Foreign, (q, k, v, alpha)), True, None, None, None, none, True)
    for mine, theirs in ((out, expected), (aux.tau, numpys.tau), (aux.support, numpys.support)):
        np.testing.assert_array_equal(mine.array, theirs)
    for mine, theirs in zip(aux.probabilities(), numpys.probabilities()):
        np.testing.assert_array_equal(mine.array, theirs)
    assert aux.sparsity_by_block(4) == numpys.sparsity_by_block(4)
    assert isinstance(gpu_arrays.attention(*map(Foreign, (q, k, v)), 1.5, False, None, None, None, none, False), Foreign)
    np.testing.assert_array_equal(gpu_arrays.entmax(Foreign(q), Foreign(alpha[:, None]), 3).array, entmax(q, alpha[:, None]))
    with pytest.raises(TypeError, match="k is a list; it must be an array on a GPU"):
        gpu_arrays.attention(Foreign(q), [1.0], Foreign(v), 1.5, False, None, None, None, none, False)


def test_the_place_of_an_array_decides(monkeypatch):
    q = tensors((1, 2, 6, 8), 2, 6)[0]
    monkeypatch.setattr(Foreign, "__dlpack_device__", lambda self: (2, 0))
    with pytest.raises(NotImplementedError, match="k is not in host memory, where the first argument is"):
        splash_attention(q, Foreign(q), q)
    monkeypatch.setitem(sys.modules, "splash_attention.backends.gpu_arrays", types.SimpleNamespace(entmax=lambda *_: "on the GPU"))
    monkeypatch.delattr(backends, "gpu_arrays", raising=False)
    assert entmax(Foreign(q)) == "on the GPU"


def test_inputs_that_are_not_contiguous():
    q, k, v = tensors((1, 2, 9, 16), 2, 9)
    wide = np.zeros((1, 2, 9, 32), np.float32)
    wide[..., ::2] = q
    np.testing.assert_array_equal(splash_attention(wide[..., ::2], k, v), splash_attention(q, k, v))
    np.testing.assert_array_equal(splash_attention(np.asfortranarray(q), k, v), splash_attention(q, k, v))


def _attention(**changes):
    arguments = dict(zip("qkv", tensors((2, 4, 5, 8), 2, 6)))
    arguments.update(changes)
    return lambda: splash_attention(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)


F = np.zeros
REFUSED = [
    (_attention(q=F((4, 5, 8), np.float32)), ValueError, "q has 3 dimensions; it must have 4: [batch, heads, length, head_dim]"),
    (_attention(q=F((2, 4, 5, 8))), TypeError, "q is of float64 and k of float32; they must be of one dtype"),
    (_attention(q=F((2, 4, 5, 8), int)), TypeError, "q is of int64; allowed are float16, bfloat16, float32, float64"),
    (_attention(q=[1.0]), TypeError, "q is a list; it must be an array (NumPy, PyTorch, or with __dlpack__)"),
    (_attention(v=F((2, 2, 7, 8), np.float32)), ValueError, "v has shape [2, 2, 7, 8]; with these q and k it must be [2, 2, 6, 8]"),
    (_attention(q=F((2, 3, 5, 8), np.float32)), ValueError, "q_heads"),
    (_attention(q=F((2, 4, 0, 8), np.float32)), ValueError, "q_len"),
    (_attention(alpha=1.0), ValueError, "alpha is 1; entmax "),
    (_attention(alpha=float("nan")), ValueError, "alpha is nan"),
    (_attention(alpha="soft"), TypeError, "alpha is a str; it must be a number, or an array of numbers"),
    (_attention(alpha=np.array([1.5, 1.5])), ValueError, "alpha has 2 entries; allowed: 1, or 4 (one a query head)"),
    (_attention(alpha=np.array([1.5, 1.5, 0.5, 1.5])), ValueError, "alpha"),
    (_attention(scale=0), ValueError, "scale is 0; it must be finite and not 0"),
    (_attention(scale="big"), TypeError, "scale is a str"),
    (_attention(k_keep=0), ValueError, "k_keep is 0; it must be at least 1"),
    (_attention(k_keep=2.5), TypeError, "k_keep is a float"),
    (_attention(q_positions=F(5, int)), ValueError, "only q_positions is given; k_positions is needed too"),
    (_attention(q_positions=F(5), k_positions=F(6, int)), TypeError, "q_positions is of float64; it must be of an integer dtype"),
    (_attention(q_positions=F(4, int), k_positions=F(6, int)), ValueError, "q_positions has shape [4]; allowed: [5], [2, 5], [2, 4, 5] or [8, 5]"),
    (_attention(cu_seqlens_q=np.array([0, 5]), cu_seqlens_k=np.array([0, 5])), ValueError, "cu_seqlens_k must rise from 0 to 6"),
    (_attention(cu_seqlens_q=np.array([[0, 5]]), cu_seqlens_k=np.array([0, 6])), ValueError, "cu_seqlens_q has 2 dimensions"),
    (lambda: entmax(F((3, 4)), dim=2), ValueError, "dim is 2; x has 2 dimensions"),
    (lambda: entmax(F((3, 4)), alpha=F(5)), ValueError, "alpha has shape [5]; it must broadcast to [3], the shape of x without dim"),
    (lambda: entmax(F((3, 4)), alpha=F(3)), ValueError, "alpha is 0; entmax takes 1.000001 to 64"),
    (lambda: entmax(F((3, 4), int)), TypeError, "x is of int64; allowed are float16, bfloat16, float32, float64"),
]  # fmt: skip


@pytest.mark.parametrize("call, kind, sentence", REFUSED, ids=[sentence[:40] for _, _, sentence in REFUSED])
def test_bad_input_gets_one_sentence(call, kind, sentence):
    with pytest.raises(kind) as caught:
        call()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_import_is_fast_and_brings_neither_torch_nor_xarray():
    code = (
        "import sys, time; begin = time.perf_counter(); from splash_attention import entmax, splash_attention\n"
        "import numpy; entmax(numpy.zeros((2, 3))); seconds = time.perf_counter() - begin\n"
        "print(seconds, 'torch' in sys.modules, 'xarray' in sys.modules)"
    )
    fastest = min(
        (subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(3)),
        key=lambda line: float(line.split()[0]),
    )
    seconds, torch, xarray = fastest.split()
    assert (torch, xarray) == ("False", "False")
    assert float(seconds) < 1


def test_what_needs_a_package_says_which():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['h5py'] = None\nimport splash_attention\n"
        "for name in ('capture', 'convert', 'AdaptiveSplashAttention'):\n"
        "    try:\n        getattr(splash_attention, name)\n    except ImportError as error:\n        print(error)\n"
        "for name in ('hugging_face', 'distributed', 'language'):\n"
        "    try:\n        getattr(__import__(f'splash_attention.{name}', fromlist='x'), 'perplexity')\n"
        "    except ImportError as error:\n        print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == [
        "splash_attention.capture needs the package h5py: install it, or splash-attention with its extra captures",
        "splash_attention.convert needs the package torch: install it, or splash-attention with its extra language",
        "splash_attention.AdaptiveSplashAttention needs the package torch: install it, or splash-attention with its extra torch",
        "splash_attention.hugging_face needs the package torch: install it, or splash-attention with its extra hf",
        "splash_attention.distributed needs the package torch: install it, or splash-attention with its extra torch",
        "splash_attention.language.perplexity needs the package torch: install it, or splash-attention with its extra language",
    ]


def test_the_interpreter_is_free_while_the_library_computes():
    import threading

    q, k, v = tensors((1, 4, 700, 64), 4, 700, np.float64)
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.perf_counter()
    splash_attention(q, k, v)
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert sum(begin < t < end for t in ticks) > (end - begin) / 0.05
