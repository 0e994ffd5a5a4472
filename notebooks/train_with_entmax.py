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
# # What does a model do with entmax?
#
# Two small causal character models read this repository's pages. They are alike but for one line: what turns scores into
# weights. One uses softmax, the other **entmax, and each of its heads learns its own α**: from 1.3 towards 1.05, which is all but
# softmax, or towards 2, which is sparsest. Which heads want to be sparse? What does it cost in loss, and in time?
#
# Everything below is trained when the notebook runs, on a CPU, in a minute or two. `SPLASH_TRAIN_STEPS` makes it longer or shorter.

# %%
import os
import sys
import time
from pathlib import Path

here = Path.cwd()
root = next(folder for folder in (here, *here.parents) if (folder / "python" / "splash_attention").is_dir())
sys.path.insert(0, str(root / "python"))

# %matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import Markdown
from torch import nn
from torch.nn import functional as F

from splash_attention import AdaptiveSplashAttention

STEPS = int(os.environ.get("SPLASH_TRAIN_STEPS", 300))
CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 64, 4, 2, 8

text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((root / "docs" / "questions").glob("*.md")))
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text])
training, held_out = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]
Markdown(f"{len(text):,} characters, {len(letters)} of them different; the last tenth is held out.")

# %% [markdown]
# ## The model
#
# A transformer as small as it can be and still learn something. The attention of the entmax model is the module of this package;
# that of the other is PyTorch's `scaled_dot_product_attention`.


# %%
class Attention(nn.Module):
    def __init__(self, entmax: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner = None
        if entmax:
            self.inner = AdaptiveSplashAttention(
                WIDTH // HEADS, alpha=1.3, num_heads=HEADS, learn_alpha=True, adaptive_threshold=False, causal=True
            )

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = self.inner(q, k, v) if self.inner else F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, entmax: bool) -> None:
        super().__init__()
        self.attention = Attention(entmax)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    def __init__(self, entmax: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(len(letters), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block(entmax) for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(letters)))

    def forward(self, x):
        return self.head(self.blocks(self.words(x) + self.places.weight[: x.shape[1]]))


def batch_of(source, generator, size=BATCH):
    starts = torch.randint(len(source) - CONTEXT - 1, (size,), generator=generator)
    windows = torch.stack([source[start : start + CONTEXT + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


def loss_of(model, inputs, targets):
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def held_out_loss(model):
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        return float(loss_of(model.eval(), *batch_of(held_out, generator, 32)))


# %% [markdown]
# ## Training
#
# The same seeds, the same batches, the same learning rate (α's is ten times higher: one number a head moves slowly).


# %%
def train(entmax: bool) -> dict:
    torch.manual_seed(0)
    model = Model(entmax)
    alphas = [p for name, p in model.named_parameters() if name.endswith("alpha_logit")]
    others = [p for name, p in model.named_parameters() if not name.endswith("alpha_logit")]
    optimizer = torch.optim.AdamW([{"params": others, "lr": 3e-3}, {"params": alphas, "lr": 3e-2, "weight_decay": 0.0}])
    generator = torch.Generator().manual_seed(1)
    track = {"step": [], "loss": [], "seconds": [], "alpha": [], "support": []}
    for step in range(STEPS):
        begin = time.perf_counter()
        loss = loss_of(model.train(), *batch_of(training, generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        track["seconds"].append(time.perf_counter() - begin)
        if step % 10 == 0 or step == STEPS - 1:
            track["step"].append(step)
            track["loss"].append(held_out_loss(model))
            if entmax:
                inner = [block.attention.inner for block in model.blocks]
                track["alpha"].append(torch.cat([layer.alpha.detach() for layer in inner]).numpy())
                track["support"].append(torch.cat([layer.support.float().mean((0, 2)) for layer in inner]).numpy())
    return track


softmax, entmax = train(entmax=False), train(entmax=True)

# %% [markdown]
# ## Loss, α and support
#
# Left: the loss on held-out text. Middle: α of each head; right: how many keys a query of that head still looks at, of
# half the context on average. One line a head, one colour a layer.

# %%
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
left.plot(softmax["step"], softmax["loss"], color="#0072B2", label="softmax")
left.plot(entmax["step"], entmax["loss"], color="#D55E00", label="entmax, α learned")
left.set(xlabel="step", ylabel="loss on held-out text (nats a character)")
left.legend(frameon=False)
for layer, colour in enumerate(("#009E73", "#CC79A7")):
    heads = slice(layer * HEADS, (layer + 1) * HEADS)
    middle.plot(entmax["step"], np.array(entmax["alpha"])[:, heads], color=colour)
    right.plot(entmax["step"], np.array(entmax["support"])[:, heads], color=colour)
    middle.plot([], [], color=colour, label=f"layer {layer + 1}")
middle.set(xlabel="step", ylabel="α", ylim=(1, 2))
middle.legend(frameon=False)
right.set(xlabel="step", ylabel="keys with p > 0 a query", ylim=(0, CONTEXT / 2 + 1))
for axes in (left, middle, right):
    axes.spines[["top", "right"]].set_visible(False)
plt.show()


# %%
def row(name: str, track: dict) -> str:
    support = f"{np.mean(track['support'][-1]):.1f}" if track["support"] else f"{(CONTEXT + 1) / 2:.1f}"
    alpha = f"{track['alpha'][-1].min():.2f} … {track['alpha'][-1].max():.2f}" if track["alpha"] else "1"
    return f"| {name} | {track['loss'][-1]:.3f} | {alpha} | {support} | {1e3 * np.median(track['seconds']):.0f} |"


difference = entmax["loss"][-1] - softmax["loss"][-1]
Markdown(
    "\n".join(
        (
            "| model | loss on held-out text | α of its heads | keys a query | ms a step, median |",
            "|---|---:|---:|---:|---:|",
            row("softmax", softmax),
            row("entmax", entmax),
            "",
            f"After {STEPS} steps the entmax model's loss is {abs(difference):.3f} nats "
            f"{'above' if difference > 0 else 'below'} the softmax model's, and its queries look at "
            f"{np.mean(entmax['support'][-1]) / ((CONTEXT + 1) / 2):.0%} of the keys that they may see.",
        )
    )
)

# %% [markdown]
# Both models are far too small and too short in training for a verdict on quality; the time is that of a CPU and of a context of
# 64 characters, where attention is a small part of a step. What can be seen is that α moves, that heads differ, and that keys
# are let go without the loss noticing. How sparsity grows with length, and what it brings there, is another question:
# `docs/questions/is-exact-entmax-faster-than-dense.md`.
