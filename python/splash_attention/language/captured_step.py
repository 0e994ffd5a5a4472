"""A training step as a CUDA graph. A step of a small model is some 6000 kernels, which a processor launches more slowly than a GPU runs
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from splash_attention.hugging_face.masks import whole_sequences


class CapturedStep:
    """loss(windows) and its gradients, captured once and replayed for other windows of the same shape. Parameters may have changed in
    place between.

    loss: of a model on one GPU, to whose parameters it gives gradients. windows: integers [batch, length], on that GPU. It was computed
    so before: then libraries have what they need, and kernels know how much memory supports take. Raises what PyTorch raises where
    something cannot be captured, or memory does not suffice.
    """

    def __init__(self, loss: Callable[[Tensor], Tensor], parameters: list[Any], windows: Tensor) -> None:
        self.windows = windows.clone()
        for parameter in parameters:
            parameter.grad = None
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(windows.device), whole_sequences(), torch.cuda.graph(self.graph):
            mean = loss(self.windows)
            mean.backward()
            self.gradients = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
            finite = torch.stack([gradient.isfinite().all() for _, gradient in self.gradients]).all()
            self.told = torch.stack([mean.detach().double(), finite.double()])

    def __call__(self, windows: Tensor) -> float | None:
        """The loss; the gradients are the parameters'. None where one is not finite: a support may have outgrown its memory, which a
        graph's kernels cannot enlarge."""
        self.windows.copy_(windows)
        self.graph.replay()
        loss, finite = self.told.tolist()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return loss if finite else None
