"""context_parallel: models of transformers with attn_implementation="splash" attend over all ranks of a group inside of it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Iterator


@dataclass(frozen=True)
class Context:
    group: Any
    options: dict[str, Any]
    """Of ring_splash_attention."""

    def attend(self, q: Any, k: Any, v: Any, **call: Any) -> Any:
        """As splash_attention, of this rank's tokens."""
        from splash_attention.distributed.attention import ring_splash_attention

        return ring_splash_attention(q, k, v, group=self.group, **self.options, **call)


# Not a context variable: activation checkpoints compute forward again on threads of autograd, which have contexts of their own.
_active: list[Context] = []


def active() -> Context | None:
    return _active[-1] if _active else None


@contextlib.contextmanager
def context_parallel(
    group: Any = None, *, shard: str = "zigzag", mode: str = "auto", cu_seqlens: Any = None, check: bool = True, timeout: float = 120.0
) -> Iterator[None]:
    """Inside, attention of models of transformers with attn_implementation="splash" is that of the whole sequence, of which each rank
    passes its shard: `shard(input_ids, group)` as input_ids and `position_ids(length, group)[None]` as position_ids.

    group: a ProcessGroup, a DeviceMesh of one dimension, or None, which is all ranks. shard, mode, check, timeout: as of
    ring_splash_attention. cu_seqlens: of packed sequences, of the whole, as there. Where activations are checkpointed, backward belongs
    inside too. Layers that ask for what is not served (padding, a cache with tokens in it, dropout, masks of one's own,
    output_attentions) raise NotImplementedError or ValueError.
    """
    from splash_attention.distributed.attention import MODES
    from splash_attention.distributed.groups import process_group
    from splash_attention.distributed.shards import KINDS

    for name, value, allowed in (("shard", shard, KINDS), ("mode", mode, MODES)):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
    options = {"shard": shard, "mode": mode, "cu_seqlens": cu_seqlens, "check": check, "timeout": timeout}
    _active.append(Context(process_group(group), options))
    try:
        yield
    finally:
        _active.pop()
