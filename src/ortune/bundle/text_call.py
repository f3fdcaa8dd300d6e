"""A model as a function of texts, for an engine that serves it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ortune.bundle.answers import (
    PARTS,
    TAKE_PAIRS,
    TextWriter,
    describe_answers,
    find_settings,
    gather_answers,
    state_answer,
)
from ortune.bundle.engine.batching import Statistics, TimedAnswer
from ortune.bundle.engine.call import Call
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.manifest import Signature
from ortune.core import hub
from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.hub import HubFolder
from ortune.core.session import Tensors
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data.sentences import PAIR, TEXT, Sentences, TokenizedText, open_sentences
from ortune.data.sequences.pairs import StatePair

MOST_TEXTS, _MOST_CHARS = 64, 1 << 16
"""Texts of a request of `TextCall`, and characters of each, at most."""
MOST_TOKENS = 64
"""That are written for a text, at most."""


class TextCall(Call):
    """A model as a function of texts, answered as `state_answer` does, or by what it writes.

    Every text is a request of its own to the model, which joins those of one length; what is
    written is computed by itself.
    """

    def __init__(
        self,
        call: Call,
        settings: HubFolder,
        sentences: Sentences,
        outputs: tuple[TensorSpec, ...],
        write: Callable[[Tensors], Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Be ready for texts; files of the folder are not needed afterwards.

        Args:
            call: The model.
            settings: Its folder.
            sentences: Tokenizes.
            outputs: What a text is answered with.
            write: Writes the answer to a sample, of a model that does.
        """
        self.name, self.serving = call.name, call.serving
        self._write = write
        self._call, self._settings, self._sentences = call, settings, sentences
        _ = settings.task, settings.normalizes  # read, and kept
        pairs = settings.task in TAKE_PAIRS and write is None
        names = (TEXT, PAIR) if pairs else (TEXT,)
        if settings.task != hub.QUESTIONS:
            self.optional = frozenset(names) - {TEXT}
        inputs = tuple(TensorSpec(name, "str", ("texts",)) for name in names)
        self.signature = Signature(inputs, outputs)

    async def answered(self, /, **inputs: NDArray[Any]) -> TimedAnswer:
        """Answer texts, or pairs of them: arrays [texts] of strings.

        Raises:
            BadData: There are too many, one is too long, or not every text has its second one.
        """
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
        queued_ns = time.perf_counter_ns()
        samples = await asyncio.to_thread(
            lambda: list(map(self._sentences.tokenize, texts, pairs))
        )
        if (write := self._write) is not None:
            started_ns = time.perf_counter_ns()
            written = await asyncio.to_thread(lambda: [write(text.inputs) for text in samples])
            outputs = gather_answers(written, self.signature.outputs)
            return TimedAnswer(outputs, queued_ns, started_ns, time.perf_counter_ns(), len(texts))
        requests = [asyncio.ensure_future(self._call.answered(**text.inputs)) for text in samples]
        try:
            answers = await asyncio.gather(*requests)
        finally:
            for request in requests:
                request.cancel()
        return TimedAnswer(
            await asyncio.to_thread(self._state_answers, samples, answers),
            min(answer.queued_ns for answer in answers),
            min(answer.started_ns for answer in answers),
            max(answer.ended_ns for answer in answers),
            len(texts),
        )

    def _state_answers(
        self, samples: Sequence[TokenizedText], answers: Sequence[TimedAnswer]
    ) -> dict[str, NDArray[Any]]:
        stated = [
            state_answer(self._settings, text.inputs, answer.outputs, text)
            for text, answer in zip(samples, answers, strict=True)
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
    """Let an engine answer texts as model ``text`` too, where its folder knows how.

    It has one model, or an encoder and its decoder.

    Raises:
        BadData: The package tokenizers is not installed, or does not read the tokenizer.
    """
    with open_temporary_folder() as folder:
        is_pair = set(engine.models) == PARTS
        settings = find_settings(path, folder) if is_pair or len(engine.models) == 1 else None
        if settings is None or not (settings.folder / hub.TOKENIZER).is_file():
            return
        call = engine["encoder" if is_pair else engine.models[0]]
        sentences = open_sentences(settings, call.signature.inputs, lambda text: None)
        writer = TextWriter.read_folder(settings)
        cached = any(StatePair("", spec.name).grows for spec in call.signature.inputs)
        if writer is not None and (is_pair or cached):
            decode = engine["decoder"].run if is_pair else None
            outputs: tuple[TensorSpec, ...] = (TensorSpec(TEXT, "str", ("texts",)),)
            write = partial(writer.write, call.run, decode, count=MOST_TOKENS)
        else:
            outputs, write = describe_answers(settings, call.signature.outputs), None
        if sentences is not None and outputs:
            engine.add_call(TEXT, TextCall(call, settings, sentences, outputs, write))
