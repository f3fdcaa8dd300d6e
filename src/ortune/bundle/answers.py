"""Texts in, and what a model says in the words of its task: a class, a vector, a text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ortune.bundle.engine import archive
from ortune.bundle.engine.batching import Statistics, TimedAnswer
from ortune.bundle.engine.call import Call
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.manifest import HUB, Signature
from ortune.core import hub
from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.hub import HubFolder
from ortune.core.session import Tensors
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data.checks import IDS, LABEL
from ortune.data.sentences import TEXT, Sentences, load_tokenizer, open_sentences
from ortune.data.sequences.generation import CachedDecoder, generate_tokens, open_decoder
from ortune.data.sequences.pairs import StatePair
from ortune.data.sequences.rolling import Run
from ortune.metrics.common.outputs import compute_softmax
from ortune.metrics.common.pooling import find_vectors, pool_sentences

_TOKENS = 3
MOST_TEXTS, _MOST_CHARS = 64, 1 << 16
"""Texts of a request of `TextCall`, and characters of each, at most."""
MOST_TOKENS = 64
"""That are written for a text, at most."""


def find_settings(path: Path, folder: Path) -> HubFolder | None:
    """Return the hub's settings beside a model; of a bundle those in it, written to `folder`."""
    if not archive.is_bundle(path):
        return hub.find_folder(path)
    with archive.open_bundle(path) as (file, manifest):
        for member in manifest.members:
            if member.startswith(f"{HUB}/"):
                archive.extract_member(file, manifest, member, folder)
    return hub.find_folder(folder / HUB)


def state_answer(
    settings: HubFolder, inputs: Tensors, outputs: Tensors
) -> Mapping[str, Any] | None:
    """Return what one sample is answered, as plain data; None where outputs say it themselves.

    Args:
        settings: The model's folder.
        inputs: Of the sample: the mask says which tokens count.
        outputs: The answer.
    """
    classes = settings.classes
    if settings.pooling and all(array.dtype.kind == "f" for array in outputs.values()):
        name = find_vectors(outputs, "")
        vectors = pool_sentences(outputs, name, settings.pooling, inputs)
        if settings.normalizes:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return {"vector": [round(float(x), 6) for x in vectors[0]]}
    logits = outputs.get("logits")
    if logits is None or logits.shape[-1] != len(classes) or len(classes) < 2:
        return None
    shares = compute_softmax(logits)
    best = shares[0].argmax(-1)
    if logits.ndim == _TOKENS:
        return {"labels": [classes[number] for number in best]}
    return {"label": classes[best], "score": round(float(shares[0, best]), 6)}


@dataclass(frozen=True)
class TextWriter:
    """Writes the likeliest tokens; files of the folder are not needed afterwards."""

    tokenizer: Any  # None where the folder has none: tokens stay numbers
    start: int  # token that the answers of an encoder-decoder begin behind
    ends: frozenset[int]  # tokens that end a text
    longest: int  # tokens of a decoder's text, the prompt among them

    @classmethod
    def read_folder(cls, settings: HubFolder) -> Self | None:
        """Read what writing takes; None where the model is not for it.

        Raises:
            BadData: The package tokenizers is not installed, or does not read the tokenizer.
        """
        if settings.task != hub.GENERATION and not settings.config.get("is_encoder_decoder"):
            return None
        has_words = (settings.folder / hub.TOKENIZER).is_file()
        tokenizer = load_tokenizer(settings) if has_words else None
        return cls(tokenizer, settings.start, settings.ends, settings.longest)

    def write(
        self, run: Run, decode: Run | None, inputs: Tensors, count: int
    ) -> Mapping[str, Any] | None:
        """Return text and tokens for one sample; None of a model without a cache.

        Args:
            run: Runs a decoder once, or the encoder before one.
            decode: Runs the decoder behind an encoder.
            inputs: Of the text.
            count: Tokens at most; fewer where one ends the text.
        """
        if decode is not None:
            decoder, prompt = open_decoder(run, decode, inputs), np.array([[self.start]])
        elif any(StatePair("", name).grows for name in inputs):
            decoder, prompt = CachedDecoder(run, inputs), inputs[IDS]
            count = min(count, max(0, self.longest - prompt.shape[1]))
        else:
            return None
        tokens = list(generate_tokens(decoder, prompt, count, self.ends))
        words = {} if self.tokenizer is None else {"text": self.tokenizer.decode(tokens)}
        return {**words, "tokens": tokens}


PAIR = frozenset({"encoder", "decoder"})
"""Names of the two models of an encoder-decoder."""


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
        self.signature = Signature((TensorSpec(TEXT, "str", ("texts",)),), outputs)

    async def answered(self, /, **inputs: NDArray[Any]) -> TimedAnswer:
        """Answer texts, an array [texts] of strings.

        Raises:
            BadData: There are too many, or one is too long.
        """
        texts = inputs[TEXT].tolist()
        if not 1 <= len(texts) <= MOST_TEXTS or max(map(len, texts)) > _MOST_CHARS:
            raise BadData(
                f"{len(texts)} texts, the longest of {max(map(len, texts), default=0)} characters",
                fix=f"send 1 to {MOST_TEXTS}, each of {_MOST_CHARS} characters at most",
            )
        queued_ns = time.perf_counter_ns()
        samples = await asyncio.to_thread(self._tokenize, texts)
        if (write := self._write) is not None:
            started_ns = time.perf_counter_ns()
            written = await asyncio.to_thread(lambda: list(map(write, samples)))
            outputs = self._gather_outputs(written)
            return TimedAnswer(outputs, queued_ns, started_ns, time.perf_counter_ns(), len(texts))
        requests = [asyncio.ensure_future(self._call.answered(**sample)) for sample in samples]
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

    def _tokenize(self, texts: Sequence[str]) -> list[Tensors]:
        rows = (block for text in texts for block in self._sentences.make_blocks({TEXT: text}, ""))
        return [
            {name: c.read() for name, c in block.columns.items() if name != LABEL}
            for block in rows
        ]

    def _state_answers(
        self, samples: Sequence[Tensors], answers: Sequence[TimedAnswer]
    ) -> dict[str, NDArray[Any]]:
        stated = [
            state_answer(self._settings, sample, answer.outputs)
            for sample, answer in zip(samples, answers, strict=True)
        ]
        return self._gather_outputs(stated)

    def _gather_outputs(
        self, stated: Sequence[Mapping[str, Any] | None]
    ) -> dict[str, NDArray[Any]]:
        return {
            spec.name: np.array(
                [(answer or {})[spec.name] for answer in stated],
                object if spec.dtype == "str" else spec.dtype,
            )
            for spec in self.signature.outputs
        }

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
        is_pair = set(engine.models) == PAIR
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
            outputs, write = _describe_answers(settings, call.signature.outputs), None
        if sentences is not None and outputs:
            engine.add_call(TEXT, TextCall(call, settings, sentences, outputs, write))


def _describe_answers(
    settings: HubFolder, outputs: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    """Return the outputs of a `TextCall`; none of a model that says neither vector nor class."""
    shapes = {spec.name: spec.shape or () for spec in outputs}
    if settings.pooling and all(spec.dtype.startswith("float") for spec in outputs):
        arrays = {spec.name: np.empty((1,) * len(spec.shape or ()), "f4") for spec in outputs}
        width = shapes[find_vectors(arrays, "")][-1]
        return (TensorSpec("vector", "float32", ("texts", width)),)
    logits = shapes.get("logits", ())
    count = len(settings.classes)
    if len(logits) == _TOKENS - 1 and count > 1 and logits[-1] == count:
        return (
            TensorSpec("label", "str", ("texts",)),
            TensorSpec("score", "float32", ("texts",)),
        )
    return ()
