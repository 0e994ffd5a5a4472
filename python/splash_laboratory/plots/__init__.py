"""Plots of a report: `python -m splash_laboratory.plots report.h5 --out DIR`, or a function a plot.

from splash_laboratory import open_report
from splash_laboratory.plots import FIGURES
FIGURES["claims"](open_report("report.h5")).savefig("claims.png")
columns.figure_columns(open_report("report.h5"), "kv_len", "time_median", by="implementation").savefig("time.pdf")
"""

from splash_laboratory.plots import accuracy, claims, columns, flagship, kascade, learned, maps, model, power, roofline, scaling, solvers, speed, workloads
from splash_laboratory.plots.data import FIGURES, NotInReport

__all__ = [
    "FIGURES",
    "NotInReport",
    "accuracy",
    "claims",
    "columns",
    "flagship",
    "kascade",
    "learned",
    "maps",
    "model",
    "power",
    "roofline",
    "scaling",
    "solvers",
    "speed",
    "workloads",
]
