"""AdaptiveSplashAttention: the module of source document 004, exact."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Sequence

import torch
from torch import Tensor, nn

from splash_attention import checks, k_keep_adaptation
from splash_attention.auxiliary import Aux
from splash_attention.backends import host_arrays
from splash_attention.backends.torch import calls, cuda
from splash_attention.backends.torch.functional import as_autocast_has_it, make_aux, problem_of
from splash_attention.backends.torch.operators import TABLES, Problem
from splash_attention.learned_heads import ALPHA_HIGH, ALPHA_LOW

_NAMES = ("Q", "K", "V")
_TABLE_NAMES = {"q_positions": "Q_idx", "k_positions": "K_idx"}


class AdaptiveSplashAttention(nn.Module):
    """Exact α-entmax attention with learned thresholds, called as ``attention(Q, K, V, Q_idx, K_idx)``.

    head_dim: of Q, K and V.
    alpha: above 1; a number, or one a head, which may be set later (``attention.alpha = 1.4``; compiled code goes on,
      and on a GPU gives NaN for a head whose alpha is below 1.01 or above 2: code that is not compiled takes these too).
      With learn_alpha a parameter of each head, kept between 1.05 and 2. Both kinds are part of the state_dict.
    k_keep: entmax over the k_keep largest scores of each row only; None keeps all. A sequence has one a query head, None or 0
      for all keys. May be set later (``attention.k_keep = 8``).
    k_keep_target: a share of probability, such as 0.99, above 0 and up to 1: ``adapt_k_keep()``, called in training after a
      forward pass, moves each head's k_keep to the smallest number that keeps so much of it. k_keep is where it starts, and
      part of the state_dict with what was seen.
    k_keep_bounds: the smallest and the largest k_keep that it may come to.
    adaptive_threshold: learn where τ lies: τ̂ = m - 1 + σ(w·q + b)(1 - n^(1-α)), m the row's largest z and n its keys.
      Add ``threshold_loss``, the mean of (τ̂ - τ)², to your loss to train w and b.
    sm_scale: of the scores; None is 1/√head_dim.
    factor: of sm_scale, above 0; a number, or one a head, which is part of the state_dict: by it Q is multiplied, in float32.
    num_heads: query heads; a predictor (and a learned α) for each. None: one for all heads.
    threshold_mode: "warm_start": the output is exact, τ̂ only learns; "direct": p = [z - τ̂]₊^(1/(α-1)) over the keys of
      k_keep, renormalised; in its gradient τ̂ - m and m's score are constants (straight-through).
    causal: query i sees the keys j ≤ i + kv_len - q_len, where no positions are given.
    window: the keys nearer than that to a query's place, as splash_attention has it; None is all.

    A copy or a pickle holds what is learned and set, not the last call. After a call ``tau``, ``support``,
    ``sparsity_by_token``, ``sparsity_by_block()``, ``probabilities()`` and, in training, ``threshold_loss`` tell of it.
    Raises as splash_attention does; ValueError for arguments that do not fit.
    """

    _version = 2  # of the state_dict: the first had no fixed_alpha

    def __init__(
        self,
        head_dim: int,
        alpha: float | Sequence[float] = 1.5,
        k_keep: int | Sequence[int | None] | None = None,
        adaptive_threshold: bool = True,
        sm_scale: float | None = None,
        *,
        factor: float | Sequence[float] = 1.0,
        num_heads: int | None = None,
        learn_alpha: bool = False,
        threshold_mode: str = "warm_start",
        causal: bool = False,
        window: int | None = None,
        k_keep_target: float | None = None,
        k_keep_bounds: tuple[int, int] = (1, 512),
    ) -> None:
        super().__init__()
        if threshold_mode not in ("warm_start", "direct"):
            raise ValueError(f'threshold_mode is {threshold_mode!r}; allowed are "warm_start" and "direct"')
        adaptive_threshold = checks.check_flag("adaptive_threshold", adaptive_threshold)
        if threshold_mode == "direct" and not adaptive_threshold:
            raise ValueError('threshold_mode "direct" needs adaptive_threshold')
        self.head_dim = checks.check_count("head_dim", head_dim)
        self.num_heads = num_heads if num_heads is None else checks.check_count("num_heads", num_heads, " or None")
        self.sm_scale = checks.check_scale(sm_scale, "sm_scale") or None
        self.threshold_mode, self.causal = threshold_mode, checks.check_flag("causal", causal)
        self.window = checks.check_window(window) or None
        self.learn_alpha = checks.check_flag("learn_alpha", learn_alpha)
        self._call: tuple[Any, ...] | None = None  # inputs and statistics of the last call
        self._loss: Tensor | None = None
        self._number: tuple[Any, Tensor, int] | None = None  # or numbers of fixed_alpha, with what they were read from
        heads = self.num_heads or 1
        self.k_keep_target = k_keep_adaptation.check_target(k_keep_target)
        self.k_keep_bounds = k_keep_adaptation.check_bounds(k_keep_bounds)
        self._start_factor(factor)
        self._start_k_keep(k_keep)
        self._start_alpha(self._alpha_values(alpha))
        self.threshold_weight = nn.Parameter(torch.zeros(heads, self.head_dim)) if adaptive_threshold else None
        self.threshold_bias = nn.Parameter(torch.zeros(heads)) if adaptive_threshold else None

    @classmethod
    def from_method(cls, method: Any, layer: int, head_dim: int, **options: Any) -> AdaptiveSplashAttention:
        """With alpha, factor and k_keep of a layer's heads as tuning or training chose them.

        method: a splash_attention.language.Method, or the name of its file. options: what the constructor takes besides. num_heads is
        told by the method where it has an entry a head. Raises ValueError for a layer that is not entmax, or of other heads.
        """
        from splash_attention.language.methods import Method

        how = (method if isinstance(method, Method) else Method.read(method)).of(layer)
        if how.kind != "entmax" or how.block is not None:
            raise ValueError(f"layer {layer} of the method is {how.as_dict()}; it must be entmax without block")
        lengths = [len(values) for values in (how.alpha, how.factor, how.k_keep) if isinstance(values, tuple)]
        heads = options.pop("num_heads", None) or (lengths[0] if lengths else None)
        how.check_heads(heads, layer)
        return cls(head_dim, how.alpha, how.k_keep, factor=how.factor, num_heads=heads, **options)

    # --- factor: a number, or a buffer with one a head ---

    def _start_factor(self, factor: Any) -> None:
        values = checks.factor_of_heads(factor, self.num_heads or 1)
        self._factor = values if isinstance(values, float) else 1.0
        self.register_buffer("head_factor", None if isinstance(values, float) else torch.tensor(values, dtype=torch.float32))

    def _scaled(self, Q: Tensor) -> tuple[Tensor, float | None]:
        """(Q, the scale), with factor in the one or the other."""
        if self.head_factor is not None:
            return (Q * self.head_factor[:, None, None]).to(Q.dtype), self.sm_scale
        return Q, self.sm_scale if self._factor == 1 else self._factor * (self.sm_scale or self.head_dim**-0.5)

    # --- alpha: a parameter, or a buffer that for one number is not looked at in each call ---

    def _alpha_values(self, alpha: Any) -> list[float]:
        values = checks.as_alpha(alpha)
        values = host_arrays.to_alpha(values.detach().cpu().double() if isinstance(values, Tensor) else values)
        values = [values] if type(values) is float else values.reshape(-1).tolist()
        for value in values:
            host_arrays.to_alpha(value)
        heads = self.num_heads or 1
        if len(values) not in (1, heads):
            raise ValueError(f"alpha has {len(values)} entries; allowed: 1, or num_heads, which is {heads}")
        return values

    def _start_alpha(self, values: list[float]) -> None:
        if not self.learn_alpha:
            self.register_buffer("fixed_alpha", torch.tensor(values, dtype=torch.float64))
            self._read_number()
            return
        if not all(ALPHA_LOW < value < ALPHA_HIGH for value in values):
            raise ValueError(f"alpha is {values}; where it is learned it must start between {ALPHA_LOW} and {ALPHA_HIGH}")
        start = torch.tensor(values, dtype=torch.float64).expand(self.num_heads or 1)
        share = (start - ALPHA_LOW) / (ALPHA_HIGH - ALPHA_LOW)
        self.alpha_logit = nn.Parameter(torch.logit(share).float())

    def _read_number(self) -> None:
        """Where fixed_alpha is one number: a number takes less than a tensor, and to read it on a GPU is to wait. Also where
        a GPU's kernels do not take one of several: of tensors the functions would not know."""
        self._number = None
        alpha = None if self.learn_alpha else self.fixed_alpha
        if type(alpha) is Tensor and not alpha.is_meta and not alpha.is_inference():
            values = alpha.tolist()
            if len(values) == 1 or not all(map(cuda.takes_alpha, values)):
                self._number = (values[0] if len(values) == 1 else values, alpha, alpha._version)

    @property
    def alpha(self) -> Tensor:
        """α of each head, or one for all."""
        if not self.learn_alpha:
            return self.fixed_alpha
        return ALPHA_LOW + (ALPHA_HIGH - ALPHA_LOW) * torch.sigmoid(self.alpha_logit)

    @alpha.setter
    def alpha(self, alpha: Any) -> None:
        if self.learn_alpha:
            raise AttributeError("alpha is learned here; make the module without learn_alpha to set it")
        values = torch.tensor(self._alpha_values(alpha), dtype=torch.float64)
        if values.shape == self.fixed_alpha.shape:
            with torch.no_grad():
                self.fixed_alpha.copy_(values)
        else:
            self.fixed_alpha = values.to(self.fixed_alpha.device)
        self._read_number()

    def _alpha_now(self) -> float | list[float] | Tensor:
        """What the functions take. The numbers where they still are those of the buffer; of a compiled graph they would be
        constants."""
        alpha = self.alpha
        if torch.compiler.is_compiling() or self._number is None:
            return alpha
        number, source, version = self._number
        return number if source is alpha and version == alpha._version else alpha

    # --- k_keep: a number, or a buffer with one a head ---

    def _start_k_keep(self, k_keep: Any) -> None:
        heads = self.num_heads or 1
        self.register_buffer("head_k_keep", None, persistent=self.k_keep_target is not None)
        self.register_buffer("rank_mass", None)
        self._k_keep: int | None = None
        if self.k_keep_target is None:
            self.k_keep = k_keep
            return
        kept = [checks.check_k_keep(k_keep)] if checks.is_k_keep_number(k_keep) else k_keep
        self.head_k_keep = torch.tensor(checks.k_keep_of_heads(kept, heads), dtype=torch.int32)
        self.rank_mass = torch.zeros(heads, self.k_keep_bounds[1] + 1, dtype=torch.float64)

    @property
    def k_keep(self) -> Any:
        """None, a number, or a tensor with one a head, in which 0 is all keys."""
        return self._k_keep if self.head_k_keep is None else self.head_k_keep

    @k_keep.setter
    def k_keep(self, k_keep: Any) -> None:
        if self.k_keep_target is not None:
            raise AttributeError("k_keep is adapted here; make the module without k_keep_target to set it")
        if checks.is_k_keep_number(k_keep):
            self._k_keep, self.head_k_keep = checks.check_k_keep(k_keep) or None, None
            return
        device = None if self.head_k_keep is None else self.head_k_keep.device
        self.head_k_keep = torch.tensor(checks.k_keep_of_heads(k_keep, self.num_heads or 1), dtype=torch.int32, device=device)

    @torch.no_grad()
    def adapt_k_keep(self) -> None:
        """Looks at the last call's probabilities as they were without k_keep, and moves each head's k_keep to the smallest
        number that keeps k_keep_target of them: of a running mean, in which each call weighs a tenth of those before it.
        Call it once a training step; in evaluation it does nothing, so a checkpoint's k_keep stays. Costs a forward pass
        and a sort of the support.

        Raises ValueError without k_keep_target, RuntimeError before the first call."""
        if self.k_keep_target is None:
            raise ValueError("k_keep_target is None; adapt_k_keep needs one")
        if self._call is None:
            raise RuntimeError("there is no call to adapt k_keep to yet: call the module first")
        if not self.training:
            return
        Q, K, _, _, problem = self._call
        uncut = problem._replace(k_keep=0, head_k_keep=None)
        offsets, _, values = torch.ops.splash_attention.probabilities(Q, K, *uncut)
        seen = k_keep_adaptation.mass_by_rank(offsets, values, Q.shape, *self.rank_mass.shape)
        self.rank_mass.copy_(k_keep_adaptation.running_mean(self.rank_mass, seen))
        share = (self.k_keep_target, self.k_keep_bounds)
        self.head_k_keep.copy_(k_keep_adaptation.smallest_that_keeps(self.rank_mass, self.head_k_keep, *share))

    # --- copies, devices, checkpoints ---

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_call": None, "_loss": None, "_number": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._read_number()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AdaptiveSplashAttention:
        alpha, mass, factor = None if self.learn_alpha else self.fixed_alpha, self.rank_mass, self.head_factor
        super()._apply(fn, recurse)
        if factor is not None and self.head_factor.dtype != factor.dtype:
            self.head_factor = factor.to(self.head_factor.device)
        if mass is not None and self.rank_mass.dtype != mass.dtype:
            self.rank_mass = mass.to(self.rank_mass.device)
        if alpha is not None:
            if self.fixed_alpha.dtype != alpha.dtype:  # half() is of the weights; 1.2 is to stay 1.2
                self.fixed_alpha = alpha.to(self.fixed_alpha.device)
            self._read_number()
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], *others: Any,
    ) -> None:  # fmt: skip
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, *others)
        key = prefix + "fixed_alpha"
        if self.learn_alpha:
            return
        if key not in state_dict and (local_metadata.get("version") or 1) < 2:
            if key in missing_keys:
                missing_keys.remove(key)
            warnings.warn(
                f"the checkpoint is older than {key}: alpha stays {self.fixed_alpha.tolist()}, as this module was made",
                stacklevel=2,
            )
        self._read_number()

    def forward(
        self, Q: Tensor, K: Tensor, V: Tensor, Q_idx: Tensor | None = None, K_idx: Tensor | None = None
    ) -> Tensor:
        """Q: [batch, q_heads, q_len, head_dim]; K, V: [batch, kv_heads, kv_len, head_dim]; Q_idx, K_idx: positions
        [batch·q_heads, length] (or [length], [batch, length], [batch, q_heads, length]): a query sees keys whose
        position is not larger than its own. Returns the output, as Q."""
        tables = dict.fromkeys(TABLES)
        tables["q_positions"], tables["k_positions"] = Q_idx, K_idx
        causal = self.causal and Q_idx is None
        Q, K, V = as_autocast_has_it(Q, K, V, _NAMES)
        scale = self.sm_scale
        if self.head_factor is not None or self._factor != 1:
            checks.check_inputs(Q, K, V, _NAMES)
            self._check(Q)
            Q, scale = self._scaled(Q)
        window = self.window if causal == self.causal else None  # where positions stand for causal, they do for its window
        problem = problem_of(Q, K, V, self._alpha_now(), causal, scale, self.k_keep, window, tables, _NAMES, _TABLE_NAMES)
        self._check(Q)
        learns = self.threshold_weight is not None and self.training
        if self.threshold_mode == "direct":
            return self._direct(Q, K, V, problem)
        counted = learns or not Q.is_cuda  # on a GPU counting costs, so it waits for whoever asks
        out, tau, support, peak = calls.attention(Q, K, V, *problem, with_peak=learns, counted=counted)
        self._call = (Q.detach(), K.detach(), tau, support if counted else None, problem)
        self._loss = self._threshold_loss(Q, K, peak, problem) if learns else None
        return out

    def _check(self, Q: Tensor) -> None:
        if Q.shape[3] != self.head_dim:
            raise ValueError(f"Q has head_dim {Q.shape[3]}; this module was made for {self.head_dim}")
        if self.num_heads not in (None, Q.shape[1]):
            raise ValueError(f"Q has {Q.shape[1]} heads; this module was made for {self.num_heads}")

    # --- the threshold predictor ---

    def _keys(self, Q: Tensor, K: Tensor, problem: Problem) -> Tensor:
        """Keys that take part in each row, [1 or batch, 1 or q_heads, q_len]."""
        q_positions, k_positions, head_k_keep = problem.q_positions, problem.k_positions, problem.head_k_keep
        (batch, heads, q_len, _), kv_len = Q.shape, K.shape[2]
        if q_positions is not None:
            queries, keys = (_by_head(t, batch, heads) for t in (q_positions, k_positions))
            shape = torch.broadcast_shapes(queries.shape[:2], keys.shape[:2])
            order = keys.expand(*shape, kv_len).contiguous().sort(-1).values
            count = torch.searchsorted(order, queries.expand(*shape, q_len).contiguous(), right=True)
        else:
            place = torch.arange(q_len, device=Q.device) + (kv_len - q_len)
            window = min(problem.window or kv_len + q_len, kv_len + q_len)
            end = place + (1 if problem.causal else window)
            count = (end.clamp(0, kv_len) - (place + 1 - window).clamp(min=0)).clamp(min=0).view(1, 1, -1)
        if head_k_keep is not None:
            kept = torch.where(head_k_keep < 1, kv_len, head_k_keep).view(1, -1, 1)
            return torch.minimum(count, kept)
        return count.clamp(max=problem.k_keep) if problem.k_keep else count

    def _predicted(self, Q: Tensor, K: Tensor, problem: Problem) -> Tensor:
        """τ̂ - m of each row, in [-1, 0): the bracket of τ."""
        keys = self._keys(Q, K, problem).clamp(min=1).to(self.threshold_weight.dtype)
        logit = (Q.detach().to(keys.dtype) * self.threshold_weight[:, None, :]).sum(-1) + self.threshold_bias[:, None]
        alpha = self.alpha.detach().to(keys.dtype)[:, None]
        return torch.sigmoid(logit) * (1 - keys ** (1 - alpha)) - 1

    def _threshold_loss(self, Q: Tensor, K: Tensor, peak: Tensor, problem: Problem) -> Tensor:
        # τ - m is -peak; a row without keys has peak 0.
        seen = peak > 0
        error = torch.where(seen, self._predicted(Q, K, problem) + peak.to(self.threshold_bias.dtype), 0)
        return error.square().sum() / seen.sum().clamp(min=1)

    def _direct(self, Q: Tensor, K: Tensor, V: Tensor, problem: Problem) -> Tensor:
        offsets = self._predicted(Q, K, problem).detach().expand(Q.shape[:3]).contiguous()
        direct = problem._replace(tau_offsets=offsets)
        out, tau, support, _ = calls.attention(Q, K, V, *direct, counted=not Q.is_cuda)
        self._call = (Q.detach(), K.detach(), tau, None if Q.is_cuda else support, direct)
        self._loss = None
        if self.training:
            with torch.no_grad():
                peak = calls.attention(Q, K, V, *problem, with_peak=True)[3]
            self._loss = self._threshold_loss(Q, K, peak, problem)
        return out

    # --- statistics of the last call ---

    def _last(self) -> Aux:
        if self._call is None:
            raise RuntimeError("there are no statistics yet: call the module first")
        Q, K, tau, support, problem = self._call
        if support is None:
            with torch.no_grad():
                _, tau, support, _ = calls.attention(Q, K, K, *problem, counted=True)
            self._call = (Q, K, tau, support, problem)
        return make_aux(Q, K, tau, support, problem)

    @property
    def threshold_loss(self) -> Tensor:
        """Mean over rows with a key of (τ̂ - τ)²: differentiable by the predictor's parameters alone. Zero outside of
        training and without adaptive_threshold."""
        return self._loss if self._loss is not None else torch.zeros(())

    @property
    def tau(self) -> Tensor:
        """[batch, q_heads, q_len], in units of z = (α-1)·score; +inf for a row without keys."""
        return self._last().tau

    @property
    def support(self) -> Tensor:
        """Keys with p > 0: [batch, q_heads, q_len]."""
        return self._last().support

    @property
    def sparsity_by_token(self) -> float:
        return self._last().sparsity_by_token

    def sparsity_by_block(self, block: int = 64) -> float:
        return self._last().sparsity_by_block(block)

    def probabilities(self) -> Tensor:
        return self._last().probabilities()

    def extra_repr(self) -> str:
        alpha = "learned" if self.learn_alpha else self.fixed_alpha.tolist()
        kept = self.k_keep if self.head_k_keep is None else self.head_k_keep.tolist()
        factor = self._factor if self.head_factor is None else self.head_factor.tolist()
        return f"head_dim={self.head_dim}, num_heads={self.num_heads}, alpha={alpha}, factor={factor}, k_keep={kept}"


def _by_head(table: Tensor, batch: int, heads: int) -> Tensor:
    """[1 or batch, 1 or q_heads, length]."""
    if table.dim() == 3:
        return table
    if table.dim() == 1:
        return table.view(1, 1, -1)
    return table.unsqueeze(1) if table.shape[0] == batch else table.reshape(batch, heads, -1)
