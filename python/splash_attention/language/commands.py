"""What the commands of splash_attention.language do: options as command_line.py parses them; 0: done."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from splash_attention.files.whole_file import prepare_place, whole_file
from splash_attention.language.made_methods import check_method, named
from splash_attention.language.methods import Method
from splash_attention.language.packages import MODELS, TEXTS, fetch
from splash_attention.language.plan import Plan


def run_fetch(options: argparse.Namespace) -> int:
    fetch(options.names or [*MODELS, *TEXTS])
    return 0


def run_texts(options: argparse.Namespace) -> int:
    from splash_attention.language.models import load_model
    from splash_attention.language.texts import texts_of

    prepare_place(options.out)
    _, tokenizer, _ = load_model(options.model)
    texts = texts_of(tokenizer, options.text, prose=options.prose)
    texts.write(options.out, options.most)
    print(f"{options.out}: {', '.join(f'{part} {len(ids)}' for part, ids in texts.tokens.items())} tokens")
    return 0


def run_perplexity(options: argparse.Namespace) -> int:
    from splash_attention.language.measure import compare, perplexity, report, table

    _check_methods(options)
    model, _, texts, about = _load_texts(options)
    windows, about = _windows(options, texts, about)
    if options.stretch:
        about["windows"]["stretched"] = True
    made = _maker(options, model, texts, about, options.window)
    with _at_length(options, model, options.window):
        methods = [made(text, options.window) for text in options.methods]
        measured, baseline = compare(model, windows, methods, looked_at=options.looked_at, said=_say)
    for path in options.converted:
        model, method = _converted(options, path)
        with _at_length(options, model, options.window):
            measured.append(perplexity(model, windows, method, looked_at=options.looked_at))
    print(table(measured, baseline))
    if options.out:
        _write(options.out, report(measured, baseline, about))
    return 0


def run_capture(options: argparse.Namespace) -> int:
    from splash_attention.language.attention import apply
    from splash_attention.language.capturing import Part, cached_path, capture_windows, is_whole
    from splash_attention.language.conversion import load_converted, plan_of
    from splash_attention.language.model_file import sha256_of

    method = Method.parse(options.method) if options.method else None
    if options.converted:
        plan_of(options.converted)  # before the model is loaded
    if options.out:
        prepare_place(options.out)
    model, windows, about = _load(options)
    if options.converted:
        about["converted"] = {"sha256": sha256_of(options.converted), "file": options.converted.name}
        method = load_converted(model, options.converted).method()
    elif method:
        apply(model, method)
    if method:
        about["method"] = method.as_dict()
    part = Part(options.layers, options.heads, options.queries, options.stored, options.importances)
    out = options.out or cached_path(windows, part, about)
    if options.out or not is_whole(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        capture_windows(model, windows, out, part, about)
    print(out)
    return 0


def run_decode_step(options: argparse.Namespace) -> int:
    from splash_attention.language.decode_step import measure, prompts, set_method, table

    method = Method.parse(options.method)
    context, batches, replays = (48, [2], 3) if options.quick else (8192, [16, 64], 200)
    context, batches, replays = options.context or context, options.batch or batches, options.replays or replays
    for name, value in (("context", context), ("batch", min(batches)), ("replays", replays), ("rows", options.rows)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if options.out:
        prepare_place(options.out)
    model, _, texts, about = _load_texts(options)
    set_method(model, method)
    held = {**about, "date": _now(), "method": method.as_dict(), "part": options.part, "measured": []}
    for batch in batches:
        ids = prompts(texts.part(options.part), batch, context)
        how = {"bits": options.bits, "page_size": options.page_size, "replays": replays, "rows": options.rows}
        held["measured"].append(measure(model, ids, **how, said=_say))
        if options.out:
            _write(options.out, held)
    print(table(held["measured"]))
    return 0


def run_training_step(options: argparse.Namespace) -> int:
    from splash_attention.language.decode_step import prompts
    from splash_attention.language.training_step import Arm, measure, table

    arms = [Arm.parse(text) for text in options.arms]
    wanted = [_batch_and_length(text) for text in options.windows or (["1x48"] if options.quick else ["2x8192"])]
    steps = options.steps or (2 if options.quick else 9)
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be at least 1")
    if options.out:
        prepare_place(options.out)
    model, _, texts, about = _load_texts(options)
    held = {**about, "date": _now(), "part": options.part, "arms": {arm.name: arm.as_dict() for arm in arms}, "measured": []}
    for batch, length in wanted:
        ids = prompts(texts.part(options.part), batch, length).to(model.device)
        for arm in arms:
            held["measured"].append(measure(model, arm, ids, steps=steps, said=_say))
            if options.out:
                _write(options.out, held)
    print(table(held["measured"]))
    return 0


def run_kascade(options: argparse.Namespace) -> int:
    from splash_attention.kascade import plan, write_plan

    prepare_place(options.out)
    model, windows, about = _load(options)
    chosen = ("anchors", "budget", "least_keys", "alpha", "over_tiles", "tiles")
    made = plan(model, list(windows), **{name: getattr(options, name) for name in chosen}, name=about["model"]["name"]).plan
    write_plan(made, options.out)
    print(f"{options.out}: anchors {', '.join(map(str, made.anchors))}; {100 * made.identities:.0f} % of the reusing heads take their own number")
    return 0


def run_retrieval(options: argparse.Namespace) -> int:
    from splash_attention.language.retrieval import DEPTHS, plant, retrieve, table
    from splash_attention.language.retrieval_record import Record

    _check_methods(options)
    model, tokenizer, texts, about = _load_texts(options)
    if tokenizer is None:
        raise ValueError("the model's file holds no tokenizer; retrieval needs one")
    tokens, context, lengths = texts.part(options.part), model.config.max_position_embeddings, sorted(set(options.window))
    how = {
        "part": options.part, "depths": options.depths or list(DEPTHS), "choices": options.choices, "seed": options.seed,
        "form": options.form or ("chat" if tokenizer.chat_template else "raw"), "context": context,
    }  # fmt: skip
    if options.stretch:
        how["stretched"] = True
    shape = {name: how[name] for name in ("depths", "choices", "form", "seed")}
    prompts = {length: plant(tokenizer, tokens, length, options.prompts, **shape) for length in lengths}
    record = Record(options.out, {**about, "runs": [_run(options, about["device"])], "prompts": how}, resume=options.resume)
    beyond = [length for length in lengths if length > context]
    if beyond:
        why = "its positions are stretched" if options.stretch else "it was not trained on such positions"
        _say(f"{', '.join(map(str, beyond))} tokens are beyond the model's context of {context}: {why}")
    measured, made = [], _maker(options, model, texts, about, max(lengths))

    def ask(model: Any, methods: dict[int, Method]) -> None:
        for length, method in methods.items():
            answers = record.answers(method, length)
            _say(f"{method.title}, {length} tokens" + (f", {len(answers)} prompts are there" if answers else ""))
            with _at_length(options, model, length):
                measured.append(retrieve(model, prompts[length], method, batch=options.batch, answers=answers, said=record.keep))
            record.keep(measured[-1])

    ask(model, dict.fromkeys(lengths, Method()))
    for text in options.methods:
        with _at_length(options, model, max(lengths)):  # as long are the windows that methods are made on
            of_lengths = {length: made(text, length) for length in lengths}
        if of_lengths[lengths[0]] != Method():
            ask(model, of_lengths)
    for path in options.converted:
        model, method = _converted(options, path)
        ask(model, dict.fromkeys(lengths, method))
    print(table(measured, record.baselines))
    return 0


def run_convert(options: argparse.Namespace) -> int:
    import torch

    from splash_attention.language.models import load_model
    from splash_attention.language.texts import texts_of
    from splash_attention.language.training import convert

    plan = Plan(**{part.name: getattr(options, part.name) for part in fields(Plan)})
    if plan.start:
        Method.read(plan.start)  # before the model is loaded
    dtype, device = _place(options)
    model, tokenizer, _ = load_model(options.model, dtype if plan.rank else "float32", device)
    tokens = texts_of(tokenizer, options.text, prose=options.prose).tokens["training"]
    convert(model, torch.from_numpy(tokens.astype("int64")), plan, options.out, seconds=options.seconds, said=_say)
    unfinished = not any(options.out.glob("*.safetensors"))
    print(f"{options.out}: {'not finished; the same command goes on' if unfinished else 'done'}")
    return 0


def run_tune(options: argparse.Namespace) -> int:
    from splash_attention.language.methods import Method
    from splash_attention.language.tuning import candidates, measure_curves

    name: Callable[[float], Path] = lambda budget: options.out
    if len(options.budget) > 1:
        name = lambda budget: options.out.with_name(f"{options.out.stem}-{budget:g}{options.out.suffix}")
    for budget in options.budget:
        prepare_place(name(budget))
    model, windows, about = _load(options)
    curves = measure_curves(model, windows, candidates(k_keeps=(None, *options.k_keep)))
    for budget in options.budget:
        method, facts = curves.choose(budget)
        Method(method.default, method.layers, method.name, {**method.made_by, **about}).write(name(budget))
        print(f"{name(budget)}: {facts['mean_support']:.1f} keys a query in the mean, error {facts['error']:.4f}")
    return 0


def _at_length(options: argparse.Namespace, model: Any, length: int) -> Any:
    """Where the model reads so many tokens."""
    from splash_attention.language.models import stretched

    return stretched(model, length) if options.stretch else nullcontext()


def _place(options: argparse.Namespace) -> tuple[str, str]:
    """(dtype, device)."""
    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    return options.dtype or ("bfloat16" if device.startswith("cuda") else "float32"), device


def _load(options: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    """(model, windows, what a result says of them)."""
    model, _, texts, about = _load_texts(options)
    return model, *_windows(options, texts, about)


def _windows(options: argparse.Namespace, texts: Any, about: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    windows = texts.windows(options.part, options.window, options.windows)
    return windows, {**about, "windows": {"part": options.part, "length": options.window, "count": options.windows}}


def _load_texts(options: argparse.Namespace) -> tuple[Any, Any, Any, dict[str, Any]]:
    """(model, tokenizer, texts, what a result says of them)."""
    import torch

    from splash_attention.language.models import load_model
    from splash_attention.language.texts import texts_of

    dtype, device = _place(options)
    model, tokenizer, description = load_model(options.model, dtype, device)
    texts = texts_of(tokenizer, options.text, prose=options.prose)
    _say(f"{description.name}, {description.quantisation}, {description.dtype} on {device}; {description.architecture}")
    place = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    about = {
        "model": description.as_dict(),
        "text": texts.record,
        "device": place,
        "versions": _versions(),
    }
    return model, tokenizer, texts, about


def _batch_and_length(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    if not found or int(found[1]) < 1 or int(found[2]) < 2:
        raise ValueError(f"windows {text!r} are not NxTOKENS, such as 2x8192: at least 1 window of at least 2 tokens")
    return int(found[1]), int(found[2])


def _converted(options: argparse.Namespace, path: Path) -> tuple[Any, Method]:
    """(model, its method) of a conversion."""
    from dataclasses import replace

    from splash_attention.language.conversion import load_converted
    from splash_attention.language.models import load_model

    model = load_model(options.model, *_place(options)).model
    name = path.parent.name if path.stem in ("adapter", "model") else path.stem  # `convert` names its files so, in a folder of the user's
    method = replace(load_converted(model, path).method(), name=f"converted: {name}")
    _say(method.title)
    return model, method


def _check_methods(options: argparse.Namespace) -> None:
    """Before the model is loaded."""
    for text in options.methods:
        check_method(text)
    if options.out:
        prepare_place(options.out)
    for path in options.converted:
        path.stat()


def _maker(options: argparse.Namespace, model: Any, texts: Any, about: dict[str, Any], length: int) -> Callable[[str, int], Method]:
    """Of --methods, for a text's length; `length` is that of the windows on which they are made."""
    from splash_attention.language.making import Maker
    from splash_attention.language.models import Description

    maker = Maker(model, Description(**about["model"]), texts, _place(options)[1], length)
    return lambda text, of: named(maker.make(text, of), text)


def _run(options: argparse.Namespace, device: str) -> dict[str, str]:
    """What a file says of the run that wrote it, or a part of it. Where a machine keeps its files is of no use elsewhere: their names are said."""
    from splash_attention import __version__

    words = [Path(word).name if Path(word).is_absolute() else word for word in options.words]
    command = f"python -m splash_attention.language {shlex.join(words)}"
    return {"command": command, "date": _now(), "device": device, "splash_attention": __version__}


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _write(path: Path, held: dict[str, Any]) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(held, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _versions() -> dict[str, str]:
    import torch
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
