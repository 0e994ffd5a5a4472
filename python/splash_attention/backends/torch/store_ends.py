"""Where the forward that wrote a store ends, for backward to wait for that alone.

By the storage, not by the graph: a checkpoint writes another store, later, into the old graph; and not by the address, which others get.
docs/decisions/0068-backward-does-not-wait-to-be-launched.md
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from splash_attention import _core

_ends: dict[int, tuple[Any, Any]] = {}  # by a storage: a weak reference, which keeps its identity from others, and the end
_MOST = 4096


def note(store: Tensor, stream: int) -> None:
    """That a forward which writes the store was enqueued last on the stream."""
    storage = store.untyped_storage()
    _ends.pop(storage._cdata, None)
    if torch.cuda.is_current_stream_capturing():
        return
    if len(_ends) >= _MOST:
        for key, (reference, _) in list(_ends.items()):  # other threads note theirs
            if reference.expired():
                _ends.pop(key, None)
    if len(_ends) < _MOST:  # else backward waits for its stream
        _ends[storage._cdata] = StorageWeakRef(storage), _core.StreamPoint(store.get_device(), stream)


def of(store: Tensor) -> Any:
    """None: nothing is known of it."""
    return _ends.get(store.untyped_storage()._cdata, (None, None))[1]
