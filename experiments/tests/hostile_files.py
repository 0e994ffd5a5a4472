"""Reports that someone made to do harm, written with h5py for the tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

SECRET = "the secret of the machine"


def _external_storage(file: h5py.File, secret: Path) -> None:
    size = secret.stat().st_size
    file["results"].create_dataset("stolen", (size,), "S1", external=[(str(secret), 0, size)])


def _external_link(file: h5py.File, secret: Path) -> None:
    file["results/stolen"] = h5py.ExternalLink(str(secret), "/results")


def _link_in_attachments(file: h5py.File, secret: Path) -> None:
    file.require_group("attachments/c1")["stolen"] = h5py.ExternalLink(str(secret), "/results")


def _soft_link(file: h5py.File, secret: Path) -> None:
    file["results/stolen"] = h5py.SoftLink("/results/case")


def _virtual(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource(str(secret), "x", (4,))
    file["results"].create_virtual_dataset("stolen", layout)


def _filter(file: h5py.File, secret: Path) -> None:
    file["results"].create_dataset("stolen", data=np.arange(1000), compression="lzf", chunks=(100,))


def _huge(file: h5py.File, secret: Path) -> None:
    file["results"].create_dataset("stolen", (2**40,), "f8", chunks=(1024,), compression="gzip")


def _overflowing(file: h5py.File, secret: Path) -> None:
    file["results"].create_dataset("stolen", (2**32, 2**30), "f8", chunks=(64, 64))


def _bomb(file: h5py.File, secret: Path) -> None:
    """One dataset under a thousand names: each is read."""
    data = file["results"].create_dataset("stolen", data=np.zeros(2**20), chunks=(2**18,), compression="gzip")
    for name in range(1000):
        file[f"results/again{name}"] = data


# name -> (what makes the file, what both readers say about it after its name)
ELSEWHERE = "; only a file that holds all of its data itself is read"
HOSTILE: dict[str, tuple[Callable[[h5py.File, Path], None], str]] = {
    "external storage": (_external_storage, "/results/stolen keeps its data in other files" + ELSEWHERE),
    "external link": (_external_link, "/results/stolen is a link to another file" + ELSEWHERE),
    "link in attachments": (_link_in_attachments, "/attachments/c1/stolen is a link to another file" + ELSEWHERE),
    "soft link": (_soft_link, "/results/stolen is a soft link" + ELSEWHERE),
    "virtual dataset": (_virtual, "/results/stolen is made of other datasets (virtual)" + ELSEWHERE),
    "plugin": (_filter, "/results/stolen is stored with the filter 32000; allowed: deflate (1), shuffle (2), fletcher32 (3)"),
    "huge": (_huge, f"/results/stolen claims {2**40} elements, more than its 0 stored bytes can hold"),
    "overflowing": (_overflowing, f"/results/stolen claims {2**62} elements, more than its 0 stored bytes can hold"),
    "bomb": (_bomb, ""),
}


def make_hostile(name: str, source: Path, folder: Path) -> Path:
    """A copy of a report with the thing of that name in it, without its checksum line."""
    secret = folder / "secret.txt"
    secret.write_text(SECRET)
    path = folder / f"{name.replace(' ', '-')}.h5"
    shutil.copy(source, path)
    with h5py.File(path, "r+") as file:
        HOSTILE[name][0](file, secret)
    return path
