"""Of kernels on one GPU: ladders, the flagship, windows, decoding, Kascade."""

from __future__ import annotations

import json
import re

from recorded import ALPHA, RECORDS, ROOT, times, to_the_end, verdicts


def ladders() -> list[float | str]:
    def of(experiment: str, column: str, implementation: str, **where: object) -> float:
        return RECORDS.one("ladders-h200", experiment, column, implementation=implementation, **where)

    def ms(experiment: str, implementation: str, **where: object) -> float:
        return 1e3 * of(experiment, "time_median", implementation, **where)

    def told(experiment: str, implementation: str, columns: str, **where: object) -> list[float]:
        return [of(experiment, column, implementation, **where) for column in columns.split()]

    versions = RECORDS.values("ladders-h200", "splash", "version", implementation="torch-efficient")
    kascade = ms("kascade", "kascade/6-work-queue", q_len=32768)
    splash = ms("splash", "splash/7-tensor-screen", q_len=8192)
    long = {"head_dim": 128, "mask": "causal"}
    wmma = ms("wmma-long", "wmma/10-warp-specialised", **long)
    large = {"head_dim": 8192, "q_len": 16, "q_heads": 4, "dtype": "float32"}
    dims = 1e3 * ms("large-dims", "large_dims/7-chosen", **large)
    choice, best = (1e3 * ms("large-dims", f"torch-{name}", **large) for name in ("efficient", "math"))
    share, queries, heads, kv_heads, dim = told(
        "kascade", "kascade/6-work-queue", "share kv_len q_heads kv_heads head_dim", q_len=32768
    )
    return [
        float(re.match(r"torch (\d+\.\d+)", str(versions[0]))[1]),
        *(100 * share, queries / 1024, heads, kv_heads, dim),
        *(kascade, *times(ms("kascade", "torch-cudnn", q_len=32768), kascade)),
        *told("splash", "splash/7-tensor-screen", "alpha k_keep block batch q_heads head_dim kv_len", q_len=8192),
        *(splash, *times(ms("splash", "torch-efficient", q_len=8192), splash)),
        *told("wmma-long", "wmma/10-warp-specialised", "q_heads", **long),
        *(told("wmma-long", "wmma/10-warp-specialised", "kv_len", **long)[0] / 1024, 128),
        *(wmma, *times(ms("wmma-long", "torch-cudnn", **long), wmma)),
        *told("large-dims", "large_dims/7-chosen", "head_dim kv_len q_heads", **large),
        *(dims, choice, best, choice / dims, best / dims),
    ]


def speed_against_length() -> list[float | str]:
    def of(column: str, implementation: str) -> list[float]:
        held = RECORDS.report("papers-h200").experiment("adasplash2-lengths")
        chosen = (held["implementation"].values == implementation) & (held["query_variance"].values != 1500)  # of one share of empty tiles
        order = held["q_len"].values[chosen].argsort()
        return [float(value) for value in held[column].values[chosen][order]]

    ours, *others = (of("time_median", name) for name in ("entmax/0-one-pass", "torch-flash", "torch-adasplash2"))
    heads, lengths, support = (of(column, "entmax/0-one-pass") for column in ("q_heads", "q_len", "support_mean"))
    ratios = [[theirs / mine for theirs, mine in zip(other, ours, strict=True)] for other in others]
    told = [heads[0], lengths[0] / 1024, heads[-1], lengths[-1] / 1024, min(support), max(support)]
    return [*told, *(end for one in ratios for end in (min(one), max(one)))]


def slower() -> list[float | str]:
    ours, cudnn = "entmax/0-one-pass", "torch-cudnn"

    def of(column: str, experiment: str, implementation: str, **where: object) -> float:
        report = "entmax-captured-h200" if experiment == "entmax-captured" else "flagship-h200"
        return RECORDS.one(report, experiment, column, implementation=implementation, **where)

    def row(experiment: str, **where: object) -> list[float]:
        mine, theirs = (1e3 * of("time_median", experiment, name, **where) for name in (ours, cudnn))
        return [mine, *times(theirs, mine)]

    broad = {"q_len": 16384, "query_variance": 0.01}
    encoder = {"kv_len": 512, "pass": "forward"}
    told = [of(column, "entmax-forward", ours, **broad) for column in ("q_heads", "kv_len", "support_mean")]
    heads = [of(column, "entmax-captured", ours, **encoder) for column in ("q_heads", "batch", "kv_len")]
    return [
        *(told[0], told[1] / 1024, told[2], *row("entmax-forward", **broad), *row("entmax-training", **broad)),
        *(*heads, *row("entmax-captured", **encoder), *row("entmax-captured", **{**encoder, "pass": "forward_backward"})),
    ]


def flagship() -> list[float | str]:
    ours, cudnn = "entmax/0-one-pass", "torch-cudnn"

    def of(column: str, implementation: str, both: bool, **where: object) -> float:
        experiment = "entmax-training" if both else "entmax-forward"
        return RECORDS.one("flagship-h200", experiment, column, implementation=implementation, **where)

    def row(problem: dict, both: bool, peer: str = cudnn) -> list[float]:
        mine, theirs = (1e3 * of("time_median", name, both, **problem) for name in (ours, peer))
        return [mine, *times(theirs, mine)]

    def told(columns: str, problem: dict) -> list[float]:
        return [of(column, ours, True, **problem) for column in columns.split()]

    def length(problem: dict) -> float:
        return told("kv_len", problem)[0] / 1024

    def problem(q_len: int, variance: float, head_dim: int = 64) -> dict:
        return {"q_len": q_len, "head_dim": head_dim, "mask": "causal", "query_variance": variance}

    k16, k16_128, k64, k4 = problem(16384, 6.0), problem(16384, 6.0, 128), problem(65536, 25.0), problem(4096, 1.0)

    def paper(column: str, implementation: str) -> float:
        where = {"implementation": implementation, "q_len": 131072}
        return RECORDS.one("papers-h200", "adasplash2-lengths", column, **where)

    def rows(column: str, implementation: str) -> float:
        where = {"implementation": implementation, "dtype": "float32", "n": 8192}
        return RECORDS.one("papers-h200", "adasplash-rows", column, **where)

    single, flash, ada = (1e3 * paper("time_median", name) for name in (ours, "torch-flash", "torch-adasplash2"))
    row_ours, row_ada, bisection = (
        1e3 * rows("time_median", name) for name in ("entmax-rows", "torch-adasplash2", "torch-bisection")
    )
    return [
        *(*told("alpha q_heads", k16), length(k16), *told("head_dim query_variance support_mean", k16)),
        *(*row(k16, True), *row(k16, False), 128, *row(k16_128, False)),
        *row(k16, True, "torch-adasplash2"),
        *(*told("q_heads", k64), length(k64), *told("support_mean", k64), *row(k64, True)),
        *(*told("batch q_heads", k4), length(k4), *told("support_mean", k4), *row(k4, True), *row(k4, False)),
        *(paper("q_heads", ours), paper("kv_len", ours) / 1024, paper("support_mean", ours)),
        *(single, flash, ada, flash / single, ada / single),
        *(rows("rows", "entmax-rows"), rows("n", "entmax-rows")),
        *(row_ours, row_ada, bisection, row_ada / row_ours, bisection / row_ours),
    ]


def how_the_flagship_works() -> list[float | str]:
    """The arithmetic of one case: what the record counts, at the rates that it measured."""
    report, ours = "flagship-h200", "entmax/0-one-pass"
    case = {"q_len": 16384, "head_dim": 64, "mask": "causal", "query_variance": 6.0}
    held = RECORDS.report(report).ceilings
    rates = dict(zip(held["name"].values, held["measured"].values, strict=True))

    def of(column: str, implementation: str = ours) -> float:
        return RECORDS.one(report, "entmax-forward", column, implementation=implementation, **case)

    def bytes_of(level: str, unit: float) -> list[float]:
        counted = of(f"{level}_bytes_counted")
        return [counted / unit, 1e3 * counted / rates[f"{level} read"]]

    return [
        *(of(column) for column in ("alpha", "q_heads", "q_len", "head_dim", "query_variance", "support_mean")),
        *(of("dense_equivalent_flops") / 1e9, of("executed_flops") / 1e9, 1e3 * of("floor_time")),
        *(*bytes_of("l2", 1e9), *bytes_of("dram", 1e6)),
        *(1e3 * of("time_median"), 1e3 * of("time_median", "torch-cudnn"), 100 * of("roof_share")),
    ]


def real_heads() -> list[float | str]:
    study = "reproduce-quick"

    def sparsity(column: str) -> float:
        return RECORDS.median(study, "captured-sparsity", column, alpha=1.5)

    def kept(column: str, k_keep: int) -> float:
        return RECORDS.median(study, "accuracy", column, alpha=1.5, scope="row", k_keep=k_keep)

    heads = RECORDS.values(study, "captured-sparsity", "support_mean", alpha=1.5).size
    tokens = RECORDS.one(study, "captured-sparsity", "length", alpha=1.5)
    return [
        *(heads, tokens),
        *(
            ALPHA,
            sparsity("support_mean"),
            tokens,
            100 * sparsity("token_sparsity"),
            "the tiles' side",
            "the tiles' side",
        ),
        100 * sparsity("block_sparsity_64"),
        *(8, kept("nmse_vs_entmax", 8), 32, kept("nmse_vs_softmax", 8)),
        *(to_the_end(solver) for solver in ("halley_bisection", "bisection")),
        *("AdaSplash's", "AdaSplash's"),
        *verdicts(),
    ]


def windows_of(implementation: str, both: bool, **where: object) -> float:
    """Milliseconds."""
    pass_ = "forward_backward" if both else "forward"
    return 1e3 * RECORDS.one("flagship-windows-h100", "entmax-windows", "time_median", implementation=implementation, **{"pass": pass_}, **where)


def windows() -> list[float | str]:
    def row(peer: str, both: bool, window: int = 1024, **problem: object) -> list[float]:
        ours = windows_of("torch-splash", both, mask="window", window=window)
        return [ours, *times(windows_of(peer, both, **(problem or {"mask": "window", "window": window})), ours)]

    def told(column: str) -> float:
        return RECORDS.one("flagship-windows-h100", "entmax-windows", column, implementation="torch-cudnn", **{"pass": "forward"})

    return [
        *("the window", told("q_heads"), told("kv_len") / 1024),
        *(*row("torch-flash", True), *row("torch-flash", False)),
        *("the window", *row("torch-flash", False, 256)),
        *row("torch-cudnn", True, mask="causal", q_len=16384),
    ]


def packed_over_batch(documents: str, batch: int, both: bool) -> float:
    apart = windows_of("torch-splash", both, mask="causal", batch=batch)
    return windows_of("torch-splash", both, documents=documents) / apart


def windows_and_limits() -> list[float | str]:
    short, long = (windows_of("torch-splash", False, mask="window", window=window) for window in (256, 1024))
    named = ["the documents"] * 2

    def seconds(column: str) -> float:
        where = {"implementation": "torch-splash", "documents": "4x4096", "pass": "forward_backward"}
        return RECORDS.one("flagship-windows-h100", "entmax-windows", column, **where)

    return [
        *("the window", short / windows_of("torch-flash", False, mask="window", window=256), short - 256 * (long - short) / 768),
        *("the check's limit", *named, packed_over_batch("4x4096", 4, True)),
        *(1e3 * seconds("time_low"), 1e3 * seconds("time_high")),
        *["of flagship-windows-h100.h5 as it was before"] * 2,
    ]


def windows_beside_dense() -> list[float | str]:
    def over(peer: str, both: bool, **problem: object) -> float:
        return windows_of("torch-splash", both, mask="window", window=1024) / windows_of(peer, both, **problem)

    peers = (("torch-flash", {"mask": "window", "window": 1024}), ("torch-cudnn", {"mask": "causal", "q_len": 16384}))
    apart = {"4x4096": 4, "8x2048": 8, "32x512": 32}
    packed = [packed_over_batch(documents, batch, both) for documents, batch in apart.items() for both in (False, True)]
    return ["the window", *(over(peer, both, **problem) for peer, problem in peers for both in (False, True)), min(packed), max(packed)]


def kascade_layers() -> list[float | str]:
    def of(implementation: str, batch: int, kv_len: int, column: str = "time_median", record: str = "kascade-h200") -> float:
        return RECORDS.one(record, "layers", column, implementation=implementation, batch=batch, kv_len=kv_len)

    def faster(implementation: str, *problem: int, record: str = "kascade-h200") -> float:
        return of("softmax-layers", *problem, record=record) / of(implementation, *problem, record=record)

    problems = ((1, 32768), (1, 131072), (64, 32768), (16, 131072))
    anchors = [of("kascade-anchor", *problem) / of("softmax-cudnn", *problem) for problem in problems[:3]]
    anchor_8 = of("kascade-anchor-8-bits", *problems[2]) / of("softmax-cudnn", *problems[2])
    plan = [of("kascade-layers", 1, 32768, column) for column in ("layers", "anchors")]
    layers = [faster("kascade-layers", *problem) for problem in problems[:3]]

    def between(implementation: str, *problem: int) -> list[float]:
        ends = ("time_low", "time_high"), ("time_high", "time_low")
        return [of("softmax-layers", *problem, mine) / of(implementation, *problem, its) for mine, its in ends]

    in_8_bits, pages = "kascade-layers-8-bits", faster("kascade-layers-pages", *problems[2])
    short, long = ([faster(in_8_bits, *problem), *between(in_8_bits, *problem)] for problem in problems[2:])
    earlier = [faster("kascade-layers-8-bits", *problem, record="kascade-h100") for problem in problems[2:]]
    others, kept = (of("kascade-anchor-8-bits", *problems[2], column) for column in ("differing_keys", "keys_kept"))
    found = [anchors[0], 32, anchors[1], 128, 32, anchors[2], "bits", anchor_8, *plan, *layers, plan[0], *between("kascade-layers", *problems[0])]
    steps = ["bits", short[0], 32, *short[1:], long[0], 128, *long[1:], 32, pages]
    told = [*["the checks' limits"] * 2, 32, 128, *earlier, others / 2, kept]
    entmax = [faster("entmax-layers", *problem) for problem in problems]
    return [*found, *steps, *told, 32, 128, *entmax[:2], 32, 128, *entmax[2:]]


def decode_step() -> list[float | str]:
    report = json.loads((ROOT / "data/reports/decode-step-h200.json").read_text(encoding="utf-8"))
    of = [{name: step["median"] for name, step in one["steps"].items()} for one in report["measured"]]
    return [one[other] / one["splash"] for other in ("sdpa without mask", "sdpa") for one in of]


def ceilings() -> list[float | str]:
    """Those of the H200, in the order in which they were measured."""
    held = RECORDS.report("ceilings-h200").ceilings
    told: list[float | str] = []
    for row in range(held.sizes["ceiling"]):
        method = str(held["method"].values[row])
        scale = 1e6 if str(held["units"].values[row]) == "s" else 1e-12
        measured, low, high, datasheet = (
            float(held[column].values[row]) for column in ("measured", "low", "high", "datasheet")
        )
        told += [scale * measured, scale * low, scale * high]
        if datasheet == datasheet:
            told += [scale * datasheet, 100 * measured / datasheet]
        if scale < 1:
            told.append(float(re.search(r"multiprocessors at (\d+) MHz", method)[1]) / 1e3)
        samples = float(re.search(r"median of (\d+)", method)[1])
    return [samples, "95 % intervals", *told]
