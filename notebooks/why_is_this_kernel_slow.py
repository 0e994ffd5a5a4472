# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Why is this kernel slow?
#
# A GPU kernel can wait for memory, for the tensor cores, for too few blocks, or for itself. Which it is decides what would help. The
# recorded run of the ladders on an H200 holds, for every kernel and problem, the time, the work as the kernel's declaration counts it, the
# ceilings measured in the same run, and a verdict drawn from these. This notebook looks at them all, then at one document's question.
#
# `docs/questions/why-is-my-kernel-slow.md` tells how to read a verdict, and `./splash diagnose` gives it for your own report.

# %%
import os
import sys
from pathlib import Path

here = Path.cwd()
root = next(folder for folder in (here, *here.parents) if (folder / "python" / "splash_attention").is_dir())
sys.path.insert(0, str(root / "python"))

# %matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown

from splash_laboratory import open_report
from splash_laboratory.plots import FIGURES

report = open_report(os.environ.get("SPLASH_GPU_REPORT", root / "data" / "reports" / "ladders-h200.h5"))
results = report.results
kernels = results.isel(case=np.flatnonzero(results["verdict"].values != ""))
Markdown(f"{kernels.sizes['case']} kernels and problems have a verdict; recorded on {report.provenance['gpu']}.")

# %% [markdown]
# ## Where they stand below the roof

# %%
FIGURES["roofline"](report)

# %% [markdown]
# ## What bounds them
#
# By ladder. "Inside the multiprocessor" is an honest *we do not know which*: memory, L2 and products are ruled out, and only hardware
# counters tell shared memory, issue slots and latency apart.

# %%
ladder = np.array([str(name).split("/")[0] for name in kernels["implementation"].values])
verdict = kernels["verdict"].values.astype(str)
names = sorted(set(verdict), key=lambda name: -np.sum(verdict == name))
colours = ["#999999", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442"]
ladders = sorted(set(ladder))
figure, axes = plt.subplots(figsize=(9, 0.5 * len(ladders) + 1.2), layout="constrained")
left = np.zeros(len(ladders))
for name, colour in zip(names, colours):
    counts = np.array([np.sum((ladder == one) & (verdict == name)) for one in ladders])
    axes.barh(ladders, counts, left=left, color=colour, label=name, height=0.6)
    left += counts
axes.set(xlabel="kernels and problems")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# ## Document 003: head_dim 8192. Cache, bandwidth or parallelism?
#
# The document says that 8192 dimensions "do not fit L2" and saturate the bandwidth. Every rung of its ladder on that problem, with what
# bounds it:


# %%
def share(value: float) -> str:
    return "" if not np.isfinite(value) else f"{value:.1%}"


at = np.flatnonzero(
    (ladder == "large_dims")
    & (kernels["head_dim"].values == 8192)
    & (kernels["q_len"].values == 16)
    & (kernels["q_heads"].values == 4)
    & (kernels["dtype"].values.astype(str) == "float32")
)
bandwidth = {str(n): float(m) for n, m in zip(report.ceilings["name"].values, report.ceilings["measured"].values)}
dram = next(value for name, value in bandwidth.items() if "DRAM" in name.upper())
lines = ["| kernel | time | of the DRAM bandwidth | verdict |", "|---|---:|---:|---|"]
for case in sorted(at, key=lambda case: -kernels["time_median"].values[case]):
    seconds = float(kernels["time_median"].values[case])
    used = float(kernels["dram_bytes_counted"].values[case]) / seconds / dram
    lines.append(f"| {kernels['implementation'].values[case]} | {1e6 * seconds:.1f} µs | {share(used)} | {verdict[case]} |")
Markdown("\n".join(lines))

# %% [markdown]
# Little of the bandwidth is used, so neither cache nor bandwidth can be what takes the time: 64 blocks for 132 multiprocessors are too few,
# and the rungs that split the work are the fast ones. The reasons, in the words of the diagnosis:

# %%
first = min(at, key=lambda case: str(kernels["implementation"].values[case]))
Markdown("> " + str(kernels["diagnosis"].values[first]).replace("\n", "\n> "))

# %% [markdown]
# ## Can the model be trusted?
#
# Each kernel's time as predicted from its *other* problems, against what was measured. On the line: exactly.

# %%
predicted, measured = kernels["time_predicted"].values, kernels["time_median"].values
known = np.isfinite(predicted) & np.isfinite(measured)
error = np.abs(predicted[known] / measured[known] - 1)
figure, axes = plt.subplots(figsize=(5, 5), layout="constrained")
for one, colour in zip(ladders, ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00")):
    chosen = known & (ladder == one)
    axes.scatter(1e6 * measured[chosen], 1e6 * predicted[chosen], s=16, alpha=0.7, color=colour, label=one)
ends = 1e6 * np.array([measured[known].min(), measured[known].max()])
axes.plot(ends, ends, color="0.6", linewidth=1, zorder=0)
axes.set(xscale="log", yscale="log", xlabel="measured (µs)", ylabel="predicted from other problems (µs)")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
plt.show()

# %%
Markdown(f"Half of the {known.sum()} predictions are within {np.median(error):.0%}, eight in ten within {np.quantile(error, 0.8):.0%}.")
