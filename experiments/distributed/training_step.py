"""Times a training step of a model of SmolLM2-135M's shape, weights at random, over all ranks and on one GPU:

    torchrun --standalone --nproc-per-node 2 experiments/distributed/training_step.py --out step.json

One text of 65536 words, bfloat16, activations checkpointed, AdamW; forward, backward, the sum of gradients and the update. Random weights give
flat scores, so their scale is multiplied by --factor, until supports are those of trained heads; the mean is measured and told. Rank 0
writes the file. --quick tries it on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from measure import Ranks, device_of, write

from splash_attention import hugging_face
from splash_attention.distributed import context_parallel, position_ids, shard, sum_gradients
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--length", type=int, default=65536)
    parser.add_argument("--factor", type=float, default=10.0)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="on a CPU: two small layers, a short text")
    a = parser.parse_args()
    place, refused = device_of("cpu" if a.quick else "cuda")
    if refused:
        sys.exit(refused)
    ranks = Ranks(place)
    device = ranks.device
    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152}
    if a.quick:
        a.length, a.samples, shape = 256, 5, {"hidden_size": 72, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100}
    torch.manual_seed(0)
    config = LlamaConfig(
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=a.length, tie_word_embeddings=True, splash_factor=a.factor, **shape
    )
    model = LlamaForCausalLM._from_config(config, attn_implementation="splash", dtype=torch.float32 if a.quick else torch.bfloat16)
    model.to(device).train().gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)  # the same weights in every sample
    text = torch.randint(config.vocab_size, (1, a.length + 1), device=device)

    def step(over_all: bool) -> float:
        words, labels, places = text[:, :-1], text[:, 1:], torch.arange(a.length, device=device)
        if over_all:
            words, labels, places = shard(words), shard(labels), position_ids(a.length, device=device)
        with context_parallel(check=False) if over_all else contextlib.nullcontext():
            logits = model(words, position_ids=places[None], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum") / a.length
            loss.backward()
        if over_all:
            sum_gradients(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        told = loss.detach()
        if over_all:
            dist.all_reduce(told)
        return told.item()

    results: list[dict[str, object]] = [{"keys_a_row": keys_a_row(model, text[:, :4096]), "loss_of_all_ranks": step(True)}]
    results.append(timed(ranks, "training step over all ranks", lambda: step(True), a.samples))
    if ranks.rank == 0:  # alone, while the others wait
        with contextlib.suppress(torch.OutOfMemoryError):
            results[0]["loss_of_one"] = step(False)
            results.append(timed(ranks, "training step on one GPU", lambda: step(False), a.samples, alone=True))
        print(*results, sep="\n")
        write(a.out, results)
    dist.barrier(group=ranks.control)


def timed(ranks: Ranks, name: str, call: Callable[[], object], samples: int, alone: bool = False) -> dict[str, object]:
    peak, seconds = ranks.peak_bytes(call), ranks.samples(call, samples, 10.0, alone)
    return {"implementation": name, "ranks": 1 if alone else ranks.count, "seconds": statistics.median(seconds), "samples": seconds, "peak_bytes": peak}


def keys_a_row(model: LlamaForCausalLM, text: torch.Tensor) -> float:
    """The mean over all heads and rows, of the beginning of a text."""
    means: list[float] = []
    observers = hugging_face.attention._observers
    observers.append(lambda module, alpha, support, seen: means.append(support.double().mean().item()))
    try:
        with torch.no_grad():
            model(text, attention_mask=torch.ones_like(text), use_cache=False)
    finally:
        observers.pop()
    return sum(means) / len(means)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # behind main, whose graphs hold it
