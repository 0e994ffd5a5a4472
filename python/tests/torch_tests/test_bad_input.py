"""Every entry point with every kind of bad input: one sentence, of the right type, that opens with the caller's own name of
the argument at fault. What is unusual but means one thing is taken, and gives what the usual form gives."""

from __future__ import annotations

import types
from fractions import Fraction
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import AdaptiveSplashAttention, entmax, entmax15, sparsemax, splash_attention  # noqa: E402
from splash_attention.backends import host_arrays  # noqa: E402
from splash_attention.backends.torch import functional  # noqa: E402

TABLES = ("q_positions", "k_positions", "cu_seqlens_q", "cu_seqlens_k")
B, H, HKV, NQ, NK, D = 2, 4, 2, 5, 6, 8


# --- the entry points: each takes any of attention's arguments, or entmax's, by the functions' names ---


def good(kind: str) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    shapes = {"q": (B, H, NQ, D), "k": (B, HKV, NK, D), "v": (B, HKV, NK, D)}
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: torch.from_numpy(array) if kind == "torch" else array for name, array in tensors.items()}


def by_position(function: Callable[..., Any], q: Any, k: Any, v: Any, **options: Any) -> Any:
    """The modules' own functions, which splash_attention hands its arguments to."""
    tables = {name: options.pop(name, None) for name in TABLES}
    others = {"alpha": 1.5, "causal": False, "scale": None, "k_keep": None, "window": None, **options}
    return function(q, k, v, *others.values(), tables, False)


def module(q: Any, k: Any, v: Any, **options: Any) -> Any:
    renamed = {"scale": "sm_scale"}
    made = {renamed.get(name, name): options[name] for name in ("alpha", "causal", "scale", "k_keep", "window") if name in options}
    return AdaptiveSplashAttention(D, num_heads=H, **made)(q, k, v, options.get("q_positions"), options.get("k_positions"))


def autocast(q: Any, k: Any, v: Any, **options: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return splash_attention(q, k, v, **options)


def transformers_layer(q: Any, k: Any, v: Any, **options: Any) -> Any:
    pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
    from splash_attention import hugging_face

    config = types.SimpleNamespace(splash_alpha=options.get("alpha", 1.5))
    layer = types.SimpleNamespace(config=config, training=False)
    return hugging_face.attention_forward(
        layer, q, k, v, None, scaling=options.get("scale"), is_causal=options.get("causal", False)
    )[0].transpose(1, 2)


class Entry(NamedTuple):
    call: Callable[..., Any]
    kind: str  # of the arrays that it takes
    without: tuple[str, ...] = ()  # arguments that it does not have
    names: dict[str, str] = {}  # of arguments that it calls otherwise


ATTENTION = {
    "function": Entry(splash_attention, "torch"),
    "function, NumPy": Entry(splash_attention, "numpy"),
    "autocast": Entry(autocast, "torch"),
    "module": Entry(
        module, "torch", TABLES[2:],
        {"q": "Q", "k": "K", "v": "V", "q_positions": "Q_idx", "k_positions": "K_idx", "scale": "sm_scale"},
    ),
    "backends.torch": Entry(lambda *a, **o: by_position(functional.attention, *a, **o), "torch"),
    "backends.host_arrays": Entry(lambda *a, **o: by_position(host_arrays.attention, *a, **o), "numpy"),
    "hugging_face": Entry(transformers_layer, "torch", (*TABLES, "k_keep", "window")),
}  # fmt: skip
ENTMAX = {
    "entmax": Entry(entmax, "torch"),
    "entmax, NumPy": Entry(entmax, "numpy"),
    "sparsemax": Entry(sparsemax, "torch", ("alpha",)),
    "entmax15": Entry(entmax15, "numpy", ("alpha",)),
    "backends.torch": Entry(lambda x, alpha=1.5, dim=-1: functional.entmax(x, alpha, dim), "torch"),
    "backends.host_arrays": Entry(lambda x, alpha=1.5, dim=-1: host_arrays.entmax(x, alpha, dim), "numpy"),
}


class Scalar:
    """No number, though it has a shape."""

    shape = ()


def other(array: Any) -> Any:
    return array.numpy() if isinstance(array, torch.Tensor) else torch.from_numpy(array)


def masked(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return np.ma.masked_array(array, mask=array > 0)
    return torch.masked.masked_tensor(array, array > 0)


def tangent(array: Any) -> Any:
    return torch.autograd.forward_ad.make_dual(array, torch.ones_like(array))


def nested(array: Any) -> Any:
    return torch.nested.nested_tensor([array[0], array[0][..., :3, :]])


def jagged(array: Any) -> Any:
    parts = [array[0].flatten(0, -2), array[0].flatten(0, -2)[:3]]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def negated(array: Any) -> Any:
    return torch._neg_view(array)


# What may stand in the place of an array of numbers: (id, of which kinds, what makes it of a good one, error, sentence).
# {name} stands for the caller's name of the argument.
BOTH, TORCH, NUMPY = ("torch", "numpy"), ("torch",), ("numpy",)
NO_ARRAYS = [
    ("None", BOTH, lambda a: None, TypeError, "{name} is a NoneType; it must be a"),
    ("str", BOTH, lambda a: "q", TypeError, "{name} is a str; it must be a"),
    ("float", BOTH, lambda a: 1.5, TypeError, "{name} is a float; it must be a"),
    ("list", BOTH, lambda a: a.tolist(), TypeError, "{name} is a list; it must be a"),
    ("dict", BOTH, lambda a: {}, TypeError, "{name} is a dict; it must be a"),
    ("class", BOTH, lambda a: torch.Tensor, TypeError, "{name} is a _TensorMeta; it must be a"),
    ("scalar", BOTH, lambda a: np.float32(1), TypeError, "{name} is a float32; it must be a"),
    ("odd", BOTH, lambda a: Scalar(), TypeError, "{name} is a Scalar; it must be a"),
]
DTYPES = [
    ("int", BOTH, lambda a: a.astype(int) if isinstance(a, np.ndarray) else a.long(), TypeError, "{name} is of int64; allowed are float16"),
    ("bool", BOTH, lambda a: a > 0, TypeError, "{name} is of bool; allowed are float16"),
    ("complex", BOTH, lambda a: a + 0j, TypeError, "{name} is of complex64; allowed are"),
    ("float8", TORCH, lambda a: a.to(torch.float8_e4m3fn), TypeError, "{name} is of float8_e4m3fn; allowed are"),
    ("str array", NUMPY, lambda a: a.astype("U3"), TypeError, "{name} is of str96; allowed are"),
    ("object", NUMPY, lambda a: a.astype(object), TypeError, "{name} is of object; allowed are"),
    ("longdouble", NUMPY, lambda a: a.astype(np.longdouble), TypeError, "{name} is of float128; allowed are"),
]
LAYOUTS = [
    ("masked", NUMPY, masked, TypeError, "{name} is a masked array, whose mask would be lost; "),
    ("masked tensor", TORCH, masked, NotImplementedError, "{name} is a MaskedTensor, whose mask would be lost; "),
    ("nested", TORCH, nested, NotImplementedError, "{name} is a nested tensor; pass a padded one"),
    ("jagged", TORCH, jagged, NotImplementedError, "{name} is a nested tensor; pass a padded one"),
    ("sparse", TORCH, lambda a: a.to_sparse(), NotImplementedError, "{name} is a tensor of layout sparse_coo; pass {name}.to_dense()"),
    ("negated", TORCH, negated, NotImplementedError, "{name} is a negated view; pass {name}.resolve_neg()"),
    ("tangent", TORCH, tangent, NotImplementedError, "{name} has a tangent; forward-mode differentiation"),
]  # fmt: skip
# What may be wrong with one of q, k and v beside the others.
RANKS = [
    ("rank", BOTH, lambda a: a[0], ValueError, "{name} has 3 dimensions; it must have 4: [batch, heads, length, head_dim]"),
    ("rank 0", BOTH, lambda a: a.reshape(-1)[:1].reshape(()), ValueError, "{name} has 0 dimensions; it must have 4"),
]
BESIDE_Q = [
    ("NumPy", TORCH, other, TypeError, "{name} is a NumPy array; it must be a torch tensor, as {q} is"),
    ("PyTorch", NUMPY, other, TypeError, "{name} is a torch tensor and q is not; q, k and v must all be torch tensors, or none"),
    ("dtype", BOTH, lambda a: a.double() if isinstance(a, torch.Tensor) else a.astype(float), TypeError, "{q} is of float32 and {name} of float64; they"),
    ("meta", TORCH, lambda a: a.to("meta"), ValueError, "{name} is on meta and {q} on cpu; they must be on one device"),
    ("batch", BOTH, lambda a: a[:1], ValueError, "{name} has shape [1, 2, 6, 8]; with these {q} and {k} it must be [2, 2, 6, 8]"),
    ("head_dim", BOTH, lambda a: a[..., 1:], ValueError, "{name} has shape [2, 2, 6, 7]; with these"),
]  # fmt: skip


def refused(call: Callable[[], Any], error: type[Exception], sentence: str) -> None:
    with torch.autograd.forward_ad.dual_level(), pytest.raises(error) as caught:
        call()
    said = str(caught.value)
    assert said.startswith(sentence) and "\n" not in said, said
    assert type(caught.value) is error


def walk(entries: dict[str, Entry], arguments: list[tuple[str, list[tuple[Any, ...]]]]) -> Any:
    cases = [
        pytest.param(entry, name, case, id=f"{label}-{name}-{case[0]}")
        for label, entry in entries.items()
        for name, kinds in arguments
        for case in kinds
        if entry.kind in case[1] and name not in entry.without
    ]
    return pytest.mark.parametrize("entry, argument, case", cases)


@walk(ATTENTION, [
    ("q", NO_ARRAYS + DTYPES + LAYOUTS + RANKS),
    ("k", NO_ARRAYS + LAYOUTS + RANKS + BESIDE_Q),
    ("v", NO_ARRAYS + LAYOUTS + RANKS + BESIDE_Q),
])  # fmt: skip
def test_an_array_of_attention(entry: Entry, argument: str, case: tuple[Any, ...]) -> None:
    _, _, change, error, sentence = case
    inputs = good(entry.kind)
    named = {name: entry.names.get(name, name) for name in inputs}

    def call() -> None:
        entry.call(**{**inputs, argument: change(inputs[argument])})

    if entry is ATTENTION["hugging_face"] and (argument, case[0]) == ("v", "head_dim"):
        return call()  # models may have narrower values
    refused(call, error, sentence.format(name=named[argument], **named))


@walk(ENTMAX, [("x", NO_ARRAYS + DTYPES + LAYOUTS)])
def test_the_array_of_entmax(entry: Entry, argument: str, case: tuple[Any, ...]) -> None:
    _, _, change, error, sentence = case
    refused(lambda: entry.call(change(good(entry.kind)["q"])), error, sentence.format(name="x"))


@walk(ENTMAX, [("dim", [
    ("float", BOTH, 1.0, TypeError, "dim is a float; it must be an integer"),
    ("bool", BOTH, True, TypeError, "dim is a bool; it must be an integer"),
    ("None", BOTH, None, TypeError, "dim is a NoneType; it must be an integer"),
    ("tuple", BOTH, (0, 1), TypeError, "dim is a tuple; it must be an integer"),
    ("str", BOTH, "x", TypeError, "dim is a str; it must be an integer"),
    ("beyond", BOTH, 4, ValueError, "dim is 4; x has 4 dimensions"),
    ("before", BOTH, -5, ValueError, "dim is -5; x has 4 dimensions"),
])])  # fmt: skip
def test_the_dimension_of_entmax(entry: Entry, argument: str, case: tuple[Any, ...]) -> None:
    refused(lambda: entry.call(good(entry.kind)["q"], dim=case[2]), case[3], case[4])


@pytest.mark.parametrize("entry", ENTMAX.values(), ids=ENTMAX)
def test_entmax_of_a_scalar(entry: Entry) -> None:
    scalar = good(entry.kind)["q"].reshape(-1)[:1].reshape(())
    refused(lambda: entry.call(scalar), ValueError, "x has 0 dimensions; it must have at least 1")


ALPHAS = [
    ("None", BOTH, None, TypeError, "alpha is a NoneType; it must be a number, or an array of numbers"),
    ("str", BOTH, "1.5", TypeError, "alpha is a str; it must be a number"),
    ("bool", BOTH, True, TypeError, "alpha is a bool; it must be a number"),
    ("NumPy bool", BOTH, np.bool_(True), TypeError, "alpha is a bool"),
    ("complex", BOTH, 1.5 + 0j, TypeError, "alpha is a complex; it must be a number"),
    ("dict", BOTH, {}, TypeError, "alpha is a dict; it must be a number"),
    ("list of str", BOTH, ["1.5"] * 4, TypeError, "alpha is a str; it must be a number"),
    ("list of tensors", BOTH, [torch.tensor(1.5)] * 4, TypeError, "alpha is a list of arrays; it must be a number"),
    ("list of lists", BOTH, [[1.5], [1.5, 1.5]], TypeError, "alpha is a list of arrays; it must be a number"),
    ("complex array", BOTH, np.full(4, 1.5 + 0j), TypeError, "alpha is of complex128; it must be of real numbers"),
    ("complex tensor", BOTH, torch.full((4,), 1.5 + 0j), TypeError, "alpha is of complex64; it must be of real numbers"),
    ("bool tensor", BOTH, torch.ones(4, dtype=torch.bool), TypeError, "alpha is of bool; it must be of real numbers"),
    ("object array", BOTH, np.array([1.5, None], object), TypeError, "alpha is of object; it must be of real numbers"),
    ("masked array", BOTH, np.ma.masked_array([1.5] * 4), TypeError, "alpha is a masked array, whose mask would be lost"),
    ("sparse", TORCH, torch.full((4,), 1.5).to_sparse(), NotImplementedError, "alpha is a tensor of layout sparse_coo"),
    ("meta", TORCH, torch.full((4,), 1.5, device="meta"), ValueError, "alpha is on meta and "),
    ("a gradient", NUMPY, torch.full((4,), 1.5, requires_grad=True), TypeError, "alpha cannot be read through DLPack: "),
    ("one", BOTH, 1, ValueError, "alpha is 1; entmax "),
    ("below", BOTH, np.float32(0.5), ValueError, "alpha is 0.5; entmax "),
    ("nan", BOTH, float("nan"), ValueError, "alpha is nan; entmax "),
    ("inf", BOTH, [float("inf")], ValueError, "alpha is inf; entmax "),
    ("entry", BOTH, [1.5, 0.25, 1.5, 1.5], ValueError, "alpha is 0.25; entmax "),
]


@walk(ATTENTION, [("alpha", [*ALPHAS, ("count", BOTH, [1.5] * 3, ValueError, "alpha has 3 entries; allowed: 1, or "), (
    "empty", BOTH, [], ValueError, "alpha has 0 entries; allowed: 1, or ")])])  # fmt: skip
def test_alpha_of_attention(entry: Entry, argument: str, case: tuple[Any, ...]) -> None:
    if entry.call is module and case[0] in ("sparse", "meta", "a gradient"):
        pytest.skip("a module reads its alpha when it is made")
    refused(lambda: entry.call(**good(entry.kind), alpha=case[2]), case[3], case[4])


@walk(ENTMAX, [("alpha", [*ALPHAS, (
    "shape", BOTH, [1.5] * 3, ValueError, "alpha has shape [3]; it must broadcast to [2, 5, 4], the shape of x without dim")])])  # fmt: skip
def test_alpha_of_entmax(entry: Entry, argument: str, case: tuple[Any, ...]) -> None:
    x = good(entry.kind)["q"][..., :4].swapaxes(1, 2)
    refused(lambda: entry.call(x, alpha=case[2]), case[3], case[4])


@walk(ATTENTION, [
    ("scale", [
        ("str", BOTH, "big", TypeError, "{name} is a str; it must be a number or None"),
        ("bool", BOTH, True, TypeError, "{name} is a bool; it must be a number or None"),
        ("tensor", BOTH, torch.tensor(0.5), TypeError, "{name} is a Tensor; it must be a number or None"),
        ("list", BOTH, [0.5], TypeError, "{name} is a list; it must be a number or None"),
        ("zero", BOTH, 0, ValueError, "{name} is 0; it must be finite and not 0"),
        ("nan", BOTH, float("nan"), ValueError, "{name} is nan; it must be finite and not 0"),
    ]),
    ("k_keep", [
        ("float", BOTH, 2.0, TypeError, "{name} is a float; it must be an integer or None"),
        ("bool", BOTH, True, TypeError, "{name} is a bool; it must be an integer or None"),
        ("tensor", BOTH, torch.tensor(2), TypeError, "{name} is a Tensor; it must be an integer or None"),
        ("str", BOTH, "all", TypeError, "{name} is a str; it must be an integer or None"),
        ("zero", BOTH, 0, ValueError, "{name} is 0; it must be at least 1"),
    ]),
    ("window", [
        ("float", BOTH, 2.0, TypeError, "{name} is a float; it must be an integer or None"),
        ("bool", BOTH, True, TypeError, "{name} is a bool; it must be an integer or None"),
        ("tensor", BOTH, torch.tensor(2), TypeError, "{name} is a Tensor; it must be an integer or None"),
        ("zero", BOTH, 0, ValueError, "{name} is 0; it must be at least 1"),
    ]),
    ("causal", [
        ("str", BOTH, "no", TypeError, "{name} is a str; it must be True or False"),
        ("None", BOTH, None, TypeError, "{name} is a NoneType; it must be True or False"),
        ("int", BOTH, 1, TypeError, "{name} is a int; it must be True or False"),
        ("tensor", BOTH, torch.ones(2, dtype=torch.bool), TypeError, "{name} is a Tensor; it must be True or False"),
        ("array", BOTH, np.ones(2, bool), TypeError, "{name} is a ndarray; it must be True or False"),
    ]),
])  # fmt: skip
def test_a_scalar_of_attention(entry: Entry, argument: str, case: tuple[Any, ...]) -> None:
    if entry.call is transformers_layer and case[2] is None:
        pytest.skip("transformers' is_causal may be None")
    name = entry.names.get(argument, argument)
    refused(lambda: entry.call(**good(entry.kind), **{argument: case[2]}), case[3], case[4].format(name=name))


GOOD_TABLES = {
    "q_positions": np.arange(NQ), "k_positions": np.arange(NK), "cu_seqlens_q": np.array([0, NQ]), "cu_seqlens_k": np.array([0, NK]),
}  # fmt: skip
BAD_TABLES = [
    ("float", BOTH, 1.5, TypeError, "{name} is a float; it must be an array"),
    ("str", BOTH, "all", TypeError, "{name} is a str; it must be an array"),
    ("list of str", BOTH, ["a"], TypeError, "{name} is of str32; it must be of an integer dtype"),
    ("list of floats", BOTH, [0.0, 1.0], TypeError, "{name} is of float64; it must be of an integer dtype"),
    ("ragged", BOTH, [[0], [1, 2]], ValueError, "{name} is a list of parts of unequal shapes; it must be an array"),
    ("bools", BOTH, np.ones(5, bool), TypeError, "{name} is of bool; it must be of an integer dtype"),
    ("float tensor", BOTH, torch.ones(5), TypeError, "{name} is of float32; it must be of an integer dtype"),
    ("masked array", BOTH, np.ma.masked_array([0, 1]), TypeError, "{name} is a masked array, whose mask would be lost"),
    ("sparse", TORCH, torch.eye(5, dtype=torch.int64).to_sparse(), NotImplementedError, "{name} is a tensor of layout sparse_coo"),
    ("meta", TORCH, torch.arange(5, device="meta"), ValueError, "{name} is on meta and {q} on cpu; they must be on one device"),
]  # fmt: skip


@walk(ATTENTION, [
    *((name, [*BAD_TABLES, ("shape", BOTH, np.arange(3), ValueError, "{name} has shape [3]; allowed: [")]) for name in TABLES[:2]),
    *((name, [*BAD_TABLES, ("rank", BOTH, np.array([[0, 5]]), ValueError, "{name} has 2 dimensions; it must have 1")]) for name in TABLES[2:]),
    *((name, [("alone", BOTH, None, ValueError, "only {other} is given; {name} is needed too")]) for name in TABLES),
])  # fmt: skip
def test_a_table_of_attention(entry: Entry, argument: str, case: tuple[Any, ...]) -> None:
    pair = TABLES[:2] if argument in TABLES[:2] else TABLES[2:]
    tables = {name: GOOD_TABLES[name] for name in pair}
    named = {name: entry.names.get(name, name) for name in (*pair, "q")}
    (partner,) = (named[name] for name in pair if name != argument)
    sentence = case[4].format(name=named[argument], other=partner, q=named["q"])
    refused(lambda: entry.call(**good(entry.kind), **{**tables, argument: case[2]}), case[3], sentence)


@pytest.mark.parametrize("entry", ATTENTION.values(), ids=ATTENTION)
def test_attention_of_nothing(entry: Entry) -> None:
    inputs = good(entry.kind)
    for sizes, sentence in (
        (((0, 4, 5, 8), (0, 2, 6, 8)), "batch is 0; it must be at least 1"),
        (((2, 4, 0, 8), (2, 2, 6, 8)), "q_len is 0; it must be at least 1"),
        (((2, 4, 5, 8), (2, 2, 0, 8)), "kv_len is 0; it must be at least 1"),
        (((2, 4, 5, 8), (2, 0, 6, 8)), "kv_heads is 0; it must be at least 1"),
        (((2, 3, 5, 8), (2, 2, 6, 8)), "q_heads is 3 and kv_heads is 2; q_heads must be a multiple of kv_heads"),
    ):
        made = [inputs["q"].reshape(-1)[: int(np.prod(size))].reshape(size) for size in (sizes[0], sizes[1], sizes[1])]
        if entry.call is module and sizes[0][1] != H:
            sentence = "Q has 3 heads; this module was made for 4"
        refused(lambda: entry.call(*made), ValueError, sentence)


@pytest.mark.parametrize("wrong, error, sentence", [
    ({"head_dim": "64"}, TypeError, "head_dim is a str; it must be an integer"),
    ({"head_dim": 64.0}, TypeError, "head_dim is a float; it must be an integer"),
    ({"head_dim": 0}, ValueError, "head_dim is 0; it must be at least 1"),
    ({"num_heads": 0}, ValueError, "num_heads is 0; it must be at least 1"),
    ({"num_heads": "4"}, TypeError, "num_heads is a str; it must be an integer or None"),
    ({"learn_alpha": "no"}, TypeError, "learn_alpha is a str; it must be True or False"),
    ({"adaptive_threshold": None}, TypeError, "adaptive_threshold is a NoneType; it must be True or False"),
    ({"threshold_mode": None}, ValueError, 'threshold_mode is None; allowed are "warm_start" and "direct"'),
])  # fmt: skip
def test_the_module_is_made(wrong: dict[str, Any], error: type[Exception], sentence: str) -> None:
    refused(lambda: AdaptiveSplashAttention(**{"head_dim": D, **wrong}), error, sentence)


# --- unusual, but clear ---

SAME = {
    "alpha": (1.5, [np.float32(1.5), np.float64(1.5), np.float16(1.5), Fraction(3, 2), [1.5], (1.5,), np.array(1.5), torch.tensor(1.5)]),
    "alpha of 2": (2.0, [2, np.int64(2), np.array(2), torch.tensor(2)]),
    "alpha by head": (np.array([1.25, 1.5, 1.75, 2.0]), [
        [1.25, 1.5, 1.75, 2], torch.tensor([1.25, 1.5, 1.75, 2.0]), np.array([1.25, 1.5, 1.75, 2.0], np.float16)]),
    "scale": (0.5, [np.float32(0.5), Fraction(1, 2)]),
    "k_keep": (2, [np.int64(2), np.uint8(2)]),
    "k_keep of all": (None, [2**70, 6]),
    "causal": (True, [np.bool_(True)]),
}  # fmt: skip


@pytest.mark.parametrize("entry", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize("argument", SAME)
def test_unusual_forms_mean_the_same(entry: Entry, argument: str) -> None:
    usual, others = SAME[argument]
    name = argument.split()[0]
    if name in entry.without:
        pytest.skip(f"it has no {name}")
    inputs = good(entry.kind)
    expected = entry.call(**inputs, **{name: usual})
    for value in others:
        assert (entry.call(**inputs, **{name: value}) == expected).all(), repr(value)


@pytest.mark.parametrize("entry", ATTENTION.values(), ids=ATTENTION)
def test_tables_of_other_kinds(entry: Entry) -> None:
    inputs = good(entry.kind)
    for pair in (TABLES[:2], TABLES[2:]):
        if pair[0] in entry.without:
            continue
        tables = {name: GOOD_TABLES[name] for name in pair}
        expected = entry.call(**inputs, **tables)
        narrow = (lambda t: t.astype(np.uint8), lambda t: torch.from_numpy(t).int())
        for change in (list, lambda t: tuple(t.tolist()), torch.from_numpy, *narrow):
            out = entry.call(**inputs, **{name: change(table) for name, table in tables.items()})
            assert (out == expected).all()
    if "q_positions" not in entry.without:  # beyond int64 is far away, not before everything
        far = np.full(NQ, 2**63, np.uint64)
        seen = entry.call(**inputs, q_positions=far, k_positions=GOOD_TABLES["k_positions"])
        assert (seen == entry.call(**inputs)).all()


def test_arrays_of_the_other_byte_order() -> None:
    inputs = good("numpy")
    swapped = {name: array.astype(">f4") for name, array in inputs.items()}
    np.testing.assert_array_equal(splash_attention(**swapped), splash_attention(**inputs))
    np.testing.assert_array_equal(splash_attention(inputs["q"], swapped["k"], inputs["v"]), splash_attention(**inputs))
    np.testing.assert_array_equal(entmax(swapped["q"]), entmax(inputs["q"]))


@pytest.mark.parametrize("transform", [torch.func.jacfwd, torch.func.hessian, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))])
def test_forward_mode_is_refused_under_transforms(transform: Callable[..., Any]) -> None:
    inputs = good("torch")
    with pytest.raises(NotImplementedError, match="forward-mode differentiation of entmax and of entmax attention is not"):
        transform(lambda x: entmax(x).square().sum())(inputs["q"][0, 0, 0])
    with pytest.raises(NotImplementedError, match="forward-mode differentiation of entmax and of entmax attention is not"):
        transform(lambda q: splash_attention(q, inputs["k"], inputs["v"]).square().sum())(inputs["q"])


@pytest.mark.parametrize("learned", [False, True])
def test_meta_and_fake_tensors(learned: bool) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def check(device: str) -> None:
        q, k, v = (torch.empty(tensor.shape, device=device, requires_grad=learned) for tensor in good("torch").values())
        alpha = torch.full((H,), 1.5, device=device, requires_grad=learned)
        row = torch.full((B, H, NQ), 1.5, device=device, requires_grad=learned)
        outs = [splash_attention(q, k, v, alpha=alpha), entmax(q), entmax(q, row), entmax(q, 2, dim=0), sparsemax(q.bfloat16())]
        with torch.device(device):
            attention = AdaptiveSplashAttention(D, num_heads=H, learn_alpha=learned)
        outs.append(attention(q, k, v))
        for out in outs:
            assert out.shape == q.shape and out.device.type == device
        if learned:
            sum(out.float().sum() for out in outs).backward()
            assert alpha.grad.shape == alpha.shape and row.grad.shape == row.shape and q.grad.shape == q.shape
        with pytest.raises(ValueError, match="alpha is 1; entmax "):
            entmax(q, 1.0)

    check("meta")
    with FakeTensorMode():
        check("cpu")
