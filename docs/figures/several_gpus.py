"""Of several GPUs, and of the model of their time."""

from __future__ import annotations

from recorded import RECORDS, ROOT
from splash_laboratory import scaling
from splash_laboratory.distributed_model import Problem, best


def several_gpus() -> list[float | str]:
    def of(implementation: str, length: int) -> float:
        where = {"implementation": implementation, "pass": "forward_backward", "length": length}
        return RECORDS.one("distributed-h200", "two-gpus", "time_median", **where)

    def in_a_row(implementation: str, length: int) -> float:
        return RECORDS.one("distributed-h200", "one-behind-the-other", "time_median", implementation=implementation, length=length)

    lengths = (32768, 65536, 131072, 262144)
    over_one, over_dense = ([of(peer, n) / of("entmax-auto", n) for n in lengths] for peer in ("entmax", "softmax-context-parallel"))
    ahead, wanted = [in_a_row("entmax", n) / in_a_row("entmax-auto", n) for n in lengths], ["what was wanted", "a length"] * 2
    return [*["a length"] * 4, *over_one, *wanted, *ahead, *over_dense, *wanted]


def four_gpus() -> list[float | str]:
    def of(implementation: str, both: bool, experiment: str = "strong", **where: object) -> float:
        where |= {"implementation": implementation, "pass": "forward_backward" if both else "forward", "ranks": 4}
        return RECORDS.one("distributed-many-h100", experiment, "time_median", **where)

    def seconds(implementation: str, both: bool, length: int) -> float:
        where = {"implementation": implementation, "pass": "forward_backward" if both else "forward", "length": length}
        return RECORDS.one("distributed-one-h100", "one", "time_median", **where)

    lengths = (131072, 524288, 1048576)
    over_one = [[seconds("entmax", both, n) / seconds("entmax-auto", both, n) for n in lengths] for both in (False, True)]
    problems = ({"length": 131072}, {"length": 524288}, {"length": 524288, "experiment": "grouped"})
    over_dense = [of("softmax-context-parallel", True, **one) / of("entmax-auto", True, **one) for one in problems]
    million = [seconds(name, both, lengths[-1]) for name in ("entmax-auto", "entmax") for both in (False, True)]
    wanted = ["what was wanted"] * 2
    told = ["GPUs", *over_one[0], "a length", "a length", *over_one[1], *wanted]
    return [*told, over_dense[0], "a length", over_dense[1], "a length", "heads", "heads", over_dense[2], "a length", *million]


def model_of_gpus() -> list[float | str]:
    cases = scaling.together([ROOT / "data/reports" / f"{name}.h5" for name in ("distributed-h100", "distributed-many-h100")])
    alone, several = scaling.times_of(cases)
    rates, problem = scaling.rates_of(cases), Problem(131072, 16, 16, 128)
    passes = ("forward", "forward_backward")
    four = [best(alone[problem, one], problem, one, 4, rates).in_turn / several[problem, one][4] for one in passes]
    eight = [1e3 * best(alone[problem, one], problem, one, 8, rates).in_turn for one in passes]
    return ["a length", *(100 * (1 - share) for share in four), *eight]
