"""ring_splash_attention: one call on every rank, each with its tokens of the sequence."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from splash_attention import checks
from splash_attention.auxiliary import EntmaxAux
from splash_attention.backends.torch.functional import as_autocast_has_it, check_tensors, is_odd, problem_of
from splash_attention.backends.torch.operators import TABLES, Problem, spec_of
from splash_attention.distributed import by_gathering, by_heads, modes
from splash_attention.distributed.agreement import agree, told
from splash_attention.distributed.groups import process_group
from splash_attention.distributed.packing import lengths_of
from splash_attention.distributed.shards import Shards
from splash_attention.folding import is_alpha_of_batch
from splash_attention.modifications import Modifications

MODES = ("auto", "gather", "heads")


class Call(NamedTuple):
    """What a rank was asked for, checked."""

    group: Any
    rank: int
    shards: Shards
    mode: str
    """Not auto."""
    heads_at_once: int
    """Key heads that are gathered at a time."""
    problem: Problem
    """Of the rank's own tokens, without tables."""
    lengths: tuple[int, ...] | None
    """cu_seqlens of the whole sequence."""
    counted: bool
    differentiable: bool


def ring_splash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any = None,
    shard: str = "zigzag",
    mode: str = "auto",
    heads_at_once: int | None = None,
    alpha: Any = 1.5,
    causal: bool = False,
    scale: float | None = None,
    k_keep: Any = None,
    window: int | None = None,
    cu_seqlens: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    bias: Any = None,
    bias_first: int | None = None,
    return_aux: bool = False,
    check: bool = True,
    timeout: float = 120.0,
    **refused: Any,
) -> Any:
    """Exact α-entmax attention over a sequence of which every rank of a group holds a shard: what splash_attention gives for the whole,
    within rounding, with the same support for any number of ranks, and the same bits from run to run.

    q: [batch, q_heads, length, head_dim]; k, v: [batch, kv_heads, length, head_dim]: this rank's tokens, as many on every rank.
    group: a ProcessGroup, a DeviceMesh of one dimension, or None, which is all ranks.
    shard: how the sequence lies over the ranks, as `distributed.shard` cuts it. "zigzag" balances causal work; "contiguous"; "striped",
    of which mode "gather" has causal kernels on the slower portable path only.
    mode: "gather" brings the keys and values of all ranks to each, a few heads at a time while others are computed. "heads" gives each
    rank whole sequences of its heads (DeepSpeed-Ulysses, arXiv 2309.14509), and needs kv_heads divisible by the number of ranks. "auto"
    takes the faster by a model of time (distributed/modes.py).
    heads_at_once: key heads that are gathered at a time; None chooses.
    alpha, causal, scale, k_keep, softcap, sinks, bias, bias_first: as splash_attention has them, the same on all ranks. window and bias
    need causal=True where keys are gathered, and no striped shards; a bias no cu_seqlens.
    cu_seqlens: packed sequences, rising from 0 to the length of the whole; the same of queries and keys. Not with striped shards. A tensor
    on a GPU is waited for in each call; a list is not.
    check: compares shapes, dtypes, options and learned values between ranks, and looks for NaN and infinity, before anything large is
    sent: 24 bytes a rank, one pass over q, k and v, and one wait for the GPU. Without it ranks that differ hang or give nonsense.
    timeout: seconds that the check waits for other ranks.

    Returns out, as q; with return_aux (out, EntmaxAux), tau and support [batch, q_heads, length] of this rank's rows. Differentiable by q,
    k, v and tensors alpha, sinks and bias. Gradients of the last three are the part of this rank's call, as those of all parameters
    are: DistributedDataParallel, FSDP or `distributed.sum_gradients` add them up.
    Raises TypeError, ValueError and NotImplementedError as splash_attention does, on the rank whose arguments are wrong, and ValueError on
    all others; ValueError on all where ranks differ, TimeoutError where one does not come, RuntimeError where one is gone.
    """
    group = process_group(group)
    arguments = (shard, mode, heads_at_once, alpha, causal, scale, k_keep, window, cu_seqlens, softcap, sinks, bias, bias_first, return_aux, check)

    def make() -> Call:
        nonlocal q, k, v
        facts = None if refused else _facts(group, q, k, v, arguments)
        if known := _checked.get(facts):
            return known._replace(group=group)
        check_tensors(q, k, v)
        q, k, v = as_autocast_has_it(q, k, v)
        _refuse(refused, alpha, q, q.shape[2] if q.dim() == 4 else 0, k.shape[2] if k.dim() == 4 else 0)
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; allowed are {', '.join(MODES)}")
        modifications = Modifications(softcap, sinks, 0.0, bias, bias_first)
        tables = dict.fromkeys(TABLES)
        problem = problem_of(q, k, v, alpha, causal, scale, k_keep, window, tables, modifications=modifications)
        shards = Shards(shard, group.size())
        learned = any(x is not None and x.requires_grad for x in problem.learned)
        differentiable = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or learned)
        lengths = lengths_of(cu_seqlens, shards.ranks * q.shape[2])
        chosen, at_once = modes.choose(mode, heads_at_once, shards, q.shape, k.shape, q.element_size(), problem, lengths)
        counted = checks.check_flag("return_aux", return_aux)
        call = Call(group, group.rank(), shards, chosen, at_once, problem, lengths, counted, differentiable)
        if check:  # what one rank's call of the library would refuse, all must hear of before
            for given in ((q, k, problem), *(by_gathering.asked(call, q, k) if chosen == "gather" else ())):
                spec_of(*given)
        if facts is not None:
            if len(_checked) >= _MOST_CHECKED:
                _checked.clear()
            _checked[facts] = call._replace(group=None)
        return call

    def describe(call: Call) -> dict[str, str]:
        shapes = {"q's shape": list(q.shape), "k's shape": list(k.shape), "dtype": checks.dtype_name(q), "device": q.device.type}
        options = {"shard": shard, "mode": mode, "heads_at_once": call.heads_at_once, "cu_seqlens": call.lengths}
        wanted = {"return_aux": call.counted, "whether a gradient is wanted": call.differentiable}
        p = call.problem._asdict()
        p |= {"alpha": p["alpha_value"] if p["alpha"] is None else p["alpha"], "k_keep": p["head_k_keep"] if p["k_keep"] == 0 else p["k_keep"]}
        problem = {name: told(value) for name, value in p.items() if name not in (*TABLES, "alpha_value", "head_k_keep")}
        return {**{name: str(value) for name, value in (shapes | options | wanted).items()}, **problem}

    call = agree(group, timeout, make, describe, lambda: {"q": q, "k": k, "v": v}) if checks.check_flag("check", check) else make()
    out, tau, support = (by_heads if call.mode == "heads" else by_gathering).attend(call, q, k, v)
    return (out, EntmaxAux(tau, support)) if call.counted else out


_MOST_CHECKED = 256
_checked: dict[Any, Call] = {}  # by what their checks looked at: these take the host longer than a GPU needs to begin
_PLAIN = {bool, int, float, str, type(None)}


def _facts(group: Any, q: Any, k: Any, v: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """All that a call's checks look at; None where they look at values of tensors, or at what is not plain."""
    kinds = tuple(map(type, arguments))
    if not (type(q) is type(k) is type(v) is Tensor and _PLAIN.issuperset(kinds)):
        return None
    if torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled() or is_odd(q, k, v):
        return None
    gradient = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    tensors = q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device
    return group.rank(), group.size(), gradient, tensors, arguments, kinds


def _refuse(others: dict[str, Any], alpha: Any, q: Tensor, q_len: int, kv_len: int) -> None:
    """What splash_attention takes, and one sequence over several ranks does not."""
    why = {
        "q_positions": "places follow from shard", "k_positions": "places follow from shard",
        "cu_seqlens_q": "pass cu_seqlens of the whole sequence", "cu_seqlens_k": "pass cu_seqlens of the whole sequence",
        "mask": "pass causal, window or cu_seqlens", "dropout": "pass 0",
    }  # fmt: skip
    for name, value in others.items():
        if name not in why:
            raise TypeError(f"ring_splash_attention has no argument {name!r}")
        if value is not None and not (name == "dropout" and value == 0):
            raise NotImplementedError(f"attention over several ranks takes no {name}; {why[name]}")
    if is_alpha_of_batch(alpha, q):
        raise NotImplementedError("attention over several ranks takes one alpha, or one a query head, not one a batch entry")
    if q_len != kv_len:
        raise ValueError(f"q has {q_len} tokens and k {kv_len}; a rank's shard has the same tokens of both")
