"""entmax of the rows of a matrix in PyTorch and Triton on the GPU, timed as our own kernel is; one process for many jobs.

Reads one JSON object a line: backend (bisection: PyPI's entmax, 23 halvings; adasplash, adasplash2: PyPI's adasplash, versions
1 and 2), dtype, alpha, method, cache, samples, budget, warm_up, key, folder, shape (rows, n). The folder holds the scores as
raw float32, which are read again where `key` differs from the job before. Leaves the probabilities there as out.f32 and answers
one JSON object a line: seconds, peak_memory_bytes, version, or {"unavailable": why}.
"""

import os

import numpy as np
import torch
from torch_gpu_attention import answer_jobs, measured, save, versions

HALVINGS = 23  # what float32 resolves, and what arXiv 2502.12082 counts


def load(job):
    raw = np.fromfile(os.path.join(job["folder"], "scores.f32"), "<f4")
    return (torch.from_numpy(raw).view(job["shape"]).cuda().to(getattr(torch, job["dtype"])),)


def run(job, scores):
    if job["backend"] == "bisection":
        import entmax

        packages = (entmax,)
        call = lambda: entmax.entmax_bisect(scores, job["alpha"], n_iter=HALVINGS)
    else:
        import adasplash
        import triton

        packages = (adasplash, triton)
        rows = adasplash.triton_entmax_v1 if job["backend"] == "adasplash" else adasplash.triton_entmax_v2
        call = lambda: rows(scores, alpha=job["alpha"])
    with torch.no_grad():
        save(job, "out", call())  # triggers compilation and tuning, if there is any
        return {**measured(call, job), "version": versions(*packages)}


if __name__ == "__main__":
    answer_jobs(load, run)
