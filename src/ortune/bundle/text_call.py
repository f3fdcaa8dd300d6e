"""A model as a function of texts, for an engine that serves it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ortune.bundle.answers import TAKE_PAIRS, Answerer, RunSample, find_settings, gather_answers
from ortune.bundle.engine.batching import Statistics, TimedAnswer
from ortune.bundle.engine.call import Call
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.manifest import Signature
from ortune.core import hub
from ortune.core.errors import BadData, BadSettings
from ortune.core.facts import TensorSpec
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data.sentences import PAIR, TEXT, Sentences, TokenizedText, open_sentences

MOST_TEXTS, _MOST_CHARS = 64, 1 << 16
"""Texts of a request of `TextCall`, and characters of each, at most."""
MOST_TOKENS = 64
"""That are written for a text, at most."""


class TextCall(Call):
    """A model as a function of texts, answered as `Answerer` does.

    Every text is a request of its own to the model, which joins those of one length; what is
    written behind it is computed by itself.
    """

    def __init__(self, answerer: Answerer, task: str, sentences: Sentences) -> None:
        """Be ready for texts of a model for `task`; `sentences` tokenizes."""
        self._call, self._answerer, self._sentences = answerer.main, answerer, sentences
        self.name, self.serving = self._call.name, self._call.serving
        pairs = task in TAKE_PAIRS and not answerer.writes
        names = (TEXT, PAIR) if pairs else (TEXT,)
        if task != hub.QUESTIONS:
            self.optional = frozenset(names) - {TEXT}
        inputs = tuple(TensorSpec(name, "str", ("texts",)) for name in names)
        self.signature = Signature(inputs, answerer.outputs)

    async def answered(self, /, **inputs: NDArray[Any]) -> TimedAnswer:
        """Answer arrays [texts] of strings; BadData for too many, too long, or unpaired."""
        texts = inputs[TEXT].tolist()
        pairs = inputs[PAIR].tolist() if PAIR in inputs else [None] * len(texts)
        longest = max((len(text) for text in (*texts, *pairs) if text is not None), default=0)
        if not 1 <= len(texts) <= MOST_TEXTS or longest > _MOST_CHARS:
            raise BadData(
                f"{len(texts)} texts, the longest of {longest} characters",
                fix=f"send 1 to {MOST_TEXTS}, each of {_MOST_CHARS} characters at most",
            )
        if len(pairs) != len(texts):
            raise BadData(
                f"wrong number of elements in '{PAIR}': Got {len(pairs)}, expected {len(texts)}",
                fix=f"send one for each '{TEXT}'",
            )
        tokenized = await asyncio.to_thread(
            lambda: list(map(self._sentences.tokenize, texts, pairs))
        )
        parts = [part for of_one in tokenized for part in of_one]
        answers = [
            answer
            for start in range(0, len(parts), MOST_TEXTS)  # a long text would fill the queue
            for answer in await self._ask(parts[start : start + MOST_TEXTS])
        ]
        return TimedAnswer(
            await asyncio.to_thread(self._state_answers, tokenized, answers),
            min(answer.queued_ns for answer in answers),
            min(answer.started_ns for answer in answers),
            time.perf_counter_ns(),
            len(texts),
        )

    async def _ask(self, parts: Sequence[TokenizedText]) -> Sequence[TimedAnswer]:
        requests = [asyncio.ensure_future(self._call.answered(**part.inputs)) for part in parts]
        try:
            return await asyncio.gather(*requests)
        finally:
            for request in requests:
                request.cancel()

    def _state_answers(
        self, tokenized: Sequence[Sequence[TokenizedText]], answers: Sequence[TimedAnswer]
    ) -> dict[str, NDArray[Any]]:
        remaining = iter(answers)
        stated = [
            self._answerer.answer(
                [RunSample(part.inputs, next(remaining).outputs, part) for part in parts],
                MOST_TOKENS,
            )
            for parts in tokenized
        ]
        return gather_answers(stated, self.signature.outputs)

    @property
    def statistics(self) -> Statistics:
        """Counts and times of the model, however it is asked."""
        return self._call.statistics

    def warm_up(self, /, **inputs: NDArray[Any]) -> None:
        """Do nothing: the model is warmed up by itself."""

    def terminate(self) -> None:
        """Do nothing: the model is ended by itself, as it is drained."""

    def drain(self) -> None:
        """Do nothing, as `terminate`."""


def add_texts(engine: Engine, path: Path) -> None:
    """Let an engine of a model, or of encoder and decoder, answer texts as model ``text`` too.

    Raises BadData: the package tokenizers is not installed, or does not read the tokenizer.
    """
    with open_temporary_folder() as folder:
        settings = find_settings(path, folder)
        if settings is None or not (settings.folder / hub.TOKENIZER).is_file():
            return
        try:
            answerer = Answerer(engine, settings)
        except BadSettings:  # several models that are no encoder and decoder
            return
        inputs = answerer.main.signature.inputs
        sentences = open_sentences(settings, inputs, lambda text: None, answers=True)
        if sentences is not None and answerer.outputs:
            engine.add_call(TEXT, TextCall(answerer, settings.task, sentences))
