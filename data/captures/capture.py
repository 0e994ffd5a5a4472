"""Captures Q, K and V of the MiniLM sentence encoder on real English text and writes them as one HDF5 file."""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from minilm_encoder import MODEL, PACKAGE, Encoding, MiniLmEncoder, ModelNotInstalled, model_sha256, model_version

SCHEMA_VERSION = 1
HERE = Path(__file__).resolve().parent
DEFAULT_OUTPUT = HERE / "minilm.h5"
DEFAULT_TEXTS_FOLDER = Path("/usr/share/common-licenses")  # Debian's base-files puts them there
DEFAULT_TEXTS = ["GPL-3:512", "GFDL-1.3:128"]
SMALLEST_NORMAL_FP16 = 2.0**-14

HOW_TO_READ = """\
import h5py
f = h5py.File("data/captures/minilm.h5")
q, k, v = (f["gpl-3"][name][3, 7].astype("float32") for name in "qkv")  # layer 3, head 7: [token, head_dim]
"""

README = f"""\
Q, K and V of every layer and head of {MODEL} (6 layers, 12 heads, head_dim 32), a BERT sentence encoder, on the
opening tokens of English texts. One group a text: q, k, v [layer, head, token, head_dim] in fp16, the tokens, the
excerpt itself and the sentence embedding that the same run gave. Attention in this model has no mask:
context = softmax(q k^T * scale) v with scale = 1/sqrt(head_dim), an attribute of the root group.

{HOW_TO_READ}
Made by data/captures/capture.py, which can be run again; data/captures/README.md tells how and under which licences.
"""

FORMULAS = {
    "q": ("query vectors", "q = x W_q^T + b_q; attention scores are q.k/sqrt(32)"),
    "k": ("key vectors", "k = x W_k^T + b_k; attention scores are q.k/sqrt(32)"),
    "v": ("value vectors", "v = x W_v^T + b_v; context = softmax(q k^T/sqrt(32)) v"),
}


@dataclass(frozen=True)
class Text:
    """A source text; only its first `max_tokens` tokens are run."""

    name: str  # file name, for example GPL-3
    content: str
    sha256: str
    max_tokens: int

    @property
    def group(self) -> str:
        return self.name.lower()

    @property
    def licence(self) -> str:
        """The copying notice that the text carries about itself."""
        notice = re.search(r"Copyright \(C\).*?changing it is not allowed\.", self.content, flags=re.DOTALL)
        if notice:
            return " ".join(notice.group(0).split())
        return "the text carries no copying notice about itself; Debian's base-files distributes it verbatim"


def read_text(spec: str, folder: Path) -> Text:
    """`spec` is NAME or NAME:TOKENS."""
    match = re.fullmatch(r"([\w.+-]+)(?::(\d+))?", spec)
    if not match:
        raise ValueError(f"text {spec!r}: expected NAME or NAME:TOKENS, for example GPL-3:512")
    name, tokens = match.groups()
    if not (folder / name).is_file():
        raise ValueError(f"there is no file {name} in {folder}")
    raw = (folder / name).read_bytes()
    return Text(name, raw.decode("utf-8"), hashlib.sha256(raw).hexdigest(), int(tokens or 512))


def to_fp16(x: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Rounds to nearest even. Also the largest relative error where fp16 is normal, and the largest absolute one."""
    with np.errstate(over="ignore"):  # an overflow becomes infinite and is refused below
        rounded = x.astype("<f2")
    if not np.isfinite(rounded).all():
        raise ValueError("a value does not fit into fp16")
    error = np.abs(rounded.astype(x.dtype) - x)
    normal = np.abs(x) >= SMALLEST_NORMAL_FP16
    # Four digits: the ones after the tenth depend on the BLAS, and the file is not to.
    relative, absolute = (float(f"{e:.3e}") for e in ((error[normal] / np.abs(x[normal])).max(), error.max()))
    return rounded, relative, absolute


def capture_arrays(encoding: Encoding) -> dict[str, np.ndarray]:
    """q, k and v as [layer, head, token, head_dim], still in the encoder's precision."""
    return {name: np.stack([getattr(layer, name) for layer in encoding.layers]) for name in "qkv"}


def _describe(item: h5py.Dataset, units: str, long_name: str, formula: str) -> h5py.Dataset:
    item.attrs.update({"units": units, "long_name": long_name, "formula": formula})
    return item


def _write_axis(parent: h5py.Group, name: str, data, long_name: str, formula: str, dtype=None) -> h5py.Dataset:
    axis = parent.create_dataset(name, data=data, dtype=dtype)
    axis.make_scale(name)
    return _describe(axis, "none" if dtype is not None else "1", long_name, formula)


def write_text(file: h5py.File, text: Text, encoding: Encoding) -> None:
    """Adds the group of one text."""
    group = file.create_group(text.group)
    group.attrs.update({
        "long_name": f"{MODEL} on the first {len(encoding.tokens)} tokens of {text.name}",
        "text_source": f"base-files: common-licenses/{text.name}",
        "text_sha256": text.sha256,
        "text_licence": text.licence,
        "tokens": len(encoding.tokens),
    })
    string = h5py.string_dtype("utf-8")
    token = _write_axis(group, "token", encoding.tokens, "word pieces, [CLS] and [SEP] included",
                        "WordPiece of the lower-cased text, cut at `tokens`", string)
    token_id = group.create_dataset("token_id", data=encoding.token_ids.astype("<i4"))
    token_id.dims[0].attach_scale(token)
    token_id.dims[0].label = "token"
    _describe(token_id, "1", "index of each word piece in the model's vocabulary", "row of the word embedding table")
    _describe(group.create_dataset("text", data=text.content[: encoding.text_end], dtype=string), "none",
              "the excerpt that was run; cut at `tokens`, it gives the same tokens", "verbatim from the source")
    _describe(group.create_dataset("embedding", data=encoding.embedding.astype("<f4")), "1",
              "sentence embedding of the excerpt", "mean over the tokens of the last hidden state, then x/|x|")

    for name, values in capture_arrays(encoding).items():
        rounded, relative, absolute = to_fp16(values)
        # One head a chunk: reading a head costs one chunk, and heads differ too much to help one another compress.
        dataset = group.create_dataset(name, data=rounded, chunks=(1, 1, *rounded.shape[2:]), shuffle=True,
                                       compression="gzip", compression_opts=9)
        long_name, formula = FORMULAS[name]
        _describe(dataset, "1", long_name, formula)
        dataset.attrs["max_relative_rounding_error"] = relative
        dataset.attrs["max_absolute_rounding_error"] = absolute
        dataset.attrs["rounding"] = ("float64 to fp16, nearest even; the relative error is over values of at least "
                                     "2^-14, the smallest normal fp16, and at most 2^-11 there")
        scales = (file["layer"], file["head"], token, file["head_dim"])
        for axis, (label, scale) in enumerate(zip(("layer", "head", "token", "head_dim"), scales)):
            dataset.dims[axis].label = label
            dataset.dims[axis].attach_scale(scale)


def write_file(path: Path, encoder: MiniLmEncoder, captured: list[tuple[Text, Encoding]]) -> None:
    """Writes to a temporary name beside `path` and renames, so that `path` is never half a file."""
    temporary = new_file(path)
    specs = " ".join(f"--text {text.name}:{text.max_tokens}" for text, _ in captured)
    try:
        # No time stamps and a fixed format version: the same inputs give the same bytes, readable since HDF5 1.10.
        with h5py.File(temporary, "w", libver=("earliest", "v110")) as file:
            file.attrs.update({
                "title": "Q, K, V captured from the MiniLM sentence encoder on English text",
                "schema_version": SCHEMA_VERSION,
                "model": MODEL,
                "model_version": f"{PACKAGE} {model_version()}",
                "model_licence": "Apache-2.0 (the weights, by the model's README); MIT (the package around them)",
                "model_sha256": model_sha256(encoder.folder),
                "layers": encoder.layer_count,
                "heads": encoder.head_count,
                "head_dim": encoder.head_dim,
                "scale": encoder.scale,
                "mask": "none: every token attends to every token",
                "history": f"data/captures/capture.py {specs} (float64 forward pass, NumPy {np.__version__}, "
                           f"h5py {h5py.__version__}, Python {platform.python_version()})",
                "how_to_read": HOW_TO_READ,
            })
            _describe(file.create_dataset("README", data=README, dtype=h5py.string_dtype("utf-8")), "none",
                      "what is here and how to read it", "written by data/captures/capture.py")
            _write_axis(file, "layer", np.arange(encoder.layer_count, dtype="<i4"), "encoder layer, 0 is the first",
                        "index")
            _write_axis(file, "head", np.arange(encoder.head_count, dtype="<i4"), "attention head", "index")
            _write_axis(file, "head_dim", np.arange(encoder.head_dim, dtype="<i4"), "component of a head's vector",
                        "index")
            for text, encoding in captured:
                write_text(file, text, encoding)
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def require_place(path: Path) -> None:
    """Before the work; raises OSError where nothing could be written to `path` at its end."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file: nothing is written there")
    new_file(path).unlink()


def new_file(path: Path) -> Path:
    """Of a name of its own beside `path`, and nobody's else."""
    temporary = path.with_name(f".{path.name}.tmp.{secrets.token_hex(6)}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    return temporary


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python data/captures/capture.py --text GPL-3:512 --text MPL-2.0:128 --output mine.h5",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", action="append", metavar="NAME[:TOKENS]",
                        help="a file of the texts folder and how many of its first tokens to run (512 unless told); "
                             f"may be repeated (default: {' '.join(DEFAULT_TEXTS)})")
    parser.add_argument("--texts-folder", type=Path, default=DEFAULT_TEXTS_FOLDER, metavar="FOLDER",
                        help="where the texts lie (default: %(default)s, which Debian's base-files fills)")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, metavar="FILE",
                        help="the HDF5 file to write (default: minilm.h5 beside this script)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    try:
        require_place(arguments.output)
        texts = [read_text(spec, arguments.texts_folder) for spec in arguments.text or DEFAULT_TEXTS]
        encoder = MiniLmEncoder()
        captured = []
        for text in texts:
            print(f"{text.name}: running {encoder.layer_count} layers", file=sys.stderr)
            captured.append((text, encoder.encode(text.content, text.max_tokens)))
        write_file(arguments.output, encoder, captured)
    except (ModelNotInstalled, OSError, ValueError) as error:
        print(f"capture: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.output.name}: {arguments.output.stat().st_size / 1e6:.2f} MB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
