"""What is known of the end of the forward that wrote a store: its notice, which tells how many entries it wanted to store.

By the storage, not by the graph: a checkpoint writes another store, later, into the old graph; and not by the address, which others get.
docs/decisions/0068-backward-does-not-wait-to-be-launched.md
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

_ends: dict[int, tuple[Any, Any]] = {}  # by a storage: a weak reference, which keeps its identity from others, and the notice
_MOST = 4096


def note(store: Tensor, notice: Any) -> None:
    """notice: a Notice of the forward that was enqueued last and writes the store; None: nothing is known of it."""
    storage = store.untyped_storage()
    _ends.pop(storage._cdata, None)
    if notice is None:
        return
    if len(_ends) >= _MOST:
        for key, (reference, _) in list(_ends.items()):  # other threads note theirs
            if reference.expired():
                _ends.pop(key, None)
    if len(_ends) < _MOST:  # else backward waits for its stream
        _ends[storage._cdata] = StorageWeakRef(storage), notice


def of(store: Tensor) -> Any:
    """None: nothing is known of it."""
    return _ends.get(store.untyped_storage()._cdata, (None, None))[1]
