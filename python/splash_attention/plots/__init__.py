"""Plots of a report: `python -m splash_attention.plots report.h5 --out DIR`, or a function a plot.

from splash_attention import open_report
from splash_attention.plots import FIGURES
FIGURES["claims"](open_report("report.h5")).savefig("claims.png")
"""

from splash_attention.plots import accuracy, claims, learned, maps, model, power, roofline, solvers, speed, workloads
from splash_attention.plots.data import FIGURES, NotInReport

__all__ = [
    "FIGURES",
    "NotInReport",
    "accuracy",
    "claims",
    "learned",
    "maps",
    "model",
    "power",
    "roofline",
    "solvers",
    "speed",
    "workloads",
]
