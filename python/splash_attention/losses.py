"""The losses that belong to α-entmax as cross-entropy belongs to softmax, and their modules: Fenchel-Young losses (Blondel, Martins,
Niculae 2020, arXiv 1901.02324; Peters, Niculae, Martins 2019, arXiv 1905.05702). Names and arguments are those of the package `entmax`.

    L(x, y) = <p, x> - x_y + H(p),  p = entmax(x),  H(p) = (1 - Σ p^α) / (α (α - 1)),  dL/dx = p - e_y

L is 0 where x_y exceeds every other score by 1 / (α - 1): there p is 1 at the target. k and n_iter tell the package how to search for
p; here p is exact, and they change nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active

from splash_attention import checks
from splash_attention.backends.torch.functional import as_alpha, check_scores, entmax

_REDUCTIONS = ("elementwise_mean", "mean", "sum", "none")


def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: Any = 1.5, n_iter: int = 50) -> Tensor:
    """The loss of α-entmax, of each row.

    X: scores [rows, classes], or [..., classes]; float16, bfloat16, float32 or float64, computed in float32 or float64. A class at -inf
    is left out.
    target: integers from 0 to classes - 1, of the shape of X without its classes.
    alpha: a number above 1, or a tensor of 1 entry or one a row.

    Returns losses of the shape of target in the dtype of X (float32 under autocast), differentiable twice by X, and by a tensor alpha.
    Raises TypeError for a dtype or object that it does not take, ValueError for shapes and values. What classes target holds is looked
    at in host memory alone.
    """
    check_scores("X", X)
    _check_target(target, X)
    return _losses(X, target, alpha)


def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """entmax_bisect_loss with α = 2 (Martins, Astudillo 2016)."""
    return entmax_bisect_loss(X, target, 2.0)


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """entmax_bisect_loss with α = 1.5."""
    return entmax_bisect_loss(X, target, 1.5)


class EntmaxBisectLoss(nn.Module):
    """entmax_bisect_loss, reduced; a parameter as alpha is a parameter of the module.

    ignore_index: rows with this target have loss 0 and no gradient, and are not counted in the mean.
    reduction: "elementwise_mean" (or "mean"), "sum" or "none".
    """

    def __init__(
        self, alpha: Any = 1.5, n_iter: int = 50, ignore_index: int = -100, reduction: str = "elementwise_mean"
    ) -> None:  # fmt: skip
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise ValueError(f"reduction is {reduction!r}; allowed are {', '.join(_REDUCTIONS)}")
        self.alpha, self.ignore_index, self.reduction = alpha, ignore_index, reduction

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        check_scores("X", X)
        _check_target(target, X)
        ignored = target == self.ignore_index
        losses = _losses(X, target.masked_fill(ignored, 0), self.alpha)
        losses = torch.where(ignored, 0, losses)
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.sum() / (~ignored).sum()


class SparsemaxLoss(EntmaxBisectLoss):
    """EntmaxBisectLoss with α = 2."""

    def __init__(self, k: int | None = None, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(2.0, ignore_index=ignore_index, reduction=reduction)


class Entmax15Loss(EntmaxBisectLoss):
    """EntmaxBisectLoss with α = 1.5."""

    def __init__(self, k: int | None = 100, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(1.5, ignore_index=ignore_index, reduction=reduction)


def _check_target(target: Any, X: Tensor) -> None:
    if not isinstance(target, Tensor):
        raise TypeError(f"target is a {type(target).__name__}; it must be a torch tensor of class indices")
    checks.check_integers("target", target)
    if X.dim() == 0 or target.shape != X.shape[:-1]:
        wanted = "[..., classes] and target [...]"
        raise ValueError(f"X has shape {list(X.shape)} and target {list(target.shape)}; X must be {wanted}")
    if target.device != X.device:
        raise ValueError(f"target is on {target.device} and X on {X.device}; they must be on one device")


def _check_classes(target: Tensor, classes: int) -> None:
    """In host memory: elsewhere to look would wait, and PyTorch's gather looks itself."""
    if torch.compiler.is_compiling() or _are_functorch_transforms_active() or not target.is_cpu:
        return
    low, high = (int(bound) for bound in torch.aminmax(target))
    if low < 0 or high >= classes:
        raise ValueError(f"target has {low if low < 0 else high}; X has {classes} classes, so allowed are 0 to {classes - 1}")


def _losses(X: Tensor, target: Tensor, alpha: Any) -> Tensor:
    rows, classes = target.numel(), X.shape[-1]
    scores = (X.float() if X.dtype in (torch.float16, torch.bfloat16) else X).reshape(rows, classes)
    values, number = as_alpha(alpha, "X", X)
    if values is not None and values.numel() not in (1, rows):
        raise ValueError(f"alpha has {values.numel()} entries; allowed: 1, or {rows} (one a row of X)")
    if rows == 0:
        return scores.sum(-1).reshape(target.shape).to(X.dtype)
    target = target.to(torch.int64)
    _check_classes(target, classes)
    given = torch.full((1,), number, dtype=torch.float64, device=X.device) if values is None else values.reshape(-1)
    losses = _FenchelYoung.apply(scores, given, target.reshape(rows, 1))[0].reshape(target.shape)
    return losses if torch.is_autocast_enabled(X.device.type) else losses.to(X.dtype)


class _FenchelYoung(torch.autograd.Function):
    """Losses of rows. At p the loss is stationary, so the first derivative takes p as a constant; the second goes through it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, alpha: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """x: [rows, classes]; alpha: [1 or rows]; target: [rows, 1]. Returns the losses and p."""
        p = entmax(x, alpha, -1)
        alpha = alpha.to(p.dtype)
        of_others = torch.where(p == 0, 0, p * (x - x.gather(-1, target))).sum(-1)
        # 1 - Σ p^α as Σ p (1 - p^(α - 1)), which near α = 1 keeps its digits.
        power = (p * ((alpha - 1)[:, None] * p.log()).expm1()).sum(-1)
        return of_others - power / (alpha * (alpha - 1)), p

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Any) -> tuple[Any, ...]:
        x, alpha, target, p = ctx.saved_tensors
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            p = entmax(x, alpha, -1)  # for the second derivative
        d_x = d_alpha = None
        if ctx.needs_input_grad[0]:
            d_x = d_loss[:, None] * (p - torch.zeros_like(p).scatter(-1, target, 1))
        if ctx.needs_input_grad[1]:
            a = alpha.to(p.dtype)
            less_one, product = a - 1, a * (a - 1)
            down = less_one[:, None] * torch.where(p == 0, 1, p).log()
            lost = (p * down.expm1()).sum(-1) * (2 * a - 1) / product
            d_alpha = d_loss * (lost - (p * down.exp() * down).sum(-1) / less_one) / product
            d_alpha = (d_alpha.sum().reshape(1) if alpha.shape[0] == 1 else d_alpha).to(alpha.dtype)
        return d_x, d_alpha, None
