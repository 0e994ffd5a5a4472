"""Groups of torch.distributed, and waiting for them without hanging."""

from __future__ import annotations

import time
import weakref
from typing import Any, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

# Groups whose ranks have come together once, and the group of all ranks in which they did.
_met: dict[tuple[int, ...], weakref.ref[Any]] = {}


def process_group(group: Any) -> Any:
    """group: a ProcessGroup, a DeviceMesh of one dimension, or None, which is all ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("torch.distributed has no process group: start with torchrun, and call torch.distributed.init_process_group first")
    if group is None:
        return dist.group.WORLD
    if hasattr(group, "get_group"):  # of a DeviceMesh
        if group.ndim != 1:
            raise ValueError(f"group is a DeviceMesh of {group.ndim} dimensions; it must have 1: pass mesh[name]")
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(f"rank {dist.get_rank()} is not in this group; only its members may call")
        raise TypeError(f"group is a {type(group).__name__}; it must be a ProcessGroup, a DeviceMesh or None")
    return group


def control_device(group: Any) -> torch.device:
    """Where small messages travel: in host memory where the group can, for a GPU would have to be waited for."""
    if "cpu:" in dist.get_backend_config(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def all_gather(x: Tensor, group: Any) -> tuple[Any, Tensor]:
    """(what to wait for, [ranks, *shape]) of a contiguous tensor of each rank, which must live until then."""
    parts = x.new_empty((dist.get_world_size(group) * x.shape[0], *x.shape[1:]))
    work = dist.all_gather_into_tensor(parts, x, group=group, async_op=True)
    return work, parts.unflatten(0, (-1, x.shape[0]))


def wait(work: Any, seconds: float, what: str) -> None:
    """Waits on the host. Raises TimeoutError or RuntimeError, in one sentence, where another rank does not answer."""
    until = time.monotonic() + seconds
    try:
        while not work.is_completed():
            if time.monotonic() > until:
                raise TimeoutError(f"{what}: a rank of the group did not answer within {seconds:g} s; it may have died, or is elsewhere")
            time.sleep(1e-5)
        work.wait()
    except RuntimeError as error:
        raise _gone(what, error) from error


def finish(work: Any, what: str) -> None:
    """Lets the current stream, or without one the host, wait. Raises RuntimeError where another rank is gone."""
    try:
        work.wait()
    except RuntimeError as error:
        raise _gone(what, error) from error


def _gone(what: str, error: RuntimeError) -> RuntimeError:
    return RuntimeError(f"{what}: a rank of the group is gone or late ({str(error).splitlines()[0]})")


def meet(group: Any, seconds: float) -> None:
    """Once for each group: all of its ranks come with the same one. Said through the store by which the ranks found each other, since a
    collective of groups that differ would wait for good.

    Raises ValueError where a rank waits in another group for this one, TimeoutError where one does not come.
    """
    ranks = tuple(dist.get_process_group_ranks(group))
    if ranks in _met and _met[ranks]() is dist.group.WORLD:
        return
    me, name = dist.get_rank(), _name(ranks)
    store = dist.PrefixStore("splash_attention", dist.distributed_c10d._get_default_store())
    store.set(f"{me} in {name}", "")
    store.set(f"{me} waits", name)
    until, missing = time.monotonic() + seconds, [rank for rank in ranks if rank != me]
    while missing := [rank for rank in missing if not store.check([f"{rank} in {name}"])]:
        wrong = _read(store, f"{name} failed")
        for rank in missing:
            other = _read(store, f"{rank} waits")
            if not wrong and other not in ("", name) and str(me) in other.split(", ") and other not in map(_name, _met):
                wrong = f"groups differ between ranks: rank {rank} calls with ranks [{other}], rank {me} with ranks [{name}]"
        if wrong:
            store.set(f"{name} failed", wrong)
            raise ValueError(wrong)
        if time.monotonic() > until:
            raise TimeoutError(f"ranks {missing} of the group [{name}] did not come within {seconds:g} s; all of a group must call together")
        time.sleep(0.01)
    store.set(f"{me} waits", "")
    _met[ranks] = weakref.ref(dist.group.WORLD)


def _name(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _read(store: Any, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""
