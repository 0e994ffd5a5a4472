"""What both modes share: calls of the kernels for some heads, beside what travels."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import torch
from torch import Tensor

from splash_attention.backends.torch import calls, cuda, operators
from splash_attention.backends.torch.operators import Problem


class Heads(NamedTuple):
    """Some of the key heads, and the query heads that share them."""

    keys: slice
    queries: slice


def cuts(heads: int, kv_heads: int, at_once: int, first: int = 0, last: int | None = None) -> list[Heads]:
    """Key heads from first to last, so many at a time."""
    shared, last = heads // kv_heads, kv_heads if last is None else last
    ends = [(at, min(at + at_once, last)) for at in range(first, last, at_once)]
    return [Heads(slice(a, b), slice(a * shared, b * shared)) for a, b in ends]


def arriving(cuts: Sequence[Heads], start: Callable[[Heads], tuple[Any, list[Tensor]]]) -> Iterator[tuple[Heads, list[Tensor]]]:
    """Some heads after others, and what arrives of each, the next ones' on its way. start: (an exchange, what it fills)."""
    coming = start(cuts[0])
    for at, heads in enumerate(cuts):
        exchange, filled = coming
        if at + 1 < len(cuts):
            coming = start(cuts[at + 1])
        exchange.finish()
        yield heads, filled


def in_groups(
    cuts: Sequence[Heads], device: torch.device, start: Callable[[Heads], tuple[Any, list[Tensor]]],
    compute: Callable[[int, list[Tensor]], Any], send: Callable[[Heads, Any], list[Any]],
) -> None:  # fmt: skip
    """Some heads after others: their tokens arrive, kernels compute, results go home.

    start: an exchange, and what it fills. compute: of a group's number and what arrived, its results. send: exchanges of these.

    On a GPU groups take two streams in turn: the kernels of one fill the multiprocessors that those of the one before leave, and its tokens
    travel beside them. What a group allocates belongs to its stream, in whose order PyTorch hands memory on. Exchanges go one after
    another, so a group's tokens are asked for before the results of the group before, which wait for kernels.
    """
    lanes = _lanes(device) if len(cuts) > 1 else ()
    results: dict[int, Any] = {}  # by group: of kernels
    going: dict[int, list[Any]] = {}  # on their way

    def in_lane(group: int) -> Any:
        return torch.cuda.stream(lanes[group % 2]) if lanes else contextlib.nullcontext()

    def send_home(group: int) -> None:
        with in_lane(group):
            going[group] = send(cuts[group], results.pop(group))

    def arrive(group: int) -> None:
        for one in going.pop(group, ()):
            one.finish()

    with in_lane(0):
        exchange, coming = start(cuts[0])
    for at in range(len(cuts)):
        with in_lane(at):
            arrive(at - 2)  # its memory is free for this group
            exchange.finish()
            results[at] = compute(at, coming)
        if at + 1 < len(cuts):
            with in_lane(at + 1):
                exchange, coming = start(cuts[at + 1])
        if at > 0:
            send_home(at - 1)
    send_home(len(cuts) - 1)
    for group in list(going):
        with in_lane(group):
            arrive(group)
    if lanes:
        lanes[1].wait_stream(lanes[0])


def _lanes(device: torch.device) -> tuple[Any, ...]:
    """None on a CPU; else another stream, behind the current one's work so far, and the current one."""
    if device.type != "cuda":
        return ()
    current = torch.cuda.current_stream(device)
    other = _beside(device)
    other.wait_stream(current)
    return other, current


@functools.cache
def _beside(device: torch.device) -> Any:
    """The first group's kernels go before the second's."""
    return torch.cuda.Stream(device, priority=-1)


def problem_of(problem: Problem, queries: slice) -> Problem:
    """Of some query heads."""

    def some(value: Tensor | None) -> Tensor | None:
        return value if value is None or value.shape[0] == 1 else value.detach()[queries]

    of_heads = {name: some(getattr(problem, name)) for name in ("alpha", "head_k_keep", "sinks", "bias")}
    return problem._replace(**of_heads)


def forward(call: Any, q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, ...]:
    """out, tau, support (empty unless counted) and the store."""
    capacity = cuda.capacity_for(q, k) if call.differentiable and q.is_cuda else -1
    out, tau, support, _, store = calls.attention_alone(q, k, v, *problem, call.counted, False, capacity)
    return out, tau, support, store


def backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, problem: Problem, store: Tensor) -> tuple[Any, ...]:
    """Gradients by q, k, v, alpha, sinks and bias; the last three may be None where there are none."""
    return calls.attention_backward_alone(d_out, q, k, v, *problem, store)


class Learned:
    """Gradients by alpha, sinks and bias, of groups of heads."""

    def __init__(self, parameters: Sequence[Tensor | None], heads: int) -> None:
        self.parameters, self.heads = parameters, heads
        self.sums: list[Tensor | None] = [None] * len(parameters)

    def add(self, queries: slice, *gradients: Tensor | None) -> None:
        """In the order in which it is called. gradients: [heads, …]; of parameters that are None they are not looked at."""
        for at, (parameter, part) in enumerate(zip(self.parameters, gradients)):
            if parameter is None or part is None:
                continue
            total = self.sums[at]
            if total is None:
                total = self.sums[at] = part.new_zeros((self.heads, *part.shape[1:]), dtype=torch.float64)
            total[queries] += part

    def results(self) -> tuple[Tensor | None, ...]:
        (alpha, of_alpha), *others = zip(self.parameters, self.sums)
        d_alpha = None if of_alpha is None else operators.alpha_gradient(alpha, of_alpha)
        return d_alpha, *(None if total is None or x is None else total.to(x.dtype) for x, total in others)
