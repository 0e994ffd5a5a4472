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
# # How many keys must a query keep?
#
# Entmax attention gives most keys a probability of exactly zero. *K_KEEP* goes further: it keeps the k largest scores
# of a query and forgets the others, whether they mattered or not. So there are two errors to tell apart:
#
# * against **exact entmax**: what K_KEEP itself costs. It is zero once k reaches the number of keys that exact entmax
#   uses (the *support*);
# * against **softmax**: what it costs to put entmax in the place of softmax in a model that was trained with softmax.
#   No k makes this one go away.
#
# Both are given as *nmse*: the squared error of the output over the squared length of the right output. 0 is exact,
# 1 is as wrong as an output of zeros.

# %% [markdown]
# The report is the one recorded in this repository, or the one that the environment variable `SPLASH_REPORT` names
# (`./splash reproduce` writes such a file). Every number below is computed from it.

# %%
import sys
from pathlib import Path

here = Path.cwd()
root = next(folder for folder in (here, *here.parents) if (folder / "python" / "splash_attention").is_dir())
sys.path.insert(0, str(root / "python"))

# %matplotlib inline
import numpy as np
from IPython.display import Markdown

from splash_laboratory import recorded_report
from splash_laboratory.plots import FIGURES
from splash_laboratory.plots.data import cases_with, levels, nearest, real_input, where

report = recorded_report(root)
accuracy = real_input(cases_with(report, "k_keep", "scope", "alpha", "nmse_vs_entmax", "nmse_vs_softmax"))
kept = where(accuracy, scope="row")
alpha = nearest(levels(kept, "alpha"), 1.5)
chosen = where(kept, alpha=alpha)

# %% [markdown]
# ## The trade-off

# %%
FIGURES["accuracy-against-k-keep"](report)

# %%
lines = [
    f"With α = {alpha:g}, a median over the heads of the report:",
    "",
    "| K_KEEP | nmse against entmax | against softmax |",
]
lines.append("|---:|---:|---:|")
for k_keep in levels(chosen, "k_keep"):
    cases = where(chosen, k_keep=k_keep)
    entmax, softmax = (float(np.nanmedian(cases[f"nmse_vs_{name}"].values)) for name in ("entmax", "softmax"))
    lines.append(f"| {k_keep:g} | {entmax:.2g} | {softmax:.2g} |")
Markdown("\n".join(lines))

# %%
good_enough = 1e-2
small = [
    k for k in levels(chosen, "k_keep") if np.nanmedian(where(chosen, k_keep=k)["nmse_vs_entmax"].values) < good_enough
]
largest = max(levels(chosen, "k_keep"))
floor = float(np.nanmedian(where(chosen, k_keep=largest)["nmse_vs_softmax"].values))
first = f"K_KEEP = {small[0]:g} is the smallest that does" if small else "no K_KEEP of this study does"
Markdown(
    f"To bring the median head within an nmse of {good_enough:g} of exact entmax: **{first}**. "
    f"Against softmax, even K_KEEP = {largest:g} leaves {floor:.2g}: that is the distance between the two functions, "
    "and no number of keys closes it."
)

# %% [markdown]
# ## The same, against the sparsity that was reached
#
# A larger α is sparser of itself. Read the curves from the right: how far can one go before the error rises?

# %%
FIGURES["accuracy-against-sparsity"](report)

# %% [markdown]
# ## Not every head is alike
#
# A median hides the heads that look at many keys at once. One number for all heads is a poor choice where the map below
# has dark cells.

# %%
FIGURES["error-by-layer-and-head"](report)

# %%
k_keep = nearest(levels(chosen, "k_keep"), 8)
errors = where(chosen, k_keep=k_keep)["nmse_vs_entmax"].values
worse = int((errors > good_enough).sum())
Markdown(
    f"With K_KEEP = {k_keep:g}, **{worse} of {errors.size} heads** are more than {good_enough:g} away from "
    f"exact entmax; the worst is at {np.nanmax(errors):.2g}, the best at {np.nanmin(errors):.2g}."
)
