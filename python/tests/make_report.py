"""A small but complete report for tests: `python make_report.py report.h5 [--full]`.

Accuracy, power approximation and maps are computed, on captured heads where data/captures is there; times and solver
iterations are made up. --full takes every head and alpha, for looking at plots (a minute).
"""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
from columns import COLUMNS, PARAMETERS
from h5layout import Table, write_report
from made_up import CLAIMS, claim_row, gradient_rows, learned_rows, solver_rows, speed_rows

CAPTURES = Path(__file__).resolve().parents[2] / "data" / "captures" / "minilm.h5"
QUANTILES = np.array([0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0])


def entmax(scores: np.ndarray, alpha: float, visible: np.ndarray | None = None) -> np.ndarray:
    """Exact entmax of each row by bisection. scores, visible: [query, key]; returns probabilities of that shape."""
    z = (alpha - 1) * scores
    if visible is not None:
        z = np.where(visible, z, -np.inf)
    low = z.max(axis=1, keepdims=True) - 1
    width = np.ones_like(low)
    for _ in range(40):
        width /= 2
        middle = low + width
        total = (np.maximum(z - middle, 0) ** (1 / (alpha - 1))).sum(axis=1, keepdims=True)
        low = np.where(total >= 1, middle, low)
    p = np.maximum(z - low, 0) ** (1 / (alpha - 1))
    return p / p.sum(axis=1, keepdims=True)


def softmax(scores: np.ndarray) -> np.ndarray:
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def largest(scores: np.ndarray, k_keep: int, block: int) -> np.ndarray:
    """The k_keep largest scores of each row in each block of keys: a mask [query, key]."""
    chosen = np.zeros(scores.shape, dtype=bool)
    for start in range(0, scores.shape[1], block):
        part = scores[:, start : start + block]
        order = np.argsort(-part, axis=1, kind="stable")[:, :k_keep]
        np.put_along_axis(chosen[:, start : start + block], order, True, axis=1)
    return chosen


def nmse(out: np.ndarray, reference: np.ndarray) -> float:
    return float(((out - reference) ** 2).sum() / (reference**2).sum())


def blocks_without(p: np.ndarray, block: int) -> float:
    """The share of block × block tiles of p that are wholly zero."""
    n = p.shape[0] // block * block
    if n == 0:
        return float("nan")
    tiles = p[:n, :n].reshape(n // block, block, n // block, block).max(axis=(1, 3))
    return float((tiles == 0).mean())


def real_heads(layers: int, heads: int, tokens: int):
    """(layer, head, q, k, v, tokens) of captured heads, else of random ones; q, k, v: [token, head_dim]."""
    if CAPTURES.exists():
        with h5py.File(CAPTURES) as file:
            names = file["gpl-3/token"].asstr()[:tokens].tolist()
            for layer in range(layers):
                for head in range(heads):
                    yield layer, head, *(file[f"gpl-3/{n}"][layer, head, :tokens].astype(float) for n in "qkv"), names
        return
    random = np.random.default_rng(1)
    names = [f"word{at}" for at in range(tokens)]
    for layer in range(layers):
        for head in range(heads):
            q, k, v = random.normal(size=(3, tokens, 32))
            yield layer, head, (1 + layer + head / 3) * q, k, v, names


def describe(p: np.ndarray) -> dict[str, object]:
    support = (p > 0).sum(axis=1)
    return {
        "block_density_64": 1 - blocks_without(p, 64),
        "block_density_128": 1 - blocks_without(p, 128),
        "token_sparsity": float((p == 0).mean()),
        "block_sparsity_64": blocks_without(p, 64),
        "block_sparsity_128": blocks_without(p, 128),
        "support_mean": float(support.mean()),
        "support_max": float(support.max()),
        "support_quantile": np.quantile(support, QUANTILES),
    }


def without_density(columns: dict[str, object]) -> dict[str, object]:
    """Tiles in use are a column of the kind "workload" alone."""
    return {name: value for name, value in columns.items() if not name.startswith("block_density")}


def accuracy_cases(table: Table, alphas: list[float], size: tuple[int, int, int]) -> tuple[dict, list[str]]:
    """Fills in the experiments "accuracy" and "power". Returns one head's maps and its tokens."""
    maps, names = {}, []
    for layer, head, q, k, v, tokens in real_heads(*size):
        names = tokens
        scores = q @ k.T / np.sqrt(q.shape[1])
        soft = softmax(scores)
        place = {"input": "minilm", "text": "gpl-3", "layer": layer, "head": head}
        for alpha in alphas:
            exact = entmax(scores, alpha)
            for scope, k_keep in [
                ("all", 8),
                *(("row", k) for k in (1, 2, 4, 8, 16, 32)),
                *(("block", k) for k in (1, 2, 4, 8)),
            ]:
                kept = (
                    np.ones_like(scores, bool)
                    if scope == "all"
                    else largest(scores, k_keep, 64 if scope == "block" else 10**6)
                )
                p = entmax(scores, alpha, kept)
                case = f"{layer:02}{head:02}{round(100 * alpha)}{scope}{k_keep}"
                errors = {}
                for name, reference in (("entmax", exact), ("softmax", soft)):
                    difference = p @ v - reference @ v
                    errors[f"mse_vs_{name}"] = float((difference**2).mean())
                    errors[f"nmse_vs_{name}"] = nmse(p @ v, reference @ v)
                    errors[f"max_error_vs_{name}"] = float(abs(difference).max())
                recall = float(((kept & (exact > 0)).sum(1) / (exact > 0).sum(1)).mean())
                table.add(
                    experiment="accuracy",
                    kind="attention-accuracy",
                    case_id=case,
                    alpha=alpha,
                    scope=scope,
                    k_keep=k_keep,
                    block=64,
                    support_recall=recall,
                    mass_kept=float((exact * kept).sum(1).mean()),
                    top_k_recall=1.0,
                    **place,
                    **errors,
                    **without_density(describe(p)),
                )
                if (
                    not maps
                    and layer == size[0] - 1
                    and head == size[1] - 1
                    and alpha == 1.5
                    and (scope, k_keep) == ("row", 4)
                ):
                    maps = {case: {"softmax": soft, "entmax": exact, "k_keep": p}}
            for normalised in ("true", "false"):
                w = np.maximum(scores, 0) ** alpha
                w = w / np.maximum(w.sum(1, keepdims=True), 1e-300) if normalised == "true" else w
                table.add(
                    experiment="power",
                    kind="power-approximation",
                    case_id=f"p{normalised}{layer}{head}{alpha}",
                    alpha=alpha,
                    normalized=float(normalised == "true"),
                    nmse_vs_entmax=nmse(w @ v, exact @ v),
                    nmse_vs_softmax=nmse(w @ v, soft @ v),
                    **place,
                )
    return maps, names


def workload_cases(table: Table, alphas: list[float]) -> None:
    """Supports of synthetic scores: the experiment "workloads"."""
    random = np.random.default_rng(2)
    distance = abs(np.arange(256)[:, None] - np.arange(256)[None])
    scores = {
        "gaussian": random.normal(size=(256, 256)) * 6**0.5,
        "local": random.normal(size=(256, 256)) - 0.4 * distance,
        "clustered": random.normal(size=(256, 256)) + 6 * np.kron(np.eye(16), np.ones((16, 16))),
        "sink": random.normal(size=(256, 256)) * 0.2 + np.where(np.arange(256) == 0, 1.5, 0),
        "ties": np.round(random.normal(size=(256, 256))),
    }
    for name, values in scores.items():
        for alpha in alphas:
            table.add(
                experiment="workloads",
                kind="workload",
                case_id=f"w{name}{alpha}",
                input=name,
                k_keep=0,
                alpha=alpha,
                length=256,
                query_variance=6.0,
                **describe(entmax(values, alpha)),
            )


def length_cases(table: Table) -> None:
    """Normal scores at two lengths, all keys and K_KEEP 8: the experiment "lengths"."""
    random = np.random.default_rng(3)
    for length in (128, 256):
        scores = random.normal(size=(length, length))
        for k_keep in (0, 8):
            p = entmax(scores, 1.5, largest(scores, k_keep, length) if k_keep else None)
            table.add(
                experiment="lengths",
                kind="workload",
                case_id=f"n{length}k{k_keep}",
                input="gaussian",
                k_keep=k_keep,
                alpha=1.5,
                length=length,
                query_variance=1.0,
                **describe(p),
            )


def make(path: Path, full: bool = False) -> Path:
    """Writes the report and returns its path."""
    alphas = [1.05, 1.1, 1.25, 1.5, 1.75, 2.0] if full else [1.25, 1.5, 2.0]
    results = Table("results", "case", COLUMNS, PARAMETERS)
    maps, tokens = accuracy_cases(results, alphas, (6, 12, 128) if full else (2, 3, 64))
    workload_cases(results, [alpha for alpha in alphas if alpha >= 1.25])
    length_cases(results)
    for row in (*solver_rows(), *learned_rows(), *gradient_rows(), *speed_rows()):
        results.add(**row)
    text, value = ("text", "as given", "as given"), ("as in the column units", "a number of the claim", "as given")
    numbers = ("theirs_value", "ours", "ours_low", "ours_high", "tolerance")
    words = ("id", "source", "claim", "theirs", "units", "verdict", "reason", "method")
    claims = Table("claims", "claim", dict.fromkeys(words, text) | dict.fromkeys(numbers, value))
    for claim in CLAIMS:
        claims.add(**claim_row(*claim))
    ceilings = Table(
        "ceilings",
        "ceiling",
        dict.fromkeys(("name", "dtype", "units", "method"), text)
        | dict.fromkeys(("measured", "low", "high", "datasheet"), value),
    )
    ceilings.add(name="DRAM copy", dtype="float", units="B/s", method="made up", measured=1e10, low=9e9, high=1.1e10)
    provenance = {"commit": "0" * 40, "argv": "make_report.py", "seed": 2, "dirty": 0, "experiment_toml": ""}
    wide = {"support_quantile": ("quantile", np.arange(7.0)), "time": ("sample", np.arange(5))}
    write_report(path, [results, claims, ceilings], wide, maps, tokens, provenance)
    return path


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), full="--full" in sys.argv))
