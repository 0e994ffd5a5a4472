"""Fingerprints of what recorded reports measured, counted and judged: a migration of labels and storage leaves them.

After recording anew: .venv/bin/python python/tests/measured.py data/reports/*.h5 > data/reports/measured.sha256
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import h5py
import numpy as np

LABELS = {"kernel_counter"}  # a name that was misread


def fingerprint(path: Path) -> str:
    """Of all results, claims, ceilings and attachments, by name and value; parameters and attributes are labels."""
    found = hashlib.sha256()
    with h5py.File(path) as report:
        datasets: list[h5py.Dataset] = []
        for group in ("results", "claims", "ceilings", "attachments"):
            report[group].visititems(lambda _, held: datasets.append(held) if isinstance(held, h5py.Dataset) else None)
        for data in sorted(datasets, key=lambda held: held.name):
            name = data.name.rsplit("/", 1)[-1]
            if data.attrs.get("role") == "parameter" or name in LABELS:
                continue
            found.update(f"{data.name} {data.shape}".encode())
            if h5py.check_string_dtype(data.dtype):
                found.update("\0".join(data.asstr()[()].ravel()).encode())
            else:
                values = np.asarray(data[()], "<f8")
                found.update(np.where(np.isnan(values), np.nan, values).tobytes())
    return found.hexdigest()


def recorded(listing: Path) -> dict[str, str]:
    """Report's name: fingerprint, as sha256sum writes them."""
    return {line.split()[1]: line.split()[0] for line in listing.read_text().splitlines()}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{fingerprint(Path(name))}  {Path(name).name}")
