"""A polynomial of degree 512 at each element, by Triton: FMAs of float32 bound it, by construction."""

import torch
import triton
import triton.language as tl
from splash_laboratory.kernels import declare

DEGREE, BLOCK = 512, 2048


@triton.jit
def horner(x_pointer, y_pointer, n, DEGREE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_pointer + at, mask=at < n, other=0.0)
    y = tl.zeros([BLOCK], dtype=tl.float32)
    for _ in range(DEGREE):
        y = y * x + 1.0
    tl.store(y_pointer + at, y, mask=at < n)


def reference(x):
    x = x.double()
    return (1 - x**DEGREE) / (1 - x)  # the sum of the powers below DEGREE


@declare(
    sizes={"n": 1 << 24},
    inputs={"x": ("float32", ["n"], (-0.9, 0.9))},
    outputs={"y": ("float32", ["n"])},
    flops=lambda n: 2 * DEGREE * n,
    reference=reference,
)
def polynomial(x, y):
    horner[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), DEGREE=DEGREE, BLOCK=BLOCK, num_warps=4)
