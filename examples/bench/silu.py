"""SiLU of a vector by PyTorch: `splash bench examples/bench/silu.py` needs no GPU."""

import torch
from splash_laboratory.kernels import declare


@declare(
    sizes={"n": 1 << 22},
    inputs={"x": ("float32", ["n"], "normal")},
    outputs={"y": ("float32", ["n"])},
    flops=lambda n: 4 * n,
    reference=lambda x: x.double() / (1 + torch.exp(-x.double())),
)
def silu(x):
    return torch.nn.functional.silu(x)
