"""Whether an HDF5 file holds all that it says it holds, checked before any data is read.

The rules and the sentences are those of report/hdf5/contained.cpp, and a test holds the two together.
"""

from __future__ import annotations

import h5py

DEFLATE_AT_MOST = 1032  # bytes of one, the format's limit
UNWRITTEN = 1 << 20  # bytes that a dataset may have without holding them
ALLOWED_FILTERS = (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32)
LINKS = {h5py.h5l.TYPE_EXTERNAL: "is a link to another file", h5py.h5l.TYPE_SOFT: "is a soft link"}
ELSEWHERE = "; only a file that holds all of its data itself is read"


class NotContainedError(Exception):
    """What HDF5 would fetch from elsewhere, or cannot be there. The message lacks the file's name."""


def require_contained(file: h5py.File) -> None:
    """Raises NotContainedError for what makes HDF5 open another file or load code (links other than hard ones, external
    storage, virtual datasets, filters that are plugins), and for datasets that claim more than the file can hold."""
    size, claimed, links = file.id.get_filesize(), 0, []
    file.id.links.visit(lambda name, link: links.append((name, link.type)), info=True)
    for name, kind in links:
        path = name.decode("utf-8", "replace")
        if kind != h5py.h5l.TYPE_HARD:
            _refuse(path, LINKS.get(kind, "is a link of an unknown kind") + ELSEWHERE)
        held = h5py.h5o.open(file.id, name)
        if isinstance(held, h5py.h5d.DatasetID):
            claimed += _checked_bytes(path, held, size)
    if claimed > size * DEFLATE_AT_MOST:
        raise NotContainedError(f"claims {claimed} bytes of data, more than a file of {size} bytes can hold")


def _checked_bytes(path: str, data: h5py.h5d.DatasetID, file_bytes: int) -> int:
    creation = data.get_create_plist()
    if creation.get_layout() == h5py.h5d.VIRTUAL:
        _refuse(path, "is made of other datasets (virtual)" + ELSEWHERE)
    if creation.get_external_count():
        _refuse(path, "keeps its data in other files" + ELSEWHERE)
    filters = [creation.get_filter(at)[0] for at in range(creation.get_nfilters())]
    for found in filters:
        if found not in ALLOWED_FILTERS:
            allowed = "deflate (1), shuffle (2), fletcher32 (3)"
            _refuse(path, f"is stored with the filter {found}; allowed: {allowed}")
    elements = data.get_space().get_simple_extent_npoints()
    total = elements * max(data.get_type().get_size(), 8)
    stored = min(data.get_storage_size(), file_bytes)
    widened = DEFLATE_AT_MOST if h5py.h5z.FILTER_DEFLATE in filters else 8  # a byte may be read as a double
    if total > max(stored * widened, UNWRITTEN):
        _refuse(path, f"claims {elements} elements, more than its {stored} stored bytes can hold")
    return total


def _refuse(path: str, what: str) -> None:
    raise NotContainedError(f"/{path} {what}")
