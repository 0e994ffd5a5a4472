"""What the columns of the sample report are: units, long name, formula."""

from __future__ import annotations

PARAMETERS = {
    "experiment",
    "tolerance",
    "max_iterations",
    "query_variance",
    "threads",
    "case_id",
    "kind",
    "input",
    "text",
    "layer",
    "head",
    "alpha",
    "scope",
    "k_keep",
    "block",
    "solver",
    "n",
    "workload",
    "gap",
    "spread",
    "dtype",
    "normalized",
    "implementation",
    "pass",
    "length",
    "eval_text",
}

EXTRA_COLUMNS: dict[str, tuple[str, str, str]] = {
    "block_density_64": ("1", "share of visible 64 x 64 tiles in use", "1 - block_sparsity_64"),
    "block_density_128": ("1", "share of visible 128 x 128 tiles in use", "1 - block_sparsity_128"),
    "eval_text": ("text", "captured text to judge on", "chosen"),
    "loss_before": ("1", "loss on the judged rows before training", "mean (tau_hat - tau)^2"),
    "loss_constant": ("1", "loss on the judged rows of the best constant", "mean (c - tau)^2"),
    "loss_after": ("1", "loss on the judged rows after training", "mean (tau_hat - tau)^2"),
    "iterations_cold": ("1", "Newton steps from the left end of the bracket, mean", "judged rows"),
    "iterations_warm": ("1", "Newton steps from the predicted threshold, mean", "judged rows"),
    "nmse_direct": ("1", "normalised error of attention with the predicted threshold", "|out - ref|^2 / |ref|^2"),
} | {
    f"cosine_{tensor}_vs_{reference}": (
        "1",
        f"direction of straight-through {tensor} against the exact gradient",
        "<g, ref> / (|g| |ref|)",
    )
    for tensor in ("dq", "dk", "dv")
    for reference in ("selected", "full")
}


def _columns() -> dict[str, tuple[str, str, str]]:
    columns = {
        name: ("text" if name in ("experiment", "case_id", "kind") else "1", f"the {name.replace('_', ' ')}", "chosen")
        for name in sorted(PARAMETERS)
    }
    for name, what in (("entmax", "exact entmax"), ("softmax", "dense softmax")):
        tail = f"of the output against {what} over all visible keys"
        columns[f"mse_vs_{name}"] = ("1", f"mean squared error {tail}", "mean (out - ref)^2")
        columns[f"nmse_vs_{name}"] = ("1", f"normalised squared error {tail}", "|out - ref|^2 / |ref|^2")
        columns[f"max_error_vs_{name}"] = ("1", f"largest error {tail}", "max |out - ref|")
    shares = {
        "token_sparsity": "share of visible pairs with probability 0",
        "block_sparsity_64": "share of visible 64 x 64 tiles that are wholly 0",
        "block_sparsity_128": "share of visible 128 x 128 tiles that are wholly 0",
        "support_mean": "keys with p > 0, mean over rows",
        "support_max": "keys with p > 0, largest over rows",
        "support_quantile": "quantiles over rows of the keys with p > 0",
        "support_recall": "share of the exact entmax support that the selection keeps, mean over rows",
        "top_k_recall": "share of the k largest scores whose probability is not 0, mean over rows",
        "mass_kept": "exact entmax probability on the selected keys, mean over rows",
        "iterations_mean": "iterations until the solver stops, mean over rows",
        "iterations_max": "iterations until the solver stops, largest over rows",
        "residual_max": "|sum of p - 1| before any renormalisation, largest over rows",
        "tau_error_max": "|tau - exact tau|, largest over rows",
        "max_error": "largest error of the output",
    }
    columns |= {name: ("1", words, "as the name says") for name, words in shares.items()}
    columns |= {
        name: ("s", f"time, {name[5:] or 'raw samples'}", "wall clock")
        for name in ("time", "time_median", "time_low", "time_high")
    }
    columns |= {name: ("bytes", "memory", "counted") for name in ("memory_bytes", "peak_memory_bytes")}
    return columns | EXTRA_COLUMNS


COLUMNS = _columns()
