"""That all ranks of a group call with the same shapes, dtypes and options, and with finite numbers: told on every rank, in one sentence.

Each rank tells 24 bytes: whether its own checks passed, whether its numbers are finite, and a hash of what must be equal. Only where
something is wrong do the ranks tell one another what.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from splash_attention import checks
from splash_attention.distributed import groups

_WHAT = "to compare what the ranks call with"
_Made = TypeVar("_Made")


def told(value: Any) -> str:
    """Of an option. Tensors are told by their values: all ranks must have the same."""
    if not isinstance(value, Tensor):
        return repr(value)
    values = value.detach().cpu().contiguous()
    if values.numel() <= 64:
        return f"{checks.dtype_name(value)} {values.tolist()}"
    digest = hashlib.sha256(values.view(torch.uint8).numpy()).hexdigest()[:12]
    return f"{checks.dtype_name(value)} {list(value.shape)} with hash {digest}"


def agree(
    group: Any, seconds: float, make: Callable[[], _Made], describe: Callable[[_Made], dict[str, str]],
    numbers: Callable[[], dict[str, Tensor]],
) -> _Made:  # fmt: skip
    """What make() returns, once all ranks agree. make: the rank's own checks, which may raise. describe: what must be equal, by name.
    numbers: then tells the tensors that must be finite.

    Raises what make() raised on the rank where it did; else ValueError: on every other rank, and on all where descriptions differ or a
    number is NaN or infinite. Raises TimeoutError where a rank does not come.
    """
    groups.meet(group, seconds)
    made, wrong, described, given, finite = None, None, {}, {}, None
    try:
        made = make()
        described, given = describe(made), numbers()
        finite = _finite(given)
    except Exception as error:  # whatever it is, the other ranks are waiting
        wrong = error
    digest = hashlib.sha256(repr(sorted(described.items())).encode()).digest()
    mine = [int(wrong is not None), int.from_bytes(digest[:8], "little", signed=True)]
    everyone = _all_gather(group, seconds, mine, finite)
    if any(refused or not good for refused, _, good in everyone) or len({digest for _, digest, _ in everyone}) > 1:
        odd = [] if finite is None else [name for name, good in zip(given, finite.tolist()) if not good]
        problem = {"error": f"{type(wrong).__name__}: {wrong}" if wrong else "", "odd": odd, "described": described}
        problems: list[Any] = [None] * len(everyone)
        dist.all_gather_object(problems, problem, group=group)
        sentence = _sentence(problems, dist.get_process_group_ranks(group))
        if wrong:
            raise wrong
        raise ValueError(sentence)
    assert made is not None
    return made


def _finite(numbers: dict[str, Tensor]) -> Tensor:
    """Of each, 1 where it has neither NaN nor infinity, else 0. Nothing is waited for."""
    with torch.no_grad():
        extremes = [torch.stack(torch.aminmax(x.detach())) if x.numel() else x.new_zeros(2) for x in numbers.values()]
        return torch.stack(extremes).isfinite().all(1)


def _all_gather(group: Any, seconds: float, mine: list[int], finite: Tensor | None) -> list[list[int]]:
    """Of each rank: mine, and whether all is finite, which on a GPU is waited for with the rest."""
    device = groups.control_device(group)
    numbers = torch.ones(3, dtype=torch.int64)
    numbers[:2] = torch.tensor(mine)
    numbers = numbers.to(device)
    if finite is not None:
        numbers[2] = finite.all()
    work, everyone = groups.all_gather(numbers, group)
    groups.wait(work, seconds, _WHAT)
    return everyone.tolist()


def _sentence(problems: list[Any], ranks: list[int]) -> str:
    for rank, problem in zip(ranks, problems):
        if problem["error"]:
            return f"rank {rank} refused its arguments: {problem['error']}"
    for rank, problem in zip(ranks, problems):
        if problem["odd"]:
            return f"{problem['odd'][0]} has NaN or infinity on rank {rank}; its numbers must be finite"
    names = dict.fromkeys(name for problem in problems for name in problem["described"])
    for name in names:
        values: dict[str, list[int]] = {}
        for rank, problem in zip(ranks, problems):
            values.setdefault(problem["described"].get(name, "none"), []).append(rank)
        if len(values) > 1:
            said = "; ".join(f"{value} on {_ranks(some)}" for value, some in values.items())
            return f"{name} differs between ranks: {said}; it must be the same on all"
    return "ranks differ in what they call with"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
