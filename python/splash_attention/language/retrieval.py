"""Does a model with another attention still find what it read? A sentence with a random number is planted in held-out text, and asked for.

    prompts = plant(tokenizer, texts.tokens["held_out"], length=2048, count=40)
    found = retrieve(model, prompts, Method(Attention("entmax", alpha=1.5, factor=0.5)))

A needle in a haystack, as G. Kamradt (2023) has it, scored in two ways. Exact: each token of the answer is the model's most likely one
behind the right tokens before it, which is so exactly where greedy generation writes the answer: nothing needs to be generated. Chosen: of the planted
number and others of as many tokens, drawn at random, the planted one is the likeliest; chance is one in `choices`.

The text and the question are read in one call, as a prompt is; the answer in a call a token, as in generation: a method that lets queries
of a call share keys chooses each token's keys for it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from splash_attention.hugging_face.cache import as_argument
from splash_attention.language.attention import applied
from splash_attention.language.methods import Method
from splash_attention.language.retrieval_record import Answer, Retrieved

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
CHOICES = 10
FORMS = ("raw", "chat")
_SENTENCE = "The special magic number for the {} is {}."
_QUESTION = "What is the special magic number for the {}?"
_ANSWER = "The special magic number for the {} is"
_THINGS = (
    "harbour library bakery lighthouse orchard museum bridge theatre garden station market chapel tower meadow school castle "
    "island valley factory hospital stable tavern vineyard workshop"
).split()
_NEAR = 64  # tokens within which a line's end is looked for


@dataclass(frozen=True)
class Prompt:
    """A text that holds the sentence and ends with the question and the answer's beginning."""

    ids: Tensor
    """[tokens], up to the answer; with the answer's tokens it is as long as was asked for."""
    candidates: Tensor
    """[choices, tokens]: numbers, the right one first."""
    depth: float
    """Where the sentence stands: 0 is the text's beginning, 1 its end."""


def plant(
    tokenizer: Any, tokens: np.ndarray, length: int, count: int, *, depths: Sequence[float] = DEPTHS, choices: int = CHOICES,
    form: str = "chat", seed: int = 1,
) -> list[Prompt]:  # fmt: skip
    """`count` prompts of `length` tokens with their answer, the depths in turn.

    tokens: [tokens] of a text, of which each prompt reads a stretch that starts at random; they may overlap. The tokenizer's first
    token is left out of it. The sentence stands where a line ends, at most 64 tokens before its depth. choices: how many numbers there
    are to choose from. form: "raw": text, question, answer; "chat": as the tokenizer's chat template has a user's message with text
    and question. seed: prompt n of a length follows from seed, length and n. Raises ValueError for what does not fit.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; allowed are {', '.join(FORMS)}")
    if form == "chat" and not getattr(tokenizer, "chat_template", None):
        raise ValueError("the model's tokenizer has no chat template; form must be raw")
    if not depths or not all(0 <= depth <= 1 for depth in depths):
        raise ValueError(f"depths are {list(depths)}; they must be from 0 to 1, and at least one")
    for name, value, least in (("count", count, 1), ("choices", choices, 2)):
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
    tokens = np.asarray(tokens)
    tokens = tokens[tokens != tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else tokens
    writer = _Writer(tokenizer, tokens.astype(np.int64), length, choices, form)
    return [writer.prompt(np.random.default_rng([seed, length, at]), depths[at % len(depths)]) for at in range(count)]


class _Writer:
    """Prompts of one length."""

    def __init__(self, tokenizer: Any, tokens: np.ndarray, length: int, choices: int, form: str) -> None:
        self.tokenizer, self.tokens, self.length, self.choices = tokenizer, tokens, length, choices
        if form == "chat":
            message = [{"role": "user", "content": "\0"}]
            whole = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
            self.head, self.tail = whole.split("\0")
        else:
            self.head, self.tail = tokenizer.bos_token or "", " "

    def prompt(self, random: np.random.Generator, depth: float) -> Prompt:
        thing = str(random.choice(_THINGS))
        numbers = self._numbers(random)
        head = self._ids(self.head)
        sentence = self._ids(f"\n\n{_SENTENCE.format(thing, numbers[0])}\n\n")
        tail = self._ids(f"\n\n{_QUESTION.format(thing)}{self.tail}{_ANSWER.format(thing)}")
        candidates = [self._answer(number) for number in numbers]
        room = self.length - sum(map(len, (head, sentence, tail, candidates[0])))
        if not 0 <= room <= len(self.tokens):
            need = f"the sentence and the question alone take {self.length - room}"
            raise ValueError(f"length is {self.length}; {need if room < 0 else f'the text has {len(self.tokens)} tokens'}")
        start = int(random.integers(0, len(self.tokens) - room + 1))
        text = self.tokens[start : start + room]
        place = self._line_end(text, round(depth * room))
        ids = np.concatenate([head, text[:place], sentence, text[place:], tail]).astype(np.int64)
        return Prompt(torch.from_numpy(ids), torch.tensor(candidates), depth)

    def _numbers(self, random: np.random.Generator) -> list[int]:
        """Different ones of as many tokens, the first of which is planted."""
        found: list[int] = []
        while len(found) < self.choices:
            number = int(random.integers(10_000, 100_000))
            if number not in found and (not found or len(self._answer(number)) == len(self._answer(found[0]))):
                found.append(number)
        return found

    def _answer(self, number: int) -> list[int]:
        return self._ids(f" {number}")

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def _line_end(self, text: np.ndarray, place: int) -> int:
        if place == len(text):
            return place
        for at in range(place, max(place - _NEAR, 0), -1):
            if "\n" in self.tokenizer.decode([int(text[at - 1])]):
                return at
        return place


def retrieve(
    model: Any, prompts: Sequence[Prompt], method: Method | None = None, *, batch: int = 1, answers: Sequence[Answer] = (),
    said: Callable[[Retrieved], None] = lambda so_far: None,
) -> Retrieved:  # fmt: skip
    """What the model makes of the prompts, which are of one length, with the method in softmax's place; None is softmax.

    batch: prompts that it reads together; a cache of each is held for each choice. answers: what it made of the first ones before, which
    are not asked again. said: told of what there is after each batch. Raises ValueError for a batch below 1.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}; it must be at least 1")
    method, found = Method() if method is None else method, list(answers[: len(prompts)])
    with torch.no_grad(), applied(model, method):
        for together in _alike(prompts[len(found) :], batch):
            found += map(answer_of, together, log_probabilities(model, together))
            said(_retrieved(prompts, method, found))
    return _retrieved(prompts, method, found)


def score(prompts: Sequence[Prompt], told: Callable[[Prompt], Tensor], method: Method) -> Retrieved:
    """told: log-probabilities of a prompt's candidates, as log_probabilities'."""
    return _retrieved(prompts, method, [answer_of(prompt, told(prompt)) for prompt in prompts])


def answer_of(prompt: Prompt, table: Tensor) -> Answer:
    """table: [choices, tokens, words], log-probabilities."""
    candidates = prompt.candidates.to(table.device)
    each = table.gather(2, candidates[:, :, None])[..., 0]  # [choices, tokens]
    right, others = each[0].sum(), each[1:].sum(1)
    exact = bool((table[0].argmax(1) == candidates[0]).all())
    return Answer(prompt.depth, exact, 1 + int((others >= right).sum()), -each[0].mean().item())


def log_probabilities(model: Any, prompts: Sequence[Prompt]) -> Tensor:
    """[prompts, choices, tokens, words], float32: of each word at each token of each candidate. prompts: of one length, with candidates of
    one. A text is read once for all of its candidates."""
    ids, candidates = (torch.stack(of_all).to(model.device) for of_all in zip(*((one.ids, one.candidates) for one in prompts)))
    cache = DynamicCache(config=model.config)
    cached = as_argument(model.base_model, cache)
    model.base_model(input_ids=ids[:, :-1], use_cache=True, **cached)
    cache.batch_repeat_interleave(candidates.shape[1])
    given = torch.cat((ids[:, None, -1:].expand(-1, candidates.shape[1], -1), candidates[..., :-1]), 2).flatten(0, 1)
    states = [model.base_model(input_ids=step, use_cache=True, **cached).last_hidden_state for step in given.split(1, 1)]
    table: Tensor = model.get_output_embeddings()(torch.cat(states, 1)).float().log_softmax(-1)
    return table.unflatten(0, candidates.shape[:2])


def _retrieved(prompts: Sequence[Prompt], method: Method, answers: Sequence[Answer]) -> Retrieved:
    choices, tokens = prompts[0].candidates.shape
    return Retrieved(method, len(prompts[0].ids) + tokens, choices, tuple(answers))


def _alike(prompts: Sequence[Prompt], most: int) -> Iterator[list[Prompt]]:
    """Neighbours whose answers have as many tokens, at most so many at once."""
    for _, run in groupby(prompts, lambda one: one.candidates.shape[1]):
        alike = list(run)
        yield from (alike[at : at + most] for at in range(0, len(alike), most))


def table(measured: Sequence[Retrieved], baselines: Mapping[int, Retrieved]) -> str:
    """For a terminal: a line a length and method. baselines: softmax's own, by length."""
    columns = f"{'exact, 95 %':>20} {'chosen, 95 %':>20} {'lost':>5} {'gained':>6} {'p':>7} {'nll':>7}  nll less softmax"
    lines = [f"{'length':>6} {'method':34} {columns}"]
    for one in sorted(measured, key=lambda one: one.length):
        softmax = baselines[one.length]
        told = one.as_dict(softmax)
        paired, difference = f"{'':5} {'':6} {'':7}", ""
        if one is not softmax:
            against, less = told["exact"]["against_softmax"], told["nll_less_softmax"]
            paired = f"{against['lost']:5} {against['gained']:6} {against['p']:7.4f}"
            difference = f"{less['mean']:+.3f}" + (f" [{less['interval'][0]:+.3f}, {less['interval'][1]:+.3f}]" if less["interval"] else "")
        shares = " ".join(f"{_percent(told[name]):>20}" for name in ("exact", "chosen"))
        lines.append(f"{one.length:6} {one.method.title[:34]:34} {shares} {paired} {one.nll:7.3f}  {difference}".rstrip())
    prompts = next(iter(baselines.values()))
    lines.append(f"{len(prompts.answers)} prompts a length; lost and gained: exact answers against softmax; chance of chosen: 1 in {prompts.choices}")
    for length in (length for length, softmax in sorted(baselines.items()) if not softmax.retrieves):
        lines.append(f"{length}: softmax itself does not retrieve here; no method can be judged")
    return "\n".join(lines)


def _percent(told: dict[str, Any]) -> str:
    share, (low, high) = told["share"], told["interval"]
    return f"{100 * share:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
