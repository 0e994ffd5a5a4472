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
# # What does a real attention head look like?
#
# Random numbers are kind to sparse attention, or unkind, as one likes. Here are heads of a real sentence encoder
# reading a licence text: the same scores turned into probabilities by softmax, by α-entmax, and by entmax over the few
# largest scores. White is **exactly zero**: not small, but absent, so that nothing has to be read or multiplied for it.

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
from splash_laboratory.plots.data import levels, where
from splash_laboratory.plots.maps import all_keys

report = recorded_report(root)

# %%
FIGURES["attention-of-one-head"](report)

# %%
held = next((maps for maps in report.attachments.values() if {"softmax", "entmax"} <= set(maps.data_vars)), None)
if held is None:
    said = Markdown("This report has no maps attached.")
else:
    softmax, entmax = held["softmax"].values, held["entmax"].values
    query = int(np.argsort((entmax > 0).sum(axis=1))[len(entmax) // 2])  # a query with the middle support
    keys = np.flatnonzero(entmax[query])
    order = keys[np.argsort(-entmax[query, keys])][:5]
    names = ", ".join(f"“{held['key'].values[key]}” ({entmax[query, key]:.0%})" for key in order)
    said = Markdown(
        f"Take the query “{held['query'].values[query]}”. Entmax gives it {keys.size} of the {entmax.shape[1]} keys "
        f"shown, most of all {names}. Softmax spreads over all of them: its largest {max(keys.size, 1)} keys hold "
        f"{np.sort(softmax[query])[::-1][: max(keys.size, 1)].sum():.0%} of the attention."
    )
said

# %% [markdown]
# ## How many keys do heads use?

# %%
FIGURES["support-by-layer-and-head"](report)

# %%
every = all_keys(report)
lines = [
    "Keys with a probability above zero, a query, mean over the heads:",
    "",
    "| α | keys | fewest (head) | most (head) |",
]
lines.append("|---:|---:|---:|---:|")
for alpha in levels(every, "alpha"):
    means = where(every, alpha=alpha)["support_mean"].values
    lines.append(f"| {alpha:g} | {np.nanmean(means):.3g} | {np.nanmin(means):.3g} | {np.nanmax(means):.3g} |")
Markdown("\n".join(lines))

# %% [markdown]
# ## Few keys, many tiles
#
# A GPU multiplies whole tiles. A kernel that skips only tiles that are *wholly* zero gains nothing from zeros that are
# scattered over all of them.

# %%
try:
    drawn = FIGURES["workloads"](report)
except NotInReport as missing:
    drawn = Markdown(f"Not in this report: {missing}.")
drawn
