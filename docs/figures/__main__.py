"""What the figures of the documents are.

    python -m splash_laboratory.documents.figures docs/figures README.md docs/*.md docs/questions/*.md

Of each passage, in the order of its numerals, a number read from data/reports, or the reason why it is none of theirs. A function beside
this file, of the passage's name, tells them.
"""

from __future__ import annotations

from kernels import (
    ceilings,
    decode_step,
    flagship,
    how_the_flagship_works,
    kascade_layers,
    ladders,
    real_heads,
    slower,
    speed_against_length,
    windows,
    windows_and_limits,
    windows_beside_dense,
)
from language_models import language_model
from processors import (
    captured_sparsity,
    cpu_speed,
    cpu_speed_and_memory,
    decoder_k_keep,
    iterations,
    k_keep,
    power,
    sink,
    what_it_takes,
    workloads,
)
from several_gpus import four_gpus, model_of_gpus, several_gpus


def figures() -> dict[str, list[float | str]]:
    passages = (
        *(ladders, speed_against_length, slower, flagship, how_the_flagship_works, real_heads, windows, windows_beside_dense, windows_and_limits),
        *(decode_step, kascade_layers, ceilings, several_gpus, four_gpus, model_of_gpus, language_model),
        *(cpu_speed, cpu_speed_and_memory, k_keep, decoder_k_keep, iterations, sink, captured_sparsity, workloads, power, what_it_takes),
    )
    return {passage.__name__.replace("_", "-"): passage() for passage in passages}
