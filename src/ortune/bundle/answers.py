"""What a model of texts or classes says in the words of its task: a class, a vector, a text.

`TextCall` and `SoundCall` are such a model as a function of texts or of files of sound, for an
engine that serves it.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.bundle.engine import archive
from ortune.bundle.engine.batching import Statistics, TimedAnswer
from ortune.bundle.engine.call import Call
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.manifest import HUB, Signature
from ortune.core import hub
from ortune.core.errors import BadData, BadSettings
from ortune.core.facts import TensorSpec
from ortune.core.hub import HubFolder
from ortune.core.session import Tensors
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data.checks import IDS, cast_to_input
from ortune.data.classes import read_alphabet
from ortune.data.formats.sounds import open_wav, read_sound_blocks
from ortune.data.reading import Features, Reading, read_features
from ortune.data.sentences import (
    PAIR,
    TEXT,
    Sentences,
    TokenizedText,
    load_tokenizer,
    open_sentences,
)
from ortune.data.sequences.generation import (
    AnswerRules,
    CachedDecoder,
    begin_answer,
    generate_tokens,
)
from ortune.data.sequences.rolling import StatePair
from ortune.metrics.common.outputs import compute_softmax, find_vectors, pool_sentences
from ortune.metrics.wer import collapse_path

Kind: TypeAlias = Literal["vector", "class", "words", "masks", "span", "text"]
TAKE_PAIRS = frozenset({hub.TEXT_CLASSES, hub.QUESTIONS, hub.FEATURES})
"""Tasks whose model may take a second text in one sample."""
_PARTS = frozenset({"encoder", "decoder"})
"""Names of the two models of an encoder-decoder."""
_START, _END, _LOGITS = "start_logits", "end_logits", "logits"
_WORDS, _SPAN_TOKENS, _CHOICES = 3, 15, 5
"""Rank of logits for each token; tokens of an answer to a question at most, and words for a mask,
as transformers has them."""
_NAMED = (("label", "str"), ("score", "float32"))
_PLACED = (("start", "int64"), ("end", "int64"))
_OUTPUTS: Mapping[Kind, tuple[tuple[str, str], ...]] = {
    "class": (*_NAMED, ("labels", "str"), ("scores", "float32")),
    "words": (("text_index", "int64"), ("word", "str"), *_NAMED, *_PLACED),
    "masks": (
        ("text_index", "int64"),
        *(("words", "str"), ("tokens", "int64"), ("scores", "float32")),
        *_PLACED,
    ),
    "span": (("answer", "str"), ("score", "float32"), *_PLACED),
    "text": ((TEXT, "str"),),
}
"""Kind of answer -> names and dtypes of what a server says; of `words` and `masks` those of all
texts in a row, and what is named in the plural has several a row."""


def find_settings(path: Path, folder: Path) -> HubFolder | None:
    """Return the hub's settings beside a model; of a bundle those in it, written to `folder`."""
    if not archive.is_bundle(path):
        return hub.find_folder(path)
    with archive.open_bundle(path) as (file, manifest):
        for member in manifest.members:
            if member.startswith(f"{HUB}/"):
                archive.extract_member(file, manifest, member, folder)
    return hub.find_folder(folder / HUB)


class RunSample(NamedTuple):
    """What a model was given and gave, and its text: tensors have none to answer with."""

    inputs: Tensors
    outputs: Tensors
    text: TokenizedText | None = None


def find_main(engine: Engine) -> Call:
    """Return the model that takes samples: an encoder, or the only one; else BadSettings."""
    return engine["encoder"] if set(engine.models) == _PARTS else engine.require_single()


class Answerer:
    """Answers samples of one engine, by its `main` model; its folder is not needed afterwards."""

    def __init__(self, engine: Engine, settings: HubFolder) -> None:
        """Read what answering takes; BadData where tokenizers is not there or does not read."""
        self.main, self._settings = find_main(engine), settings
        self._decode = engine["decoder"].run if "decoder" in engine.models else None
        cached = any(StatePair("", spec.name).grows for spec in self.main.signature.inputs)
        decodes = settings.task == hub.GENERATION or settings.config.get("is_encoder_decoder")
        self.writes = bool(decodes and (cached or self._decode))
        speaks = self.writes or settings.task == hub.MASKS
        has_words = (speaks or settings.spells) and (settings.folder / hub.TOKENIZER).is_file()
        self._tokenizer: Any = load_tokenizer(settings) if has_words else None
        self._alphabet, self._blank = read_alphabet(settings), settings.blank
        self._mask = settings.mask
        self._start, self._longest = settings.start, settings.longest
        pair = self._decode is not None
        self._rules = AnswerRules.read_folder(settings) if pair else AnswerRules(settings.ends)
        _ = settings.pooling, settings.classes, settings.normalizes  # read, and kept

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What a server answers texts with; nothing of a model without such answers."""
        specs = self.main.signature.outputs
        kind = self._find_kind(specs)
        if kind == "vector":
            arrays = {spec.name: np.empty((1,) * len(spec.shape or ()), "f4") for spec in specs}
            name = find_vectors(arrays, "")
            width = next(spec.shape for spec in specs if spec.name == name) or ()
            return (TensorSpec("vector", "float32", ("texts", width[-1])),)
        rows = kind if kind in ("words", "masks") else "texts"
        beside = "classes" if kind == "class" else "choices"
        return tuple(
            TensorSpec(name, dtype, (rows, beside) if name in _PLURALS else (rows,))
            for name, dtype in (() if kind is None else _OUTPUTS[kind])
        )

    def _find_kind(self, outputs: Sequence[TensorSpec]) -> Kind | None:
        """Return what outputs are answers of; None where they say it themselves."""
        settings = self._settings
        if self.writes:
            return "text"
        shapes = {spec.name: spec.shape or () for spec in outputs}
        if settings.pooling and all(spec.dtype.startswith("float") for spec in outputs):
            return "vector"
        if shapes.keys() >= {_START, _END}:
            return "span"
        shape, count = shapes.get(_LOGITS, ()), len(settings.classes)
        if len(shape) == _WORDS and settings.spells:
            return "text"
        if len(shape) == _WORDS and settings.task == hub.MASKS:
            return "masks" if self._tokenizer and self._mask else None
        named = bool(shape) and count == shape[-1]
        if count and not named and shape and isinstance(shape[-1], int):
            return None
        if len(shape) == _WORDS and settings.task == hub.TOKEN_CLASSES:
            return "words"
        if len(shape) == _WORDS - 1 and (named or settings.task.endswith("-classification")):
            return "class"
        return None

    def answer(self, parts: Sequence[RunSample], tokens: int) -> Mapping[str, Any] | None:
        """Return what one text is answered, as plain data; None where outputs say it themselves.

        `parts` is the sample; of a question one for each part of its text. At most `tokens` are
        written. Raises BadData: there is nothing to answer.
        """
        settings, (inputs, outputs, text) = self._settings, parts[0]
        kind = self._find_kind([TensorSpec(n, a.dtype.name, a.shape) for n, a in outputs.items()])
        if kind == "text" and not self.writes:
            return self._name_tokens(collapse_path(outputs[_LOGITS][:1], self._blank))
        if kind == "text":
            return self._write(parts[0], tokens)
        if kind == "vector":
            vectors = pool_sentences(
                outputs, find_vectors(outputs, ""), settings.pooling or "mean", inputs
            )
            if settings.normalizes:
                vectors = vectors / np.maximum(
                    np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12
                )
            vector = np.asarray(vectors[0])
            return {"vector": [round(float(x), 6) for x in vector]}
        if kind == "class":
            classes = _rank_classes(settings, _compute_scores(settings, outputs[_LOGITS][0]))
            return {**classes[0], "classes": classes}
        if text is None or kind is None:
            return None
        if kind == "words":
            # The class of a word is that of its first token: that one is trained.
            scores = compute_softmax(outputs[_LOGITS][0])
            return {
                "words": [
                    {
                        "word": text.texts[0][word.start : word.end],
                        **_rank_classes(settings, scores[word.first])[0],
                        "start": word.start,
                        "end": word.end,
                    }
                    for word in text.list_words()
                ]
            }
        if kind == "masks":
            number = self._tokenizer.token_to_id(self._mask)
            masks = [word for word in text.list_words() if inputs[IDS][0, word.first] == number]
            if not masks:
                raise BadData(
                    f"there is no word to find in '{text.texts[0][:40]}'",
                    fix=f"write {self._mask} in its place",
                )
            filled = []
            for mask in masks:
                scores = compute_softmax(outputs[_LOGITS][0, mask.first])
                words = [
                    {
                        "word": self._tokenizer.decode([token], skip_special_tokens=False),
                        "token": token,
                        "score": round(float(scores[token]), 6),
                    }
                    for token in map(int, np.argsort(-scores, kind="stable")[:_CHOICES])
                ]
                filled.append({"start": mask.start, "end": mask.end, "words": words})
            return {"masks": filled}
        spans = [_find_span(part.outputs, part.text) for part in parts if part.text is not None]
        return max(filter(None, spans), key=lambda span: span["score"], default=None)

    def _write(self, sample: RunSample, count: int) -> dict[str, Any]:
        """Return the likeliest tokens behind a sample, and their text where there are words."""
        run, (inputs, outputs, _) = self.main.run, sample
        if (decode := self._decode) is not None:
            run, inputs = decode, begin_answer(outputs, inputs, self._start)
            outputs = run(inputs)
        else:
            count = min(count, max(0, self._longest - inputs[IDS].shape[1]))
        decoder = CachedDecoder(run, inputs, outputs)
        prompt, rules = inputs[IDS], self._rules
        return self._name_tokens(
            list(generate_tokens(decoder, prompt, count, rules, decoder.first))
        )

    def _name_tokens(self, tokens: list[int]) -> dict[str, Any]:
        """Return tokens, and their text where there are words."""
        decode = self._alphabet.join_tokens if self._alphabet is not None else None
        decode = self._tokenizer.decode if self._tokenizer is not None else decode
        return {**({} if decode is None else {TEXT: decode(tokens)}), "tokens": tokens}

    @property
    def has_words(self) -> bool:
        """Whether tokens can be said as text."""
        return self._tokenizer is not None or self._alphabet is not None


def _compute_scores(settings: HubFolder, logits: NDArray[Any]) -> NDArray[Any]:
    """Return scores of classes as transformers and sentence-transformers compute them."""
    problem = settings.config.get("problem_type")
    if problem == "regression" or settings.keeps_logits:
        return logits
    if problem == "multi_label_classification" or logits.shape[-1] == 1:
        return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))))
    return compute_softmax(logits)


def _rank_classes(settings: HubFolder, scores: NDArray[Any]) -> list[dict[str, Any]]:
    """Return classes and scores, the likeliest first; those without a name have a number."""
    names = dict(enumerate(settings.classes))
    return [
        {"label": names.get(place, f"LABEL_{place}"), "score": round(float(scores[place]), 6)}
        for place in map(int, np.argsort(-scores, kind="stable"))
    ]


def _find_span(outputs: Tensors, text: TokenizedText) -> dict[str, Any] | None:
    """Return the likeliest answer in the second text; from the first to the last of its words.

    As transformers compute it: a token's chance is among those of that text and the first token,
    which stands for no answer.
    """
    words = text.list_words(1) if len(text.texts) > 1 else []
    if not words:
        return None
    tokens = np.arange(words[0].first, words[-1].last + 1)
    both = (outputs[name][0] for name in (_START, _END))
    chances = [compute_softmax(logits[[0, *tokens]])[1:] for logits in both]
    joint = np.tril(np.triu(np.outer(*chances)), _SPAN_TOKENS - 1)
    first, last = (int(tokens[place]) for place in np.unravel_index(joint.argmax(), joint.shape))
    start = next(word.start for word in words if first <= word.last)
    end = next(word.end for word in words if last <= word.last)
    return {
        "answer": text.texts[1][start:end],
        "score": round(float(joint.max()), 6),
        "start": start,
        "end": end,
    }


_PLURALS = {"labels": "label", "words": "word", "tokens": "token", "scores": "score"}
"""Output with several values a row -> name of one."""


def _read(row: Mapping[str, Any], name: str) -> Any:
    if name not in _PLURALS:
        return row.get(name)
    return [entry[_PLURALS[name]] for entry in row.get("classes", row.get("words", ()))]


def _make_array(values: Sequence[Any], spec: TensorSpec) -> NDArray[Any]:
    """Return values in an array; where a text has no answer, there are an empty text and zeros."""
    empty: Any = "" if spec.dtype == "str" else 0
    filled = [empty if value is None else value for value in values]
    return np.array(filled, object if spec.dtype == "str" else spec.dtype)


_Part: TypeAlias = tuple[Tensors, TokenizedText | None]
"""Inputs of one row, and their text where there is one."""
MOST_TEXTS, _MOST_CHARS = 64, 1 << 16
"""Texts of a request of `TextCall`, and characters of each, at most."""
MOST_TOKENS = 64
"""That are written for a text, at most."""


class AnswerCall(Call):
    """A model as a function of what people have, answered as `Answerer` does.

    Every text or sound is a request of its own to the model, which joins those of one length; what
    is written behind it is computed by itself.
    """

    def __init__(self, answerer: Answerer, inputs: Sequence[TensorSpec]) -> None:
        """Be ready for `inputs`, of one dimension."""
        self._call, self._answerer = answerer.main, answerer
        self.name, self.serving = self._call.name, self._call.serving
        rows = inputs[0].shape or ()
        outputs = (
            replace(spec, shape=tuple(rows[0] if dim == "texts" else dim for dim in spec.shape))
            for spec in answerer.outputs
            if spec.shape is not None
        )
        self.signature = Signature(tuple(inputs), tuple(outputs))

    async def _answer_all(self, samples: Sequence[Sequence[_Part]]) -> TimedAnswer:
        """Answer samples, each of one part or several."""
        parts = [part for sample in samples for part in sample]
        answers = [
            answer
            for start in range(0, len(parts), MOST_TEXTS)  # a long text would fill the queue
            for answer in await self._ask(parts[start : start + MOST_TEXTS])
        ]
        return TimedAnswer(
            await asyncio.to_thread(self._state_answers, samples, answers),
            min(answer.queued_ns for answer in answers),
            min(answer.started_ns for answer in answers),
            time.perf_counter_ns(),
            len(samples),
        )

    async def _ask(self, parts: Sequence[_Part]) -> Sequence[TimedAnswer]:
        requests = [asyncio.ensure_future(self._call.answered(**inputs)) for inputs, _ in parts]
        try:
            return await asyncio.gather(*requests)
        finally:
            for request in requests:
                request.cancel()

    def _state_answers(
        self, samples: Sequence[Sequence[_Part]], answers: Sequence[TimedAnswer]
    ) -> dict[str, NDArray[Any]]:
        remaining = iter(answers)
        stated = [
            self._answerer.answer(
                [RunSample(inputs, next(remaining).outputs, text) for inputs, text in parts],
                MOST_TOKENS,
            )
            for parts in samples
        ]
        rows: list[Mapping[str, Any]] = []
        for index, answer in enumerate(stated):
            entries = (answer or {}).get("words", (answer or {}).get("masks"))
            if entries is None:
                rows.append(answer or {})
            else:
                rows += [{"text_index": index, **entry} for entry in entries]
        return {
            spec.name: _make_array([_read(row, spec.name) for row in rows], spec)
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


class TextCall(AnswerCall):
    """A model as a function of texts."""

    def __init__(self, answerer: Answerer, task: str, sentences: Sentences) -> None:
        """Be ready for texts of a model for `task`; `sentences` tokenizes."""
        pairs = task in TAKE_PAIRS and not answerer.writes
        names = (TEXT, PAIR) if pairs else (TEXT,)
        super().__init__(answerer, [TensorSpec(name, "str", ("texts",)) for name in names])
        self._sentences = sentences
        if task != hub.QUESTIONS:
            self.optional = frozenset(names) - {TEXT}

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
        tokenize = self._sentences.tokenize
        return await self._answer_all(
            await asyncio.to_thread(
                lambda: [
                    [(part.inputs, part) for part in tokenize(*sample)]
                    for sample in zip(texts, pairs, strict=True)
                ]
            )
        )


SOUND = "sound"
MOST_SOUNDS, _MOST_BYTES, _MOST_SECONDS = 16, 1 << 25, 120
"""Files of a request of `SoundCall`; bytes of each, and its length, at most."""


class SoundCall(AnswerCall):
    """A model as a function of .wav files; each is one sample."""

    def __init__(self, answerer: Answerer, features: Features) -> None:
        """Be ready for sound, of which `features` are computed."""
        super().__init__(answerer, [TensorSpec(SOUND, "object", ("sounds",))])
        self._specs, self._features = answerer.main.signature.inputs, features
        length = features.length / features.rate
        self._seconds = min(length, _MOST_SECONDS) if length else _MOST_SECONDS

    async def answered(self, /, **inputs: NDArray[Any]) -> TimedAnswer:
        """Answer an array [sounds] of files; BadData for too many, too long, or no sound."""
        files = inputs[SOUND].tolist()
        largest = max(map(len, files), default=0)
        if not 1 <= len(files) <= MOST_SOUNDS or largest > _MOST_BYTES:
            raise BadData(
                f"{len(files)} sounds, the largest of {largest} bytes",
                fix=f"send 1 to {MOST_SOUNDS}, each of {_MOST_BYTES} bytes at most",
            )
        tensors = await asyncio.to_thread(lambda: list(map(self._read_sound, files)))
        return await self._answer_all([[(fed, None)] for fed in tensors])

    def _read_sound(self, content: bytes) -> Tensors:
        with open_temporary_folder() as folder:
            path = folder / "sound.wav"
            path.write_bytes(content)
            try:
                wav = open_wav(path)
                seconds = wav.frames / wav.rate
                if seconds > self._seconds:
                    raise BadData(
                        f"sound of {seconds:.1f} s",
                        fix=f"send {self._seconds:g} s at most, longer sound in parts",
                    )
                reading = Reading(self._specs, lambda text: None, features=self._features)
                (block,) = read_sound_blocks([path], folder, reading)
                (spec,) = reading.needed
                values = block.columns[spec.name].read()
                return {spec.name: cast_to_input("the file", values, spec, reading.note)}
            except BadData as error:
                reason = error.what.replace(str(path), "the file").replace(path.name, "the file")
                raise BadData(reason, fix=error.fix) from None


def add_answers(engine: Engine, path: Path) -> None:
    """Let an engine of a model, or of encoder and decoder, answer ``text`` or ``sound`` too.

    Raises BadData: the package tokenizers is not installed, or does not read the tokenizer.
    """
    with open_temporary_folder() as folder:
        settings = find_settings(path, folder)
        features = read_features(settings)
        if settings is None or not (features or (settings.folder / hub.TOKENIZER).is_file()):
            return
        try:
            answerer = Answerer(engine, settings)
        except BadSettings:  # several models that are no encoder and decoder
            return
        inputs = answerer.main.signature.inputs
        sentences = open_sentences(settings, inputs, lambda text: None, answers=True)
        says = answerer.outputs and (answerer.has_words or answerer.outputs[0].name != TEXT)
        if sentences is not None and says:
            engine.add_call(TEXT, TextCall(answerer, settings.task, sentences))
        elif features is not None and len(inputs) == 1 and says:
            engine.add_call(SOUND, SoundCall(answerer, features))
