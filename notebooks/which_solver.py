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
# # Which solver finds the threshold best?
#
# Entmax needs one number a row, the threshold τ, for which the probabilities sum to 1. There is no closed form for most
# α, so it is searched. A solver is good if it needs few passes over the row (*iterations*), ends close to a sum of 1
# (*residual*), and is fast; and if it still is so on rows made to hurt: a *sink* key a little above a crowd of
# almost equal scores.
#
# * **bisection** halves an interval: slow, but nothing can go wrong;
# * **sorting** is direct, but exists for α = 1.5 and 2 only, and sorts;
# * **Newton** rises to τ from the left and never overshoots, for 1 < α ≤ 2;
# * **Halley–bisection** takes longer strides and falls back to halving when one goes wrong;
# * the **histogram** guesses a start from binned scores and lets Newton finish.

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
from splash_laboratory.plots import FIGURES, NotInReport
from splash_laboratory.plots.data import cases_with, levels, nearest, where
from splash_laboratory.plots.solvers import comparable

report = recorded_report(root)
solvers = cases_with(report, "solver", "alpha", "n", "iterations_mean", "residual_max")

# %% [markdown]
# ## Iterations and residual

# %%
FIGURES["solver-iterations"](report)

# %%
alpha = nearest(levels(solvers, "alpha"), 1.5)
finished, settings = comparable(solvers)
at = where(finished, alpha=alpha)
n = max(levels(at, "n"), key=lambda value: (where(at, n=value).sizes["case"], value))
at = where(at, n=n)
lines = [
    f"Rows of {n:g} keys, α = {alpha:g}, {settings}:",
    "",
    "| solver | iterations | largest residual |",
]
lines.append("|---|---:|---:|")
means = {}
for solver in levels(at, "solver"):
    cases = where(at, solver=solver)
    means[solver] = float(np.nanmedian(cases["iterations_mean"].values))
    lines.append(f"| {solver} | {means[solver]:.2g} | {np.nanmax(cases['residual_max'].values):.2g} |")
Markdown("\n".join(lines))

# %% [markdown]
# ## Time
#
# Fewer iterations are not the same as less time: an iteration of one solver may cost more than that of another. Where
# two intervals overlap, the two cannot be told apart.

# %%
FIGURES["solver-time"](report)

# %% [markdown]
# ## Rows that are made to hurt

# %%
try:
    drawn = FIGURES["solver-adversary"](report)
except NotInReport as missing:
    drawn = Markdown(f"Not in this report: {missing}.")
drawn

# %%
unlimited = solvers
for stopping in ("tolerance", "max_iterations"):  # 0: the solver runs until tau stands still
    if 0 in levels(unlimited, stopping):
        unlimited = where(unlimited, **{stopping: 0})
worst = int(np.nanargmax(unlimited["residual_max"].values))
iterative = {solver: value for solver, value in means.items() if value >= 1}
fewest, most = min(iterative, key=iterative.get), max(iterative, key=iterative.get)
case = {name: column.values[worst] for name, column in unlimited.data_vars.items() if column.dims == ("case",)}
Markdown(
    f"**{fewest}** needs the fewest iterations ({iterative[fewest]:.2g}, where {most} takes {iterative[most]:.2g}). "
    f"Left to finish, the worst residual of any solver is {case['residual_max']:.2g} "
    f"({case['solver']}, {case['workload']} workload, α = {case['alpha']:g})."
)
