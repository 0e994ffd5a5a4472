"""What both modes share: calls of the kernels for some heads, beside what travels."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import torch
from torch import Tensor

from splash_attention import _core
from splash_attention.backends.torch import calls, cuda, operators
from splash_attention.backends.torch.operators import Problem


LANES = 4  # PyTorch has as many priorities of streams


class Heads(NamedTuple):
    """Some of the key heads, and the query heads that share them."""

    keys: slice
    queries: slice


def cuts(heads: int, kv_heads: int, at_once: int, first: int = 0, last: int | None = None) -> list[Heads]:
    """Key heads from first to last, so many at a time, and what remains first: nothing is computed beside the first ones' tokens."""
    shared, last = heads // kv_heads, kv_heads if last is None else last
    bounds = [first, *range(first + ((last - first) % at_once or at_once), last + 1, at_once)]
    ends = list(zip(bounds, bounds[1:]))
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


class Groups:
    """Some heads after others: their tokens arrive, kernels compute, results go home. The first ones' tokens set out when it is made.

    On a GPU groups take LANES streams in turn: the kernels of one fill the multiprocessors that those of the one before leave, and its tokens
    travel beside them. Each stream has a lower priority than the one before, or a group would overtake the one before it, and both would end
    together, with nothing to compute beside their results.

    What a group allocates belongs to its stream, in whose order PyTorch hands memory on. So its tokens get their room before the stream is
    given the kernels of an earlier group, or they would wait for these. Exchanges go one after another, so a group's tokens are asked for
    before the results of the group before, which wait for kernels.
    """

    def __init__(
        self, cuts: Sequence[Heads], device: torch.device, room: Callable[[Heads], list[Tensor]],
        start: Callable[[Heads, list[Tensor], Any, bool], Any],
    ) -> None:  # fmt: skip
        """room: what the tokens of some heads fill. start: an exchange that fills it; the last two: as exchange.start has them."""
        self.cuts, self.device, self.room, self.start = cuts, device, room, start
        self.rooms: dict[int, tuple[list[Tensor], Any]] = {}
        with self._on_device():
            self.lanes = _lanes(device, min(LANES, len(cuts))) if len(cuts) > 1 else ()
            with self._in_lane(0):
                self.first = self._set_out(0)

    def run(self, compute: Callable[[int, list[Tensor]], Any], send: Callable[[Heads, Any, bool], list[Any]]) -> None:
        """Once. compute: of a group's number and what arrived, its results. send: exchanges of these; whether nothing is computed meanwhile."""
        with self._on_device():
            self._run(compute, send)

    def _run(self, compute: Callable[[int, list[Tensor]], Any], send: Callable[[Heads, Any, bool], list[Any]]) -> None:
        cuts, (exchange, coming), lanes = self.cuts, self.first, len(self.lanes) or 2
        del self.first
        results: dict[int, Any] = {}  # by group: of kernels
        going: dict[int, list[Any]] = {}  # on their way

        def send_home(group: int) -> None:
            with self._in_lane(group):
                going[group] = send(cuts[group], results.pop(group), group + 1 == len(cuts))

        def arrive(group: int) -> None:
            for one in going.pop(group, ()):
                one.finish()

        for at in range(len(cuts)):
            with self._in_lane(at):
                arrive(at - lanes)  # its memory is free for this group
                if at + lanes < len(cuts):
                    self._make_room(at + lanes)
                if at > 0 and at % lanes == 0 and self.lanes:
                    _let_wait(self.lanes[0], self.lanes[-1])  # priorities begin anew
                exchange.finish()
                results[at] = compute(at, coming)
            if at + 1 < len(cuts):
                with self._in_lane(at + 1):
                    exchange, coming = self._set_out(at + 1)
            if at > 0:
                send_home(at - 1)
        send_home(len(cuts) - 1)
        for group in list(going):
            with self._in_lane(group):
                arrive(group)
        for lane in self.lanes[:-1]:
            _let_wait(self.lanes[-1], lane)

    def _make_room(self, group: int) -> None:
        """In its lane. The first group of a lane waits for all that the lane has: that is of earlier calls."""
        first = group < len(self.lanes) or not self.lanes
        self.rooms[group] = self.room(self.cuts[group]), None if first else _point(self._lane(group))

    def _set_out(self, group: int) -> tuple[Any, list[Tensor]]:
        """In its lane."""
        if group not in self.rooms:
            self._make_room(group)
        filled, free = self.rooms.pop(group)
        return self.start(self.cuts[group], filled, free, group == 0), filled

    def _lane(self, group: int) -> Any:
        return self.lanes[group % len(self.lanes)]

    def _on_device(self) -> Any:
        """set_stream makes a stream's device the current one."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def _in_lane(self, group: int) -> Any:
        return _On(self._lane(group), self.lanes[-1]) if self.lanes else contextlib.nullcontext()


class _On:
    """torch.cuda.stream, without asking for the current stream each time, which keeps the host."""

    def __init__(self, stream: Any, current: Any) -> None:
        self.stream, self.current = stream, current

    def __enter__(self) -> None:
        torch.cuda.set_stream(self.stream)

    def __exit__(self, *_: Any) -> None:
        torch.cuda.set_stream(self.current)


def _lanes(device: torch.device, count: int) -> tuple[Any, ...]:
    """None on a CPU; else other streams, behind the current one's work so far, and last the current one."""
    if device.type != "cuda":
        return ()
    current = torch.cuda.current_stream(device)
    others, so_far = [_beside(device, priority) for priority in range(1 - count, 0)], _point(current)
    for other in others:
        so_far.await_by(other.cuda_stream)
    return *others, current


def _let_wait(stream: Any, other: Any) -> None:
    """For the other's work so far."""
    _point(other).await_by(stream.cuda_stream)


def _point(stream: Any) -> Any:
    return _core.StreamPoint(stream.device_index, stream.cuda_stream)


@functools.cache
def _beside(device: torch.device, priority: int) -> Any:
    return torch.cuda.Stream(device, priority=priority)


def problem_of(problem: Problem, queries: slice) -> Problem:
    """Of some query heads."""
    if problem.alpha is problem.head_k_keep is problem.sinks is problem.bias is None:
        return problem

    def some(value: Tensor | None) -> Tensor | None:
        return value if value is None or value.shape[0] == 1 else value.detach()[queries]

    of_heads = {name: some(getattr(problem, name)) for name in ("alpha", "head_k_keep", "sinks", "bias")}
    return problem._replace(**of_heads)


def forward(call: Any, q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, ...]:
    """out, the store, and where they are counted tau and support."""
    if not call.counted and problem.is_plain:
        return calls.output_alone(q, k, v, *problem, keeps=call.differentiable)
    capacity = cuda.capacity_for(q, k) if call.differentiable and q.is_cuda else -1
    out, tau, support, _, store = calls.attention_alone(q, k, v, *problem, call.counted, False, capacity)
    return (out, store, tau, support) if call.counted else (out, store)


def point(tensor: Tensor) -> Any:
    """How far the current stream is; None on a CPU."""
    return _core.StreamPoint(tensor.get_device(), cuda.current_stream(tensor)) if tensor.is_cuda else None


def backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, problem: Problem, store: Tensor, d_q_done: Any = None) -> tuple[Any, ...]:
    """Gradients by q, k, v, alpha, sinks and bias; the last three may be None where there are none. d_q_done: of point(), recorded anew where the
    first is there."""
    return calls.attention_backward_alone(d_out, q, k, v, *problem, store, d_q_done=d_q_done)


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
