"""entmax as modules, with the names and arguments of the package `entmax`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from splash_attention.functional import entmax_bisect


class EntmaxBisect(nn.Module):
    """entmax_bisect along ``dim``; a parameter as alpha is a parameter of the module."""

    def __init__(self, alpha: Any = 1.5, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        self.alpha, self.dim = alpha, dim

    def forward(self, X: Tensor) -> Tensor:
        return entmax_bisect(X, self.alpha, self.dim)


class Sparsemax(EntmaxBisect):
    """sparsemax along ``dim``."""

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__(2.0, dim)


class Entmax15(EntmaxBisect):
    """entmax15 along ``dim``."""

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__(1.5, dim)
