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
# # Which of the tables hold?
#
# Five documents and three papers make claims about sparse attention: so many times faster, so many per cent zero, an error of so
# much. Each that can be tested was, and got a verdict:
#
# * **reproduced**: measured again, within the tolerance that was written down before;
# * **refuted**: measured, and something else came out;
# * **unsure**: the measurement's interval lies on both sides of the limit;
# * **not comparable**: the claim says too little to be tested, or needs what was not at hand. The reason says which.
#
# This notebook sets every claim's number beside ours, source by source.

# %% [markdown]
# The report is the one recorded in this repository, or the one that the environment variable `SPLASH_REPORT` names
# (`./splash reproduce` writes such a file). Where the repository also holds the record of a GPU, its verdicts take the place of
# those that a CPU could not give.

# %%
import sys
from pathlib import Path

here = Path.cwd()
root = next(folder for folder in (here, *here.parents) if (folder / "python" / "splash_attention").is_dir())
sys.path.insert(0, str(root / "python"))

# %matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown

from splash_laboratory import open_report, recorded_report
from splash_laboratory.plots import FIGURES, style

report = recorded_report(root)
gpu_path = root / "data" / "reports" / "ladders-h200.h5"


def claims_of(one) -> dict[str, dict]:
    """Claims by id, in their order."""
    table = one.claims
    names = [name for name in table.data_vars if name != "id"]
    return {
        str(table["id"].values[at]): {"claim": str(table["claim"].values[at])}
        | {name: table[name].values[at] for name in names}
        for at in range(table.sizes["claim"])
    }


claims = claims_of(report)
if gpu_path.exists():
    for name, claim in claims_of(open_report(gpu_path)).items():
        claims[name] = claim  # what a GPU measured counts for more than that no GPU was there

# %% [markdown]
# ## At a glance

# %%
FIGURES["claims"](report)

# %%
VERDICTS = ("reproduced", "refuted", "unsure", "not comparable")
sources = sorted({str(claim["source"]) for claim in claims.values()})
lines = ["| source | " + " | ".join(VERDICTS) + " |", "|---|---:|---:|---:|"]
for source in sources:
    counts = [sum(c["source"] == source and c["verdict"] == verdict for c in claims.values()) for verdict in VERDICTS]
    lines.append(f"| {source} | " + " | ".join(str(count) for count in counts) + " |")
total = [sum(c["verdict"] == verdict for c in claims.values()) for verdict in VERDICTS]
lines.append("| **all** | " + " | ".join(f"**{count}**" for count in total) + " |")
Markdown("\n".join(lines))

# %% [markdown]
# ## How far off?
#
# Ours divided by theirs, for every claim of others whose two sides are numbers above zero. On the line: exactly as claimed. A claim
# "at least" is reproduced anywhere to its right; one of a single value close to the line only. What is more than a hundred thousand
# times off stands at the edge.

# %%
EDGE = 1e5
others = [source for source in sources if not source.startswith("this project")]
figure, axes = plt.subplots(figsize=(9, 0.45 * len(others) + 1.2), layout="constrained")
for verdict, colour, marker in zip(VERDICTS, (style.GOOD, style.BAD, style.UNDECIDED), "o^s"):
    points = [
        (np.clip(claim["ours"] / claim["theirs_value"], 1 / EDGE, EDGE), others.index(str(claim["source"])))
        for claim in claims.values()
        if claim["verdict"] == verdict and claim["source"] in others and claim["ours"] > 0 and claim["theirs_value"] > 0
    ]
    if points:
        ratios, places = zip(*points)
        axes.scatter(ratios, places, s=28, alpha=0.7, color=colour, marker=marker, label=verdict)
axes.axvline(1, color="0.6", linewidth=1)
axes.set(xscale="log", xlim=(0.5 / EDGE, 2 * EDGE), xlabel="ours / theirs", yticks=range(len(others)), yticklabels=others)
axes.invert_yaxis()
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# ## Every claim
#
# The reasons are part of the verdict: read them where a number surprises.


# %%
def in_words(value: float) -> str:
    return "" if not np.isfinite(value) else f"{value:.4g}"


def table_of(source: str) -> str:
    lines = [f"### {source}", "", "| | claim | theirs | ours | verdict | reason |", "|---|---|---:|---:|---|---|"]
    for name, claim in claims.items():
        if claim["source"] != source:
            continue
        words = (name, claim["claim"], claim["theirs"], in_words(claim["ours"]), claim["verdict"], claim["reason"])
        lines.append("| " + " | ".join(str(word).replace("|", "\\|") for word in words) + " |")
    return "\n".join(lines)


Markdown("\n\n".join(table_of(source) for source in sources))
