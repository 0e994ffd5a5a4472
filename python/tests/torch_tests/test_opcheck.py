"""torch.library.opcheck on every operator: schema, registration of gradients, fake tensors, ahead-of-time dispatch with dynamic shapes."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
import splash_attention.decoding  # noqa: E402, F401  registers the operators of decoding
from splash_attention._core import DECODE_RECENT_WORDS  # noqa: E402
from splash_attention.backends.torch.functional import problem_of  # noqa: E402
from splash_attention.backends.torch.operators import NAMESPACE, TABLES  # noqa: E402
from splash_attention.modifications import NONE, Modifications  # noqa: E402

OPS = torch.ops.splash_attention
ROWS, KEYS = 5, 7
HEAD_ALPHA = torch.tensor([1.2, 1.5, 1.8, 2.0])
PROBLEMS = {
    "all keys": {},
    "a number alpha": {"alpha": 1.7},
    "one alpha": {"alpha": torch.tensor([1.3])},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 3},
    "positions": {"q_positions": torch.tensor([3, 0, 5, 2, 9]), "k_positions": torch.tensor([1, 4, 0, 2, 8, 3, 9])},
    "packed": {"causal": True, "cu_seqlens_q": torch.tensor([0, 2, ROWS]), "cu_seqlens_k": torch.tensor([0, 4, KEYS])},
    "k_keep": {"k_keep": 3},
    "k_keep of heads": {"k_keep": [1, 0, 3, 9]},
    "thresholds": {"tau_offsets": -torch.rand(2, 4, ROWS)},
    "bias": {"modifications": Modifications(bias=torch.randn(4, 6), bias_first=-4)},
    "mask": {"modifications": Modifications(mask=torch.rand(2, 1, ROWS, KEYS) < 0.6)},
    "modified": {"causal": True, "modifications": Modifications(2.0, torch.tensor([0.5, -1.0, 1.0, -torch.inf]), 0.3)},
}
ROW_ALPHA = {"a number alpha": (None, 1.5), "one alpha": (torch.tensor([1.3]), 0.0), "alpha of rows": (HEAD_ALPHA, 0.0)}
seen: set[str] = set()


def opcheck(operator, arguments, checks=None):
    seen.add(operator._qualified_op_name)
    torch.library.opcheck(operator, arguments, **({"test_utils": checks} if checks else {}))


def learned(tensor):
    return tensor.clone().requires_grad_() if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() else tensor


@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float32) for name in PROBLEMS), ("causal", torch.bfloat16)])
def test_attention(name, dtype):
    given = {"alpha": HEAD_ALPHA, "causal": False, "k_keep": None, "tau_offsets": None, **PROBLEMS[name]}
    q, k, v = (torch.randn(2, heads, length, 8, dtype=dtype) for heads, length in ((4, ROWS), (2, KEYS), (2, KEYS)))
    tables = {table: given.get(table) for table in TABLES}
    fixed = (given["alpha"], given["causal"], None, given["k_keep"], given.get("window"))
    problem = problem_of(q, k, v, *fixed, tables, modifications=given.get("modifications", NONE))
    problem = problem._replace(tau_offsets=given["tau_offsets"])
    for kept in ((True, True, -1), (False, False, 16)) if name == "all keys" else ((True, False, 16),):
        opcheck(OPS.attention, (*map(learned, (q, k, v)), *problem._replace(alpha=learned(problem.alpha), sinks=learned(problem.sinks), bias=learned(problem.bias)), *kept))
    opcheck(OPS.probabilities, (q, k, *problem))
    out, *_, store = OPS.attention(q, k, v, *problem, False, False, -1)
    opcheck(OPS.attention_backward, (torch.randn_like(out), q, k, v, *problem, store))


@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float32) for name in ROW_ALPHA), ("one alpha", torch.float16)])
def test_entmax(name, dtype):
    alpha, number = ROW_ALPHA[name]
    x = torch.randn(4, 9, dtype=dtype)
    opcheck(OPS.entmax, (learned(x), learned(alpha), number))
    opcheck(OPS.entmax_backward, (OPS.entmax(x, alpha, number), torch.randn_like(x), alpha, number))


OF_FP8 = ("test_autograd_registration", "test_faketensor")  # PyTorch's other checks multiply its numbers, which it cannot


@pytest.mark.parametrize("heads_first", [False, True])
def test_decode(heads_first):
    keys, values = (torch.randn((3, 2, 16, 8) if heads_first else (3, 16, 2, 8)) for _ in range(2))
    block_table, lengths = torch.tensor([[2, 0], [1, -1]], dtype=torch.int32), torch.tensor([20, 9], dtype=torch.int32)
    opcheck(OPS.decode_append, (keys, values, *(torch.randn(2, 2, 3, 8) for _ in range(2)), block_table, lengths, heads_first))
    low_bit, numbers = torch.zeros(0, dtype=torch.uint8), (torch.tensor([1.5]), torch.tensor([0.3]))
    opcheck(OPS.decode_fill, (low_bit, keys, values, block_table, lengths, None, 2, heads_first, 0))
    wide = [torch.randn((3, 2, 16, 64) if heads_first else (3, 16, 2, 64)) for _ in range(2)]
    copies = torch.zeros(3 * 2 * (4 * 64 + 2 * 16 + 16 * 64 // 2), dtype=torch.uint8)
    opcheck(OPS.decode_fill, (copies, *wide, block_table, lengths, torch.tensor([17, 0], dtype=torch.int32), 2, heads_first, 4))
    opcheck(OPS.decode, (torch.randn(2, 4, 3, 64), *wide, copies, block_table, lengths, *numbers, heads_first, 4))
    arguments = (torch.randn(2, 4, 3, 8), keys, values, low_bit, block_table, lengths, *numbers, heads_first, 0)
    opcheck(OPS.decode, arguments)
    broad, recent = torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, 2, DECODE_RECENT_WORDS, dtype=torch.int32)
    opcheck(OPS.decode, (*arguments, 0, 0, broad, recent))
    keys, values = (pool.to(torch.float8_e4m3fn) for pool in (keys, values))
    rows, scales = [torch.randn(2, 2, 3, 8).bfloat16() for _ in range(2)], (torch.tensor([0.1]), torch.tensor([0.2]))
    opcheck(OPS.decode_append, (keys, values, *rows, block_table, lengths, heads_first, *scales), OF_FP8)
    arguments = (torch.randn(2, 4, 3, 8).bfloat16(), keys, values, *arguments[3:])
    opcheck(OPS.decode, (*arguments, 0, 0, broad, recent, *scales), OF_FP8)


def test_every_operator_was_checked():
    if not seen or "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("the tests above did not run before, in this process")
    defined = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith(f"{NAMESPACE}::")}
    assert defined and seen == defined
