"""Rows of the sample report whose numbers are made up: times, solver iterations, training curves, claims."""

from __future__ import annotations

import numpy as np
import xarray as xr

from splash_laboratory.distributed_model import Problem, Rates, modelled

random = np.random.default_rng(7)

SOLVERS = {
    "bisection": (23, 2e-7, 9e-3),
    "sorting": (0, 1e-7, 2.4e-2),
    "newton": (7, 1e-7, 2.1e-3),
    "halley_bisection": (3, 1.5e-7, 1.6e-3),
    "histogram": (2, 1e-7, 1.1e-3),
}

CLAIMS = [
    (
        "S0.1",
        "000",
        "sparsity 99.6 % at K_KEEP 8 and 2048 keys",
        "99.6 %",
        0.996,
        0.99609,
        "reproduced",
        "2048² products become 2048·8, which is 99.61 % fewer.",
    ),
    (
        "S0.2",
        "000",
        "three launches cost 18 ms, fusion leaves 0.1 ms: 10–15×",
        "10–15×",
        12.5,
        None,
        "not comparable",
        "A launch costs microseconds on every GPU of the last ten years, so 18 ms must be something else.",
    ),
    (
        "S0.4",
        "000",
        "the power approximation of entmax has a mean squared error below 1e-4",
        "< 1e-4",
        1e-4,
        3.1e-2,
        "refuted",
        "On 72 real heads the mean squared error is 300 times the bound.",
    ),
    (
        "S3.4",
        "003",
        "the working set at head_dim 8192 does not fit the L2 cache of 40 MB",
        "1 MB > 40 MB",
        4e7,
        1e6,
        "refuted",
        "One megabyte fits forty times over.",
    ),
]


def claim_row(
    id: str, source: str, claim: str, theirs: str, value: float, ours: float | None, verdict: str, reason: str
) -> dict:
    """One row of /claims."""
    spread = {} if ours is None else {"ours": ours, "ours_low": 0.97 * ours, "ours_high": 1.04 * ours}
    return {
        "id": id,
        "source": source,
        "claim": claim,
        "theirs": theirs,
        "units": "1",
        "theirs_value": value,
        "verdict": verdict,
        "reason": reason,
        "method": "arithmetic",
        **spread,
    }


def timed(median: float) -> dict[str, object]:
    """Five samples around a median, and its interval: seconds."""
    samples = np.sort(median * np.exp(random.normal(scale=0.06, size=5)))
    return {"time": samples, "time_median": samples[2], "time_low": samples[0], "time_high": samples[4]}


def solver_rows() -> list[dict]:
    """Every solver over alpha at n 8192, over n at alpha 1.5, and on the sink."""
    rows = []
    places = [(alpha, 8192, "gaussian", 0) for alpha in (1.05, 1.25, 1.5, 1.75, 2.0)]
    places += [(1.5, n, "gaussian", 0) for n in (128, 512, 2048, 32768)]
    places += [(1.5, 32768, "sink", 0), (1.5, 32768, "ties", 0), (1.5, 32768, "sink", 1)]
    for solver, (iterations, residual, time) in SOLVERS.items():
        for alpha, n, workload, limit in places:
            if solver == "sorting" and (alpha not in (1.5, 2.0) or limit):
                continue
            if limit:
                iterations, residual = limit, 0.03 * iterations
            steps = iterations * (1.6 if workload == "sink" else 1.0) * (1 + 0.1 * (alpha - 1.5))
            rows.append(
                {
                    "experiment": "solvers",
                    "kind": "entmax-solver",
                    "case_id": f"s{solver}{alpha}{n}{workload}{limit}",
                    "solver": solver,
                    "alpha": alpha,
                    "n": n,
                    "workload": workload,
                    "dtype": "float32",
                    "tolerance": 0.0,
                    "max_iterations": limit,
                    "gap": 1.0,
                    "spread": 0.2,
                    "iterations_mean": steps,
                    "iterations_max": limit or np.ceil(steps + (steps > 0)),
                    "residual_max": residual * random.uniform(0.6, 1.6),
                    "tau_error_max": residual / 3,
                    "memory_bytes": 4 * n if solver == "sorting" else 0,
                    "support_mean": 20,
                    **timed(time * n / 8192),
                }
            )
    return rows


def learned_rows() -> list[dict]:
    """Thresholds learned for twelve heads."""
    rows = []
    for head in range(12):
        before = random.uniform(0.02, 0.2)
        rows.append(
            {
                "experiment": "learned",
                "kind": "learned-threshold",
                "case_id": f"l{head}",
                "input": "minilm",
                "text": "gpl-3",
                "eval_text": "gfdl-1.3",
                "layer": head % 2,
                "head": head,
                "alpha": 1.5,
                "loss_before": before,
                "loss_constant": before / 4,
                "loss_after": before * random.uniform(0.02, 0.3),
                "iterations_cold": random.uniform(5, 7),
                "iterations_warm": random.uniform(2, 5),
                "nmse_direct": random.uniform(0.01, 0.1),
            }
        )
    return rows


def gradient_rows() -> list[dict]:
    """Cosines that rise with the keys kept."""
    rows = []
    for head in range(8):
        for k_keep in (1, 2, 4, 8, 16):
            row = {
                "experiment": "gradients",
                "kind": "gradient",
                "case_id": f"g{head}{k_keep}",
                "input": "minilm",
                "text": "gpl-3",
                "layer": 0,
                "head": head,
                "alpha": 1.5,
                "scope": "row",
                "k_keep": k_keep,
            }
            for reference, loss in (("selected", 0.1), ("full", 0.8)):
                for tensor in ("dq", "dk", "dv"):
                    row[f"cosine_{tensor}_vs_{reference}"] = 1 - loss * random.uniform(0.2, 1) / k_keep
            rows.append(row)
    return rows


def speed_rows() -> list[dict]:
    """Implementations of attention at n 2048."""
    times = {
        "screened": 0.09,
        "reference": 3.1,
        "torch-softmax": 0.154,
        "torch-entmax15": 2.09,
        "torch-entmax-bisect": 10.7,
    }
    rows = []
    for name, time in times.items():
        for direction, factor in (("forward", 1.0), ("forward+backward", 2.7)):
            rows.append(
                {
                    "experiment": "speed",
                    "kind": "attention-speed",
                    "case_id": f"t{name}{direction}",
                    "implementation": name,
                    "n": 2048,
                    "pass": direction,
                    "peak_memory_bytes": 2e7 * time,
                    "max_error": 3e-7 * (1 + time),
                    **timed(factor * time),
                }
            )
    return rows


def distributed_cases() -> xr.Dataset:
    """Cases of the kind gpu-distributed: ranks take a tenth longer than the model says with nothing hidden behind work. No such measurement exists."""
    rates, cases = Rates(link=2e11), []
    for length, both in ((1 << 16, 0.02), (1 << 17, 0.08)):
        problem = Problem(length, 16, 16, 128)
        for direction, one in (("forward", 0.8 * both), ("forward_backward", both)):
            named = {"length": length, "heads": 16, "kv_heads": 16, "head_dim": 128, "pass": direction, "computed_in": "bfloat16", "device_name": "made up"}
            cases.append({**named, "implementation": "entmax", "ranks": 1, "time_median": one, "link_rate": np.nan})
            for mode in ("gather", "heads"):
                time = 1.1 * modelled(one, problem, mode, direction, 2, rates).in_turn
                cases.append({**named, "implementation": f"entmax-{mode}", "ranks": 2, "time_median": time, "link_rate": rates.link})
    columns = {name: [case[name] for case in cases] for name in cases[0]}
    return xr.Dataset({name: ("case", np.array(values, dtype=object if isinstance(values[0], str) else float)) for name, values in columns.items()})
