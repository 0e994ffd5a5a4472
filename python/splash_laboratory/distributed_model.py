"""A model of time of exact entmax attention over many GPUs, by bytes and rates. It is no measurement.

One GPU's measured time of the case is shared out evenly (zigzag shards balance causal work), and what a rank receives takes its bytes over the
link's rate. Two times come out: exchanges wholly hidden behind work, and none hidden. splash_laboratory.scaling sets what was measured beside
them. Left out: copies, launches and latencies (so below about a millisecond it is too short), and kernels that a small shard does not fill.

Bytes that a rank receives, W ranks of n tokens, H and h query and key heads, e bytes a number (decision 0059), in n · head_dim · e:

  gather   forward 2h (W - 1): keys and values; backward twice that: the same again, and at most as much of their gradients
  heads    forward (2H + 2h) (W - 1) / W: q, k, v and out; backward as much: d_out and the gradients. W must divide h

Between hosts, gathered keys come to a host once, through the adapters of all its GPUs together; exchanges of heads and gradients are of one
rank with one other. Where both the network and NVLink carry bytes, the slower one counts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """Causal self-attention over one sequence, batch 1."""

    length: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int = 2
    """Bytes a number."""


@dataclass(frozen=True)
class Rates:
    """Bytes a second that a rank receives."""

    link: float = 313e9
    """NVLink 4 between two H100s of one host, measured by torch.distributed; its data sheet says 450e9 a direction."""
    network: float = 50e9
    """An adapter a GPU of 400 Gb/s, as a DGX H100 has them (data sheet)."""
    gpus_a_host: int = 8


@dataclass(frozen=True)
class Modelled:
    """Seconds of one pass."""

    mode: str
    computing: float
    exchanging: float

    @property
    def hidden(self) -> float:
        return max(self.computing, self.exchanging)

    @property
    def in_turn(self) -> float:
        return self.computing + self.exchanging


def received_bytes(problem: Problem, mode: str, direction: str, ranks: int) -> float:
    """What a rank receives of the others in a pass, "forward" or "forward_backward"; in mode "gather" the one that receives most."""
    return sum(_parts(problem, mode, direction, ranks))


def serves(problem: Problem, mode: str, ranks: int) -> bool:
    """Whether there is a head, or two chunks of a token, for each rank."""
    return problem.length % (2 * ranks) == 0 and (mode == "gather" or problem.kv_heads % ranks == 0)


def modelled(one: float, problem: Problem, mode: str, direction: str, ranks: int, rates: Rates = Rates()) -> Modelled:
    """one: seconds of the pass on one GPU."""
    shared, between = _parts(problem, mode, direction, ranks)
    host = min(ranks, rates.gpus_a_host)
    others = ranks - host  # ranks of other hosts
    inside = shared + between * (host - 1) / max(ranks - 1, 1)
    outside = (shared / host + between) * others / max(ranks - 1, 1)
    return Modelled(mode, one / ranks, max(inside / rates.link, outside / rates.network))


def best(one: float, problem: Problem, direction: str, ranks: int, rates: Rates = Rates()) -> Modelled:
    """The faster mode, where nothing is hidden."""
    choices = [modelled(one, problem, mode, direction, ranks, rates) for mode in ("heads", "gather") if serves(problem, mode, ranks)]
    if not choices:
        raise ValueError(f"{problem.length} tokens do not make {2 * ranks} equal chunks")
    return min(choices, key=lambda choice: choice.in_turn)


def _parts(problem: Problem, mode: str, direction: str, ranks: int) -> tuple[float, float]:
    """(the same for all ranks, for this rank alone)"""
    backward = direction == "forward_backward"
    unit = problem.length / ranks * problem.head_dim * problem.width * (ranks - 1)
    if mode == "heads":
        return 0.0, (2 if backward else 1) * 2 * (problem.heads + problem.kv_heads) / ranks * unit
    return (2 if backward else 1) * 2 * problem.kv_heads * unit, backward * 2 * problem.kv_heads * unit
