"""Texts in, and what a model says in the words of its task: a class, a vector, a text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from ortune.data.checks import IDS
from ortune.data.sentences import TEXT, Sentences, load_tokenizer, open_sentences
from ortune.data.sequences.generation import (
    CachedDecoder,
    generate_tokens,
    open_decoder,
    write_answer,
)
from ortune.data.sequences.pairs import StatePair
from ortune.data.sequences.rolling import Run
from ortune.metrics.common.outputs import compute_softmax
from ortune.metrics.common.pooling import find_vectors, pool_sentences

_TOKENS = 3
MOST_TEXTS, _MOST_CHARS = 64, 1 << 16
"""Texts of a request of `TextCall`, and characters of each, at most."""


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


def continue_text(
    settings: HubFolder, run: Run, inputs: Tensors, count: int
) -> Mapping[str, Any] | None:
    """Return what follows a text; None of a model that does not generate with a cache.

    Args:
        settings: The model's folder.
        run: Runs the model once.
        inputs: Of the text.
        count: Tokens at most; fewer where one ends the text.
    """
    if settings.task != hub.GENERATION or not any(StatePair("", name).grows for name in inputs):
        return None
    tokens = list(generate_tokens(CachedDecoder(run, inputs), inputs[IDS], count, settings.ends))
    return {"text": load_tokenizer(settings).decode(tokens), "tokens": tokens}


def answer_sample(
    settings: HubFolder, encode: Run, decode: Run, inputs: Tensors, count: int
) -> Mapping[str, Any]:
    """Return what an encoder-decoder writes for one sample, as `continue_text` does.

    Args:
        settings: The model's folder.
        encode: Runs the encoder once.
        decode: Runs the decoder once.
        inputs: Of the encoder.
        count: Tokens at most.
    """
    decoder = open_decoder(encode, decode, inputs)
    written = write_answer(decoder, settings.start, count, settings.ends)
    tokens = [token for token in written if token not in settings.ends]
    has_words = (settings.folder / hub.TOKENIZER).is_file()
    words = {"text": load_tokenizer(settings).decode(tokens)} if has_words else {}
    return {**words, "tokens": tokens}


class TextCall(Call):
    """A model as a function of texts, answered as `state_answer` does.

    Every text is a request of its own to the model, which joins those of one length.
    """

    def __init__(
        self,
        call: Call,
        settings: HubFolder,
        sentences: Sentences,
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        """Be ready for texts; files of the folder are not needed afterwards."""
        self.name, self.serving = call.name, call.serving
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
        samples = await asyncio.to_thread(self._tokenize, texts)
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
        return [{name: c.read() for name, c in block.columns.items()} for block in rows]

    def _state_answers(
        self, samples: Sequence[Tensors], answers: Sequence[TimedAnswer]
    ) -> dict[str, NDArray[Any]]:
        stated = [
            state_answer(self._settings, sample, answer.outputs) or {}
            for sample, answer in zip(samples, answers, strict=True)
        ]
        return {
            spec.name: np.array(
                [answer[spec.name] for answer in stated],
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
    """Let an engine of one model answer texts as model ``text`` too, where its folder knows how.

    Raises:
        BadData: The package tokenizers is not installed, or does not read the tokenizer.
    """
    with open_temporary_folder() as folder:
        settings = find_settings(path, folder) if len(engine.models) == 1 else None
        if settings is None or not (settings.folder / hub.TOKENIZER).is_file():
            return
        call = engine[engine.models[0]]
        sentences = open_sentences(settings, call.signature.inputs, lambda text: None)
        outputs = _describe_answers(settings, call.signature.outputs)
        if sentences is not None and outputs:
            engine.add_call(TEXT, TextCall(call, settings, sentences, outputs))


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
