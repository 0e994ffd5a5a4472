"""Texts as tokens: documents of files, duplicates removed, split into three parts by document, tokenised once and cached.

    texts = tokenise(tokenizer, documents(["linux-doc-6.1", "notes/"]))
    texts.windows("held_out", length=1024, count=4)          # [4, 1024]

A document's part follows from the hash of its text alone: 7 % are held out (for results), 7 % are for development (for tuning and
learning rates), the rest is for training. So a document keeps its part whatever else is read beside it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from splash_attention.files.whole_file import whole_file
from splash_attention.language.cache import cache_folder
from splash_attention.language.packages import fetched

if TYPE_CHECKING:  # texts are hashed without PyTorch
    from torch import Tensor

PARTS = ("held_out", "development", "training")
SCHEMA = "splash tokens 1"
_PERCENT = (7, 7)  # of held_out and development
_ENDINGS = (".txt", ".rst", ".md", ".html", ".htm")
_COMMON = frozenset("the of and to a in is that it for as be are this with or by on not can".split())


@dataclass(frozen=True)
class Document:
    name: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def part(self) -> str:
        place = int(self.sha256[:8], 16) % 100
        return PARTS[0] if place < _PERCENT[0] else PARTS[1] if place < sum(_PERCENT) else PARTS[2]


@dataclass(frozen=True)
class Texts:
    """tokens: of each part, [tokens], documents one after another, each behind the tokenizer's first token if it has one. record:
    sources with versions, licences and hashes, counts, and the hash of the tokenizer."""

    tokens: dict[str, np.ndarray]
    record: dict[str, Any]

    def part(self, name: str) -> np.ndarray:
        """[tokens] of a part. Raises ValueError for another name."""
        if name not in self.tokens:
            raise ValueError(f"part is {name!r}; allowed are {', '.join(self.tokens)}")
        return self.tokens[name]

    def windows(self, part: str, length: int, count: int) -> Tensor:
        """[count, length], integers: the first windows of a part, side by side. Raises ValueError where it holds fewer."""
        tokens = self.part(part)
        for name, value in (("length", length), ("count", count)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        held = len(tokens) // length
        if held < count:
            raise ValueError(f"{part} has {len(tokens)} tokens, {held} windows of {length}; {count} were asked for")
        import torch

        return torch.from_numpy(tokens[: count * length].astype(np.int64)).view(count, length)

    def write(self, path: Path, most: int | None = None) -> None:
        """A *.npz that read_tokens reads. most: tokens of each part that are kept; None keeps all."""
        tokens = {part: values[:most] for part, values in self.tokens.items()}
        record = {**self.record, "tokens": {part: len(values) for part, values in tokens.items()}}
        with whole_file(path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, schema=SCHEMA, record=json.dumps(record), **tokens)


def documents(sources: Sequence[str | Path], *, prose: bool = False) -> tuple[list[Document], dict[str, Any]]:
    """(documents in the order of their hashes, record of where they are from), exact duplicates removed.

    sources: files, folders (every .txt, .rst, .md and .html, also with .gz), or names of fetched Debian packages. prose: English
    prose only: documents where at least 15 % of the words are the twenty commonest of English, which leaves out tables, code and
    other languages. Raises FileNotFoundError for a source that is not there, ValueError where nothing is left.
    """
    kept: dict[str, Document] = {}
    told: list[dict[str, Any]] = []
    duplicates = 0
    for source in sources:
        about, files = _files_of(source)
        read = [Document(name, text) for name, text in files if text.strip()]
        wanted = [document for document in read if not prose or is_prose(document.text)]
        for document in wanted:
            duplicates += document.sha256 in kept
            kept.setdefault(document.sha256, document)
        told.append({**about, "documents": len(wanted), "left_out_as_no_prose": len(read) - len(wanted)})
    if not kept:
        raise ValueError(f"{', '.join(map(str, sources))} hold no text; allowed are files ending in {', '.join(_ENDINGS)}, also with .gz")
    order = [kept[key] for key in sorted(kept)]
    whole = hashlib.sha256("".join(sorted(kept)).encode()).hexdigest()
    return order, {"sources": told, "documents": len(order), "duplicates_removed": duplicates, "prose": prose, "sha256": whole}


def tokenise(tokenizer: Any, found: tuple[list[Document], dict[str, Any]]) -> Texts:
    """Of documents(). Kept in the cache, by the hashes of texts and tokenizer. Raises ValueError for a tokenizer that is not of
    the library tokenizers, whose hash would not be known."""
    order, record = found
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"the tokenizer is a {type(tokenizer).__name__}; allowed are those of the library tokenizers (fast ones)")
    first = tokenizer.bos_token_id
    words = hashlib.sha256(f"{backend.to_str()} {first}".encode()).hexdigest()
    path = cache_folder() / "tokens" / f"{hashlib.sha256((record['sha256'] + words).encode()).hexdigest()[:32]}.npz"
    if path.is_file():
        tokens = read_tokens(path).tokens
    else:
        tokens = {part: _encode(backend, first, [one.text for one in order if one.part == part]) for part in PARTS}
    record = {**record, "tokenizer_sha256": words, "tokens": {part: len(ids) for part, ids in tokens.items()}}
    texts = Texts(tokens, record)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        texts.write(path)
    return texts


def read_tokens(path: str | Path) -> Texts:
    """What Texts.write wrote. Raises ValueError for another file, OSError where it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as held:
            if str(held["schema"]) != SCHEMA:
                raise ValueError(f"schema {held['schema']}")
            return Texts({part: held[part] for part in PARTS}, json.loads(str(held["record"])))
    except (KeyError, ValueError, EOFError) as error:
        raise ValueError(f"{path} holds no tokens of splash_attention.language ({error})") from error
    except Exception as error:  # zipfile's own
        if isinstance(error, OSError):
            raise
        raise ValueError(f"{path} holds no tokens of splash_attention.language ({error})") from error


def texts_of(tokenizer: Any, sources: Sequence[str | Path], *, prose: bool = False) -> Texts:
    """Of a *.npz of tokens alone, or of what documents() takes."""
    if len(sources) == 1 and str(sources[0]).endswith(".npz"):
        return read_tokens(sources[0])
    if tokenizer is None:
        raise ValueError("the model's file holds no tokenizer; pass a *.npz of tokens")
    return tokenise(tokenizer, documents(sources, prose=prose))


def is_prose(text: str) -> bool:
    words = re.findall(r"[^\W\d_]+", text.lower())
    return len(words) >= 50 and sum(word in _COMMON for word in words) >= 0.15 * len(words)


def _encode(backend: Any, first: int | None, parts: list[str]) -> np.ndarray:
    dtype = np.uint16 if backend.get_vocab_size() <= 1 << 16 else np.uint32
    begin = [] if first is None else [first]
    ids = [np.array(begin + one.ids, dtype) for one in backend.encode_batch(parts, add_special_tokens=False)]
    return np.concatenate(ids) if ids else np.empty(0, dtype)


def _files_of(source: str | Path) -> tuple[dict[str, Any], Iterator[tuple[str, str]]]:
    """(what the record says of it, its files' names and texts)."""
    path = Path(source)
    if path.exists():
        root = path if path.is_dir() else path.parent
        paths = sorted(_texts_under(path)) if path.is_dir() else [path]
        return {"source": path.name}, ((str(one.relative_to(root)), _read(one)) for one in paths)
    package = fetched(str(source))
    if package is None:
        raise FileNotFoundError(
            f"{source} is no file, no folder and no fetched package; `python -m splash_attention.language fetch --help` lists packages"
        )
    root, about = package.folder, package.record
    return about, ((str(one.relative_to(root)), _read(one)) for one in sorted(package.files()))


def _texts_under(folder: Path) -> Iterable[Path]:
    return (one for one in folder.rglob("*") if one.name.removesuffix(".gz").endswith(_ENDINGS) and one.is_file())


def _read(path: Path) -> str:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path} is no gzip file ({error})") from error
    text = data.decode("utf-8", errors="replace")
    return _plain(text) if path.name.removesuffix(".gz").endswith((".html", ".htm")) else text


def _plain(page: str) -> str:
    reader = _Words()
    reader.feed(page)
    reader.close()
    text = re.sub(r"[ \t\r\f\v]+", " ", "".join(reader.parts))
    return re.sub(r"\s*\n\s*\n\s*", "\n\n", text).strip() + "\n"


class _Words(HTMLParser):
    """What a page says, with empty lines between its blocks."""

    _BLOCKS = frozenset("p div br h1 h2 h3 h4 h5 h6 li ul ol table tr blockquote pre hr title".split())

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._hidden += tag in ("script", "style")
        if tag in self._BLOCKS:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style") and self._hidden > 0
        if tag in self._BLOCKS:
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)
