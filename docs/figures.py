"""What the figures of the documents are.

    python -m splash_laboratory.documents.figures docs/figures.py README.md docs/*.md docs/questions/*.md

Of each passage, in the order of its numerals, a number read from data/reports, or the reason why it is none of theirs.
"""

from __future__ import annotations

import re
from pathlib import Path

from splash_laboratory import scaling
from splash_laboratory.distributed_model import Problem, best
from splash_laboratory.documents.figures import Records

ROOT = Path(__file__).resolve().parents[1]
RECORDS = Records(ROOT / "data" / "reports")
ALPHA = "alpha, as the definition sets it"
FULL_PROFILE = "of the full profile, which is not kept: the command on the page makes it again"


def what_it_takes() -> list[float | str]:
    return ["a wall time, by hand"] * 1 + ["du, by hand"] + ["a wall time, by hand"] * 2 + ["du, by hand"] * 2


def times(other: float, ours: float) -> list[float]:
    """A table's last two figures: the other's time, in the table's unit, and how many times ours it is."""
    return [other, other / ours]


def cpu_speed() -> list[float | str]:
    def ms(implementation: str, pass_: str = "forward") -> float:
        where = {"implementation": implementation, "pass": pass_, "threads": 2}
        return 1e3 * RECORDS.one("cpu-speed", "cpu-speed", "time_median", **where)

    def told(column: str) -> float:
        return RECORDS.one("cpu-speed", "cpu-speed", column, implementation="screened", pass_="forward", threads=2)

    forward, both = ms("screened"), ms("screened", "forward+backward")
    return [
        *(
            told("threads"),
            "the batch of every case",
            told("heads"),
            told("n"),
            told("head_dim"),
            told("query_variance"),
        ),
        ALPHA,
        *(forward, *times(ms("torch-softmax"), forward)),
        *(both, *times(ms("torch-softmax", "forward+backward"), both)),
        *(forward, *times(ms("torch-entmax15"), forward)),
        *(forward, *times(ms("torch-entmax-bisect"), forward)),
    ]


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
        return RECORDS.one("flagship-h200", experiment, column, implementation=implementation, **where)

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
    decoding = [faster(f"kascade-layers-{how}", *problems[2]) for how in ("8-bits", "pages")]
    between = [
        of("softmax-layers", *problems[0], ends[0]) / of("kascade-layers", *problems[0], ends[1])
        for ends in (("time_low", "time_high"), ("time_high", "time_low"))
    ]
    earlier = [faster("kascade-layers-8-bits", *problem, record="kascade-h100") for problem in problems[2:]]
    others, kept = (of("kascade-anchor-8-bits", *problems[2], column) for column in ("differing_keys", "keys_kept"))
    found = [anchors[0], 32, anchors[1], 128, 32, anchors[2], "bits", anchor_8, *plan, *layers, plan[0], *between]
    steps = ["bits", decoding[0], decoding[1], *["the checks' limits"] * 2, 32, 128, *earlier, others / 2, kept]
    entmax = [faster("entmax-layers", *problem) for problem in problems]
    return [*found, *steps, 32, 128, *entmax[:2], 32, 128, *entmax[2:], 128, "bits"]


def model_of_gpus() -> list[float | str]:
    cases = scaling.together([ROOT / "data/reports" / f"{name}.h5" for name in ("distributed-h100", "distributed-many-h100")])
    alone, several = scaling.times_of(cases)
    rates, problem = scaling.rates_of(cases), Problem(131072, 16, 16, 128)
    passes = ("forward", "forward_backward")
    four = [best(alone[problem, one], problem, one, 4, rates).in_turn / several[problem, one][4] for one in passes]
    eight = [1e3 * best(alone[problem, one], problem, one, 8, rates).in_turn for one in passes]
    return ["a length", *(100 * (1 - share) for share in four), *eight]


def language_model() -> list[float | str]:
    def of(column: str, method: str) -> float:
        return RECORDS.one("model-perplexity-h100", "perplexity", column, method=method)

    def trained(column: str, plan: str) -> float:
        return RECORDS.one("model-conversion-long-h100", "conversion-long", column, plan=plan)

    tuned, alike = "tuned:budget=64", "kind=softmax,schedule=fixed,rate=1e-2,steps=1000,seed=1"
    bounded = "schedule=learned,k_keep=64,median_keys=14.5,rate=1e-2,steps=1000,seed=1"
    return [
        *("the model's name", of("window", "softmax"), of("windows", "softmax")),
        *(of("perplexity", "softmax"), of("perplexity", "entmax:alpha=1.5")),
        *(of("perplexity", tuned), of("support_median", tuned)),
        *("the plan's steps", trained("perplexity", bounded), trained("support_median", bounded)),
        trained("perplexity", alike),
    ]


def verdicts() -> list[float]:
    """How many claims of documents and papers there are, and how many the study judges by arithmetic and by measuring,
    and the GPUs' records."""
    claims = [
        path.read_text() for path in (ROOT / "data" / "claims").glob("*.toml") if not path.stem.startswith("project")
    ]
    ids = {found for text in claims for found in re.findall(r'^id = "([^"]+)"', text, re.MULTILINE)}

    def judged(*names: str, method: str | None = None) -> dict[str, str]:
        found = RECORDS.verdicts(*names, method=method)
        return {i: v for i, v in found.items() if i in ids and v != "not comparable"}

    arithmetic = judged("reproduce-quick", method="arithmetic")
    study = {i: v for i, v in judged("reproduce-quick").items() if i not in arithmetic}
    gpus = judged("ladders-h100", "ladders-h200", "flagship-h200", "papers-h200", "decode-h100", "kascade-h100")
    gpus = {i: v for i, v in gpus.items() if i not in study and i not in arithmetic}

    def count(verdicts: dict[str, str]) -> list[int]:
        return [list(verdicts.values()).count(v) for v in ("reproduced", "refuted", "unsure")]

    all_ = [count(verdicts) for verdicts in (arithmetic, study, gpus)]
    assert all_[0][2] == 0  # the sentence names none
    return [len(ids), sum(map(sum, all_)), sum(all_[0]), *all_[0][:2], sum(all_[1]), *all_[1], sum(all_[2]), *all_[2]]


def cpu_speed_and_memory() -> list[float | str]:
    def of(
        column: str, implementation: str, pass_: str = "forward", report: str = "cpu-speed", threads: int = 2
    ) -> float:
        where = {"implementation": implementation, "pass": pass_, "threads": threads}
        return RECORDS.one(report, report, column, **where)

    def interval(implementation: str, pass_: str, scale: float) -> list[float]:
        return [scale * of(f"time_{end}", implementation, pass_) for end in ("median", "low", "high")]

    def row(implementation: str) -> list[float]:
        both = [ms for pass_ in ("forward", "forward+backward") for ms in interval(implementation, pass_, 1e3)]
        return [*both, 1e-6 * of("peak_memory_bytes", implementation)]

    def version(of_package: str, implementation: str) -> float:
        held = RECORDS.values("cpu-speed", "cpu-speed", "version", implementation=implementation)
        return float(re.search(rf"{of_package} (\d+\.\d+)", str(held[0]))[1])

    def ratio(implementation: str, pass_: str = "forward") -> float:
        return of("time_median", implementation, pass_) / of("time_median", "screened", pass_)

    torch, package = version("torch", "torch-softmax"), version("entmax", "torch-entmax15")
    single = of("time_median", "screened", threads=1)
    settings = (of(column, "screened") for column in ("heads", "n", "head_dim", "query_variance", "support_mean"))
    memory = (
        1e-6 * of("peak_memory_bytes", name, report="cpu-memory")
        for name in ("screened", "torch-entmax15", "torch-entmax-bisect")
    )
    return [
        *(ALPHA, "the batch of every case", *settings, "p > 0", of("threads", "screened"), "95 % intervals"),
        of("threads", "screened"),
        *row("screened"),
        *(torch, *row("torch-softmax")),
        *(torch, *row("torch-softmax-unfused")),
        *("k of the implementation", package, *row("torch-entmax15-k100")),
        *row("torch-entmax15"),
        *row("torch-entmax-bisect"),
        *row("reference"),
        *(ratio("torch-entmax15"), ratio("torch-entmax-bisect"), ratio("torch-softmax")),
        *(ratio("torch-softmax", "forward+backward"), 1e3 * single, single / of("time_median", "screened")),
        of("nmse", "screened"),
        *(of("n", "screened", report="cpu-memory"), of("heads", "screened", report="cpu-memory"), *memory),
    ]


def k_keep() -> list[float | str]:
    percent = {"mass_kept", "token_sparsity"}
    columns = "mse_vs_entmax nmse_vs_entmax mass_kept mse_vs_softmax nmse_vs_softmax token_sparsity".split()

    def of(column: str, scope: str, k: int) -> float:
        value = RECORDS.median("reproduce-quick", "accuracy", column, alpha=1.5, scope=scope, k_keep=k)
        return 100 * value if column in percent else value

    def row(scope: str, k: int) -> list[float]:
        return [of(column, scope, k) for column in columns]

    where = {"alpha": 1.5, "scope": "all", "k_keep": 1}
    heads = RECORDS.values("reproduce-quick", "accuracy", "mass_kept", **where).size
    tokens = RECORDS.one("reproduce-quick", "accuracy", "length", **where)
    a_row = [figure for k in (1, 2, 4, 8, 16) for figure in (k, *row("row", k))]
    a_block = [figure for k in (2, 4, 8) for figure in (k, *row("block", k))]
    block = RECORDS.one("reproduce-quick", "accuracy", "block", scope="block")
    return [heads, tokens, ALPHA, *a_row, 32, 64, *row("row", 32), 1, block, *row("block", 1), *a_block, *row("all", 1)]


def decoder_k_keep() -> list[float | str]:
    study = ("reproduce-quick", "accuracy-decoder")
    percent = {"mass_kept", "token_sparsity"}
    columns = "mse_vs_entmax nmse_vs_entmax mass_kept mse_vs_softmax nmse_vs_softmax token_sparsity".split()

    def of(column: str, k: int, **where: object) -> float:
        value = RECORDS.median(*study, column, alpha=1.5, scope="row", k_keep=k, **where)
        return 100 * value if column in percent else value if value > 1e-20 else 0.0

    heads = RECORDS.values(*study, "mass_kept", k_keep=8).size
    rows = [figure for k in (2, 8, 32) for figure in (k, *(of(column, k) for column in columns))]
    lost = [100 - of("mass_kept", 8), 100 - of("mass_kept", 8, layer=0)]
    return [heads, RECORDS.one(*study, "length", k_keep=8), ALPHA, *rows, 8, lost[0], 0, lost[1]]


def to_the_end(solver: str) -> float:
    """Mean iterations until a float32 threshold stands still, at AdaSplash's problem."""
    where = {"solver": solver, "dtype": "float32", "n": 8192, "alpha": 1.5}
    return RECORDS.one("reproduce-quick", "solvers", "iterations_mean", **where)


def iterations() -> list[float | str]:
    solvers = ("bisection", "newton", "halley_bisection", "histogram")

    def of(solver: str, tolerance: float, statistic: str = "mean") -> float:
        where = {"solver": solver, "tolerance": tolerance}
        return RECORDS.one("reproduce-quick", "solver-tolerance", f"iterations_{statistic}", **where)

    rows = [figure for power in range(1, 6) for figure in (10.0**-power, *(of(s, 10.0**-power) for s in solvers))]
    last = [of("bisection", 1e-6), of("newton", 1e-6)]
    last += [of(s, 1e-6, statistic) for s in solvers[2:] for statistic in ("mean", "max")]
    bins = RECORDS.one("reproduce-quick", "solver-tolerance", "histogram_bins", solver="histogram")
    return ["sum p - 1", bins, *rows, 1e-6, *last, *(to_the_end(s) for s in solvers)]


def sink() -> list[float | str]:
    cases = [(gap, spread) for gap in (0.5, 1.5) for spread in (0.1, 0.3)]

    def row(steps: int) -> list[float]:
        where = {"solver": "histogram", "max_iterations": steps}
        return [
            RECORDS.one("reproduce-quick", "solver-sink", "residual_max", gap=gap, spread=spread, **where)
            for gap, spread in cases
        ]

    bins = RECORDS.one("reproduce-quick", "solver-sink", "histogram_bins", solver="histogram")
    taken = RECORDS.values("reproduce-quick", "solver-sink", "iterations_max", solver="histogram", max_iterations=0)
    return [
        bins,
        *(figure for case in cases for figure in case),
        1,
        *row(1),
        2,
        *row(2),
        taken.min(),
        taken.max(),
        *row(0),
    ]


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


def captured_sparsity() -> list[float | str]:
    columns = {
        "token_sparsity": 100,
        "block_sparsity_64": 100,
        "block_sparsity_128": 100,
        "support_mean": 1,
        "support_max": 1,
    }

    def of(column: str, alpha: float, **where: object) -> float:
        return RECORDS.median("reproduce-quick", "captured-sparsity", column, alpha=alpha, **where)

    def row(alpha: float) -> list[float]:
        return [alpha, *(scale * of(column, alpha) for column, scale in columns.items())]

    heads = RECORDS.values("reproduce-quick", "captured-sparsity", "support_mean", alpha=1.5).size
    unrecorded = [FULL_PROFILE] * 6
    between = [of("support_mean", 1.5, layer=layer) for layer in range(1, 5)]
    return [
        *(heads, of("length", 1.5), *["of the tiles' names"] * 4),
        *(*unrecorded, *unrecorded, *row(1.25), *row(1.5), *unrecorded, *row(2.0)),
        *(0, of("support_mean", 1.5, layer=0), 1.5, of("support_mean", 1.25, layer=0), 1.25),
        *(1, 4, min(between), max(between)),
    ]


def workloads() -> list[float | str]:
    def of(column: str, workload: str) -> float:
        return RECORDS.one("reproduce-quick", "workloads", column, input=workload, alpha=1.5)

    rows = [
        (of("support_mean", name), 100 * of("block_sparsity_64", name))
        for name in ("gaussian", "clustered", "local", "sink", "ties")
    ]
    variance = of("query_variance", "gaussian")
    return [
        of("length", "gaussian"),
        ALPHA,
        variance,
        *["of the tiles' names"] * 2,
        *(figure for row in rows for figure in row),
    ]


def power() -> list[float | str]:
    columns = "mse_vs_entmax nmse_vs_entmax cosine_vs_entmax total_variation support_mean entmax_support_mean".split()

    def of(column: str, alpha: float) -> float:
        return RECORDS.median("reproduce-quick", "power", column, alpha=alpha, normalized=1)

    def row(alpha: float) -> list[float]:
        return [alpha, 1 / (alpha - 1), *(of(column, alpha) for column in columns)]

    golden = (1 + 5**0.5) / 2
    heads = RECORDS.values("reproduce-quick", "power", "mse_vs_entmax", alpha=1.5, normalized=1).size
    last = [heads, RECORDS.one("reproduce-quick", "power", "length", alpha=1.5, normalized=1)]
    rows = [figure for alpha in (1.25, 1.5, golden, 2.0) for figure in row(alpha)]
    return ["1/(alpha-1)", *[FULL_PROFILE] * 8, *rows, *last]


def figures() -> dict[str, list[float | str]]:
    passages = (
        *(cpu_speed, ladders, speed_against_length, slower, flagship, how_the_flagship_works, windows, windows_beside_dense, windows_and_limits, several_gpus, four_gpus, model_of_gpus, language_model, real_heads, cpu_speed_and_memory),
        *(k_keep, decoder_k_keep, iterations, sink, ceilings),
        *(captured_sparsity, workloads, power, what_it_takes, kascade_layers),
    )
    return {passage.__name__.replace("_", "-"): passage() for passage in passages}
