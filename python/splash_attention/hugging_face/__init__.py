"""Exact entmax attention in models of the `transformers` library (5.0 or newer).

    from splash_attention import hugging_face
    model = AutoModelForCausalLM.from_config(config, attn_implementation="splash")

The import registers "splash"; transformers has no entry point that could do it. Settings are read from the attention module, else
from the model's configuration:

- ``splash_alpha``: a number, or a list or parameter of 1 or num_heads entries; else 1.5.
- ``splash_factor``: of the scale, a number, or a list or parameter of num_heads entries; else 1.
- ``splash_k_keep``: only the k_keep largest scores of each row, a number, or a list of num_heads entries, where 0 keeps all; else all.
- ``splash_any_mask``, of the configuration alone: True lets a compiled graph take packed sequences and masks of one's own. While it
  traces, nobody knows whether sequences are packed; without it the graph runs on the kernels, and raises RuntimeError for such.

``hugging_face.learn_alpha(model)`` makes alpha and factor of each head parameters, which save_pretrained keeps.
``hugging_face.SplashCache(model.config, max_cache_len=…)``, as the cache of generate or forward, decodes exactly over pages.
``with hugging_face.whole_sequences():`` around the capture of a CUDA graph says that no sequences are packed.
``hugging_face.apply(model, "tuned.json")`` sets them from a file that splash_attention.language wrote.
"""

from __future__ import annotations

from splash_attention.extras import needed_by

with needed_by(__name__, "hf"):
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    from splash_attention.hugging_face.attention import apply, attention_forward, attention_of_heads
    from splash_attention.hugging_face.cache import SplashCache
    from splash_attention.hugging_face.learning import SplashCallback, learn_alpha, load_learned_heads
    from splash_attention.hugging_face.masks import key_positions, whole_sequences

__all__ = [
    "SplashCache", "SplashCallback", "apply", "attention_forward", "attention_of_heads", "key_positions", "learn_alpha", "register",
    "whole_sequences",
]  # fmt: skip


def register(name: str = "splash") -> None:
    """Makes attn_implementation=name known to transformers. The import does so for "splash"."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, key_positions)


register()
load_learned_heads()
