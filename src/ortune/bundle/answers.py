"""What a model of texts or classes says in the words of its task: a class, a vector, a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.bundle.engine import archive
from ortune.bundle.engine.manifest import HUB
from ortune.core import hub
from ortune.core.facts import TensorSpec
from ortune.core.hub import HubFolder
from ortune.core.session import Tensors
from ortune.data.checks import IDS
from ortune.data.sentences import TEXT, TokenizedText, load_tokenizer
from ortune.data.sequences.generation import CachedDecoder, generate_tokens, open_decoder
from ortune.data.sequences.pairs import StatePair
from ortune.data.sequences.rolling import Run
from ortune.metrics.common.outputs import compute_softmax
from ortune.metrics.common.pooling import find_vectors, pool_sentences

Kind: TypeAlias = Literal["vector", "class", "words", "span"]
TAKE_PAIRS = frozenset({hub.TEXT_CLASSES, hub.QUESTIONS, hub.FEATURES})
"""Tasks whose model may take a second text in one sample."""
_START, _END, _LOGITS = "start_logits", "end_logits", "logits"
_WORDS, _SPAN_TOKENS = 3, 15
"""Rank of logits for each token; tokens of an answer to a question at most, as transformers do."""
_NAMED = (("label", "str"), ("score", "float32"))
_PLACED = (("start", "int64"), ("end", "int64"))
_OUTPUTS: Mapping[Kind, tuple[tuple[str, str], ...]] = {
    "class": _NAMED,
    "words": (("text_index", "int64"), ("word", "str"), *_NAMED, *_PLACED),
    "span": (("answer", "str"), ("score", "float32"), *_PLACED),
}
"""Kind of answer -> names and dtypes of what a server says; `words` are those of all texts."""


def find_settings(path: Path, folder: Path) -> HubFolder | None:
    """Return the hub's settings beside a model; of a bundle those in it, written to `folder`."""
    if not archive.is_bundle(path):
        return hub.find_folder(path)
    with archive.open_bundle(path) as (file, manifest):
        for member in manifest.members:
            if member.startswith(f"{HUB}/"):
                archive.extract_member(file, manifest, member, folder)
    return hub.find_folder(folder / HUB)


def find_kind(settings: HubFolder, outputs: Sequence[TensorSpec]) -> Kind | None:
    """Return what a model's outputs are answers of; None where they say it themselves."""
    shapes = {spec.name: spec.shape or () for spec in outputs}
    if settings.pooling and all(spec.dtype.startswith("float") for spec in outputs):
        return "vector"
    if shapes.keys() >= {_START, _END}:
        return "span"
    shape, count = shapes.get(_LOGITS, ()), len(settings.classes)
    named = bool(shape) and count == shape[-1]
    if count and not named and shape and isinstance(shape[-1], int):
        return None
    if len(shape) == _WORDS and settings.task == hub.TOKEN_CLASSES:
        return "words"
    if len(shape) == _WORDS - 1 and (named or settings.task.endswith("-classification")):
        return "class"
    return None


def state_answer(
    settings: HubFolder, inputs: Tensors, outputs: Tensors, text: TokenizedText | None = None
) -> Mapping[str, Any] | None:
    """Return what one sample is answered, as plain data; None where outputs say it themselves.

    Args:
        settings: The model's folder.
        inputs: Of the sample: the mask says which tokens count.
        outputs: The answer.
        text: What the sample is of; without it there are no words to answer with.
    """
    kind = find_kind(
        settings, [TensorSpec(name, a.dtype.name, a.shape) for name, a in outputs.items()]
    )
    if kind == "vector":
        return {"vector": [round(float(x), 6) for x in _pool_vector(settings, inputs, outputs)]}
    if kind == "class":
        return _state_class(settings, _compute_scores(settings, outputs[_LOGITS][0]))
    if kind == "words" and text is not None:
        return {"words": _state_words(settings, compute_softmax(outputs[_LOGITS][0]), text)}
    if kind == "span" and text is not None:
        return _state_span(outputs[_START][0], outputs[_END][0], text)
    return None


def _pool_vector(settings: HubFolder, inputs: Tensors, outputs: Tensors) -> NDArray[Any]:
    vectors = pool_sentences(
        outputs, find_vectors(outputs, ""), settings.pooling or "mean", inputs
    )
    if settings.normalizes:
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return np.asarray(vectors[0])


def _compute_scores(settings: HubFolder, logits: NDArray[Any]) -> NDArray[Any]:
    """Return scores of classes as transformers and sentence-transformers compute them."""
    problem = settings.config.get("problem_type")
    if problem == "regression" or settings.keeps_logits:
        return logits
    if problem == "multi_label_classification" or logits.shape[-1] == 1:
        return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))))
    return compute_softmax(logits)


def _state_class(settings: HubFolder, scores: NDArray[Any]) -> dict[str, Any]:
    """Return the class with the highest score; transformers' name of one without."""
    best, classes = int(scores.argmax()), settings.classes
    label = classes[best] if best < len(classes) else f"LABEL_{best}"
    return {"label": label, "score": round(float(scores[best]), 6)}


def _state_words(
    settings: HubFolder, scores: NDArray[Any], text: TokenizedText
) -> list[dict[str, Any]]:
    """Return words, each with the class of its first token, which is the one that is trained."""
    return [
        {
            "word": text.texts[0][word.start : word.end],
            **_state_class(settings, scores[word.first]),
            "start": word.start,
            "end": word.end,
        }
        for word in text.list_words()
    ]


def _state_span(
    starts: NDArray[Any], ends: NDArray[Any], text: TokenizedText
) -> dict[str, Any] | None:
    """Return the likeliest answer in the second text; from the first to the last of its words.

    As transformers compute it: a token's chance is among those of that text and the first token,
    which stands for no answer.
    """
    words = text.list_words(1) if len(text.texts) > 1 else []
    if not words:
        return None
    tokens = np.arange(words[0].first, words[-1].last + 1)
    chances = [compute_softmax(logits[[0, *tokens]])[1:] for logits in (starts, ends)]
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


def describe_answers(settings: HubFolder, outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return what a server answers texts with; nothing of a model without such answers."""
    kind = find_kind(settings, outputs)
    if kind == "vector":
        arrays = {spec.name: np.empty((1,) * len(spec.shape or ()), "f4") for spec in outputs}
        name = find_vectors(arrays, "")
        width = next(spec.shape for spec in outputs if spec.name == name) or ()
        return (TensorSpec("vector", "float32", ("texts", width[-1])),)
    count = "words" if kind == "words" else "texts"
    pairs = () if kind is None else _OUTPUTS[kind]
    return tuple(TensorSpec(name, dtype, (count,)) for name, dtype in pairs)


def gather_answers(
    answers: Sequence[Mapping[str, Any] | None], outputs: Sequence[TensorSpec]
) -> dict[str, NDArray[Any]]:
    """Return the answers to texts as arrays: one entry a text, or those of all words in a row."""
    rows: list[Mapping[str, Any]] = []
    for index, answer in enumerate(answers):
        if answer is None or "words" not in answer:
            rows.append(answer or {})
        else:
            rows += [{"text_index": index, **word} for word in answer["words"]]
    return {spec.name: _make_array([row.get(spec.name) for row in rows], spec) for spec in outputs}


def _make_array(values: Sequence[Any], spec: TensorSpec) -> NDArray[Any]:
    """Return values in an array; where a text has no answer, there are an empty text and zeros."""
    empty: Any = "" if spec.dtype == "str" else 0
    filled = [empty if value is None else value for value in values]
    return np.array(filled, object if spec.dtype == "str" else spec.dtype)


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
        words = {} if self.tokenizer is None else {TEXT: self.tokenizer.decode(tokens)}
        return {**words, "tokens": tokens}


PARTS = frozenset({"encoder", "decoder"})
"""Names of the two models of an encoder-decoder."""
