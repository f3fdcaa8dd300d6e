"""Greedy generation: the likeliest token is fed back, with the cache of all before it."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ortune.core import regular_file
from ortune.core.errors import BadData
from ortune.core.hub import HubFolder
from ortune.core.session import Tensors
from ortune.data.checks import IDS, MASK, PLACES
from ortune.data.sequences.rolling import Run, match_states
from ortune.data.stream import Stream

_FIX = "give a decoder that takes past_key_values.* and gives present.*"


@dataclass(frozen=True)
class AnswerRules:
    """Which tokens an answer may have; by default all."""

    ends: frozenset[int] = frozenset()  # those that end it
    forced: tuple[frozenset[int], ...] = ()  # for each of its first tokens those that it is one of
    banned: frozenset[int] = frozenset()  # those that it never has behind these
    banned_first: frozenset[int] = frozenset()  # those that do not follow the forced ones

    @classmethod
    def read_folder(cls, settings: HubFolder) -> Self:
        """Return what a folder says of an encoder-decoder's answers."""
        return cls(settings.ends, settings.forced, settings.banned, settings.banned_first)

    def limit(self, logits: NDArray[Any], place: int) -> NDArray[Any]:
        """Return logits [rows, words] of one place in an answer, those of others as -inf."""
        forces = place < len(self.forced)
        first = self.banned_first if place == len(self.forced) else frozenset()
        named = self.forced[place] if forces else self.banned | first
        if not named:
            return logits
        words = np.isin(np.arange(logits.shape[-1]), list(named))
        return np.where(words == forces, logits, -np.inf)


class CachedDecoder:
    """A model that takes tokens and a cache, and gives logits and the cache with them in it.

    Attributes:
        inputs: What it takes at any step, unless the step says otherwise.
        pairs: Outputs that are its cache, and the inputs that take it.
        logits: The output [rows, tokens, words], or [rows, words] of the last token.
        first: What it gives to the tokens of `inputs`, where these have an empty cache.
    """

    def __init__(self, run: Run, sample: Tensors, outputs: Tensors | None = None) -> None:
        """Learn in one run what the cache looks like, from `outputs` of it where they are known.

        Raises:
            BadData: It takes no tokens, or nothing that it gives is a cache that grows.
        """
        if IDS not in sample:
            raise BadData(f"the model has no input '{IDS}'", fix=_FIX)
        outputs = run(sample) if outputs is None else outputs
        self.run, self.inputs, self.pairs = run, sample, match_states(sample, outputs)
        states = {pair.output for pair in self.pairs}
        self.logits = next((name for name in outputs if name not in states), "")
        self.empty: dict[str, NDArray[Any]] = {}
        for pair in self.pairs:
            before, after = sample[pair.input], outputs[pair.output]
            differing = [k for k, size in enumerate(after.shape) if size != before.shape[k]]
            if len(differing) != 1:
                raise BadData(f"'{pair.input}' does not grow with the tokens", fix=_FIX)
            self.empty[pair.input] = np.take(before, [], axis=differing[0])
        if not self.empty or not self.logits:
            raise BadData("the model has no cache of earlier tokens", fix=_FIX)
        self.first = None if any(sample[name].size for name in self.empty) else outputs


class Generation:
    """Tokens without end, each the likeliest after those before it.

    Attributes:
        tokens: Fed at the next step, [rows, length].
    """

    def __init__(
        self,
        decoder: CachedDecoder,
        prompt: NDArray[Any],
        rules: AnswerRules = AnswerRules(),
        first: Tensors | None = None,
    ) -> None:
        """Begin after a prompt [rows, length]; `first` is what the decoder gives to it."""
        self._decoder, self.tokens, self.past = decoder, prompt, 0
        self._states, self._first, self._rules = decoder.empty, first, rules
        self._prompt = prompt.shape[1]

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(array.nbytes for array in self._states.values())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> NDArray[Any]:
        """Return the next token of every row, int64 [rows]."""
        decoder, tokens = self._decoder, self.tokens
        rows, new = tokens.shape
        outputs, self._first = self._first, None
        if not outputs:
            step = {**decoder.inputs, IDS: tokens, **self._states}
            if MASK in step:
                step[MASK] = np.ones((rows, self.past + new), step[MASK].dtype)
            if PLACES in step:
                places = np.arange(self.past, self.past + new, dtype=step[PLACES].dtype)
                step[PLACES] = np.tile(places, (rows, 1))
            outputs = decoder.run(step)
        logits = outputs[decoder.logits].reshape(rows, -1, outputs[decoder.logits].shape[-1])
        limited = self._rules.limit(logits[:, -1], self.past + new - self._prompt)
        chosen: NDArray[Any] = limited.argmax(-1)
        self.past += new
        self._states = {pair.input: outputs[pair.output] for pair in decoder.pairs}
        self.tokens = chosen[:, None].astype(tokens.dtype)
        return chosen


def generate_tokens(
    decoder: CachedDecoder,
    prompt: NDArray[Any],
    count: int,
    rules: AnswerRules = AnswerRules(),
    first: Tensors | None = None,
) -> Iterator[int]:
    """Yield at most `count` tokens after a prompt [1, length], up to one that ends the text.

    Args:
        first: What the decoder gives to the prompt, where it is known.
    """
    for _, token in zip(range(count), Generation(decoder, prompt, rules, first), strict=False):
        if int(token[0]) in rules.ends:
            return
        yield int(token[0])


ANSWERS, SAMPLES = "answers.json", "samples"
"""Beside the parts of an encoder-decoder: what it wrote, and the folder of what it read."""


def open_decoder(encode: Run, decode: Run, sample: Tensors) -> CachedDecoder:
    """Return the decoder of an encoder-decoder, which looks up one sample.

    Args:
        encode: Runs the encoder once, of which ``present.LAYER.encoder.PART`` is looked up.
        decode: Runs the decoder once, which takes that as ``past_key_values.LAYER.encoder.PART``.
        sample: What the encoder takes.
    """
    return CachedDecoder(decode, begin_answer(encode(sample), sample))


def begin_answer(looked_up: Tensors, sample: Tensors, start: int = 0) -> Tensors:
    """Return the first step of a decoder that looks up what its encoder gave to a sample.

    Args:
        start: The token that the answer begins behind.
    """
    step = {"encoder_attention_mask": sample[MASK]} if MASK in sample else {}
    for name, array in looked_up.items():
        input_name = name.replace("present", "past_key_values", 1)
        step |= {input_name: array, input_name.replace(".encoder.", ".decoder."): array[:, :, :0]}
    rows = len(next(iter(looked_up.values())))
    return {IDS: np.full((rows, 1), start), **step}


def write_answer(
    decoder: CachedDecoder, start: int, count: int, ends: frozenset[int]
) -> list[int]:
    """Return at most `count` tokens behind a first one; one that ends the text is the last."""
    tokens: list[int] = []
    for token in generate_tokens(decoder, np.array([[start]]), count):
        tokens.append(token)
        if token in ends:
            break
    return tokens


def compare_answer(decoder: CachedDecoder, start: int, tokens: list[int]) -> float:
    """Return the share of an answer's tokens that are the likeliest behind those before them."""
    generation, right = Generation(decoder, np.array([[start]])), 0
    for token in tokens:
        right += int(next(generation)[0]) == token
        generation.tokens = np.array([[token]])
    return right / len(tokens)


def score_answers(
    run: Mapping[str, Callable[..., Any]], folder: Path
) -> Iterator[tuple[float, str | None]]:
    """Yield for every sample how much of its answer an encoder-decoder gives, and its group.

    Args:
        run: ``encoder`` and ``decoder`` -> what runs it once, by keywords.
        folder: With samples and their answers.
    """
    kept = json.loads(regular_file.read_text(folder / ANSWERS))
    samples = Stream(folder / SAMPLES / "feeds.stream")
    groups = kept["groups"] or [None] * len(kept["tokens"])
    for place, (tokens, group) in enumerate(zip(kept["tokens"], groups, strict=True)):
        decoder = open_decoder(
            lambda fed: run["encoder"](**fed), lambda fed: run["decoder"](**fed), samples[place]
        )
        yield compare_answer(decoder, kept["start"], tokens), group
