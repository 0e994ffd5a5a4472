"""A training step as a CUDA graph. A step of a small model is some 6000 kernels, which a processor launches more slowly than a GPU runs
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from splash_attention.hugging_face.masks import whole_sequences
from splash_attention.learned_heads import together


class CapturedStep:
    """loss(model, windows) and its gradients, captured once and replayed for other windows of the same shape. Parameters may have changed
    in place between.

    model: on one GPU. windows: integers [batch, length], on that GPU. The loss was computed so before: then libraries have what they
    need, and kernels know how much memory supports take. Raises what PyTorch raises where something cannot be captured, or memory does
    not suffice.
    """

    def __init__(self, model: Any, loss: Callable[[Any, Tensor], Tensor], windows: Tensor) -> None:
        self.windows = windows.clone()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in parameters:
            parameter.grad = None
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(windows.device), whole_sequences(), torch.cuda.graph(self.graph), together(list(model.modules())):
            mean = loss(model, self.windows)
            mean.backward()
            self.gradients = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
            lengths = torch._foreach_norm([gradient for _, gradient in self.gradients])  # of each, by few kernels for all
            self.told = torch.stack([mean.detach().double(), torch.stack(lengths).isfinite().all().double()])

    def __call__(self, windows: Tensor) -> float | None:
        """The loss; the gradients are the parameters'. None where one is not finite: a support may have outgrown its memory, which a
        graph's kernels cannot enlarge."""
        self.windows.copy_(windows)
        self.graph.replay()
        loss, finite = self.told.tolist()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return loss if finite else None
