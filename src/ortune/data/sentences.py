"""Sentences as samples: rows with texts, tokenized as the folder of their model says.

A row has ``text`` and perhaps ``text_pair``, ``label`` or ``score``, and ``group``. A sample is as
long as its text; of a model that compares sentences a scored pair is one sample of two rows. A
text of a model that generates is labelled by its own next tokens, and begins with an empty cache.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortune.core import hub
from ortune.core.errors import BadData, suggest_names
from ortune.core.facts import TensorSpec
from ortune.core.hub import HubFolder
from ortune.core.plugins.user_function import describe_error
from ortune.core.session import Tensors
from ortune.data import arrays, checks
from ortune.data.arrays import Column, NamedArrays
from ortune.data.checks import GROUP, IDS, LABEL, MASK, PLACES, Note
from ortune.data.sequences.rolling import StatePair, make_initial_state
from ortune.data.stream import parse_dtype

_ATTRIBUTES = {IDS: "ids", MASK: "attention_mask", "token_type_ids": "type_ids"}
TEXT, PAIR, SCORE = "text", "text_pair", "score"
COLUMNS = (TEXT, PAIR, SCORE, LABEL, GROUP)
SUFFIXES = frozenset({".txt", ".csv"})
_WITHOUT_WORDS = frozenset({hub.SIMILARITY, hub.TEXT_CLASSES, hub.GENERATION})
"""Tasks whose answers name no word of the text."""
_WINDOW, _OVERLAP = 384, 128
"""Tokens of a question with a part of a long text, and those that two parts share, as
transformers has them."""
UNLABELLED = -100
"""Label of a token that is not scored, as in PyTorch: special ones, and ends of words."""


def load_tokenizer(folder: HubFolder) -> Any:
    """Read a folder's tokenizer.

    Raises:
        BadData: The package tokenizers is not installed, or does not read the file.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise BadData("reading texts needs tokenizers", fix="pip install tokenizers") from None
    path = folder.folder / hub.TOKENIZER
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise BadData(
            f"tokenizers does not read {path}: {describe_error(error)}",
            fix="download the folder again",
        ) from error


class TextWord(NamedTuple):
    """A word of a text: its tokens and its characters.

    Attributes:
        first: Number of its first token.
        last: Number of its last token.
        start: Number of its first character.
        end: Number of the character behind it.
    """

    first: int
    last: int
    start: int
    end: int


@dataclass(frozen=True)
class TokenizedText:
    """A text, or a pair, as one row of its model's inputs."""

    # One, or two of a pair; of a list of words, these with blanks between them.
    texts: tuple[str, ...]
    inputs: Tensors
    encoding: Any
    _starts: tuple[Sequence[int] | None, ...]  # of each listed word its first character

    def list_words(self, which: int = 0) -> list[TextWord]:
        """Return the words of the first or the second text, as the tokenizer splits them."""
        text, starts = self.texts[which], self._starts[which]
        encoding, words = self.encoding, list[TextWord]()
        places = zip(encoding.sequence_ids, encoding.word_ids, encoding.offsets, strict=True)
        for (part, word), group in groupby(enumerate(places), lambda token: token[1][:2]):
            if part != which or word is None:
                continue
            tokens = list(group)
            (first, (*_, (start, _))), (last, (*_, (_, end))) = tokens[0], tokens[-1]
            shift = 0 if starts is None else starts[word]
            start, end = start + shift, end + shift
            blanks = len(text[start:end]) - len(text[start:end].lstrip())
            words.append(TextWord(first, last, start + blanks, end))
        return words


class Sentences:
    """Turns rows of texts into inputs of one model.

    Attributes:
        kept: Where a row is from -> what its text became, of texts whose words are answered.
    """

    def __init__(
        self, folder: HubFolder, inputs: Sequence[TensorSpec], note: Note, *, answers: bool = False
    ) -> None:
        """Read the folder's tokenizer.

        Args:
            answers: Texts are to be answered in words: a question has every part of a long text.

        Raises:
            BadData: As `load_tokenizer`.
        """
        self.kept: dict[str, list[TokenizedText]] = {}
        self._keeps = answers and folder.task not in _WITHOUT_WORDS
        self._tokenizer: Any = load_tokenizer(folder)
        self._uncut = load_tokenizer(folder) if answers and folder.task == hub.QUESTIONS else None
        self._folder, self._specs = folder, checks.specs_by_name(inputs)
        dims = self._specs[IDS].shape or ()
        self._fixed = dims[1] if len(dims) == 2 and isinstance(dims[1], int) else None
        self._longest = longest = self._fixed or folder.longest
        self._tokenizer.enable_truncation(longest)
        self._tokenizer.no_padding()
        if self._uncut is not None:
            self._uncut.no_truncation()
            self._uncut.no_padding()
        padding = folder.config.get("pad_token_id")
        self._padding = padding if isinstance(padding, int) else 0
        note(f"texts: tokenized by {hub.TOKENIZER}, at most {longest} tokens")

    def make_blocks(self, row: Mapping[str, Any], where: str) -> Iterator[NamedArrays]:
        """Yield one row as a sample; two sentences to compare as two where they have no score.

        Raises:
            BadData: A text is missing, or a label does not fit it.
        """
        text: Any = row.get(TEXT)
        pair: Any = row.get(PAIR)
        for name, value in ((TEXT, text), (PAIR, pair if PAIR in row else "")):
            words = value if isinstance(value, (list, tuple)) else [value]
            if not all(isinstance(word, str) for word in words):
                raise BadData(f"{where}: column '{name}' holds no text", fix="leave such rows out")
        if PAIR not in row and self._folder.task == hub.QUESTIONS:
            raise BadData(
                f"{where}: a question without the text that has its answer",
                fix=f"give that in column {PAIR}",
            )
        compares = PAIR in row and self._folder.task == hub.SIMILARITY
        label = row.get(SCORE) if row.get(SCORE) not in (None, "") else row.get(LABEL)
        if compares and label in (None, ""):
            for part in (text, pair):
                yield from self.make_blocks({TEXT: part, GROUP: row.get(GROUP, where)}, where)
            return
        if compares:
            encodings = [self._encode(text), self._encode(pair)]
            samples = [(self._fill_inputs(encodings), encodings)]
        else:
            parts = self.tokenize(text, pair)
            samples = [({**part.inputs}, [part.encoding]) for part in parts]
            if self._keeps:
                self.kept[where] = parts
        for columns, encodings in samples:
            if label in (None, "") and self._folder.task == hub.GENERATION:
                columns[LABEL] = np.array([[*encodings[0].ids[1:], UNLABELLED]])
            elif label not in (None, ""):
                columns[LABEL] = self._number_label(label, encodings, where)
            if row.get(GROUP) not in (None, ""):
                columns[GROUP] = np.array(str(row[GROUP]))
            yield NamedArrays(where, {n: Column.from_array(a) for n, a in columns.items()})

    def tokenize(
        self, text: str | Sequence[str], pair: str | Sequence[str] | None = None
    ) -> list[TokenizedText]:
        """Return a text or a pair as inputs of one row; it is cut at the model's limit.

        Of a question that is to be answered there are several, each with a part of its text.
        """
        parts = (text,) if pair is None else (text, pair)
        texts, starts = zip(*map(_join_words, parts), strict=True)
        encodings = [] if pair is None else self._cut_windows(text, pair)
        return [
            TokenizedText(texts, self._fill_inputs([encoding]), encoding, starts)
            for encoding in encodings or [self._encode(text, pair)]
        ]

    def _encode(self, text: Any, pair: Any = None) -> Any:
        return self._tokenizer.encode(text, pair, is_pretokenized=not isinstance(text, str))

    def _cut_windows(self, question: Any, text: Any) -> list[Any]:
        """Return a question with each part of a text; nothing where it leaves no room for one."""
        if (tokenizer := self._uncut) is None:
            return []
        first, second = (
            tokenizer.encode(x, is_pretokenized=not isinstance(x, str), add_special_tokens=False)
            for x in (question, text)
        )
        length = min(self._longest, _WINDOW)
        room = length - len(first.ids) - tokenizer.num_special_tokens_to_add(is_pair=True)
        if room < 1:
            return []
        second.truncate(room, stride=min(_OVERLAP, length // 2, room - 1))
        return [tokenizer.post_process(first, part) for part in (second, *second.overflowing)]

    def _fill_inputs(self, encodings: Sequence[Any]) -> dict[str, NDArray[Any]]:
        """Return input -> rows of one length."""
        length = self._fixed or max(len(encoding.ids) for encoding in encodings)
        filled: dict[str, NDArray[Any]] = {}
        for name, attribute in _ATTRIBUTES.items():
            if name in self._specs:
                rows = np.full((len(encodings), length), self._padding if name == IDS else 0)
                for place, encoding in enumerate(encodings):
                    values = getattr(encoding, attribute)
                    rows[place, : len(values)] = values
                filled[name] = rows
        if PLACES in self._specs:
            filled[PLACES] = np.tile(np.arange(length), (len(encodings), 1))
        typed = {n: rows.astype(parse_dtype(self._specs[n].dtype)) for n, rows in filled.items()}
        inputs = tuple(self._specs.values())
        shapes = list_cache_shapes(self._folder, inputs, len(encodings))
        return typed | {
            name: make_initial_state(self._specs[name], StatePair("", name), typed, inputs, shapes)
            for name in self._specs
            if name not in typed and StatePair("", name).grows
        }

    def _number_label(self, label: Any, encodings: Sequence[Any], where: str) -> NDArray[Any]:
        """Return a label as a metric takes it: a number, or one a token [1, tokens]."""
        if not isinstance(label, (list, tuple)):
            value = np.array(self._find_number(label, where))
            return value if len(encodings) > 1 else value[None]
        numbers = [self._find_number(entry, where) for entry in label]
        words = encodings[0].word_ids
        if (count := max((w for w in words if w is not None), default=-1) + 1) > len(numbers):
            raise BadData(
                f"{where}: wrong number of labels: Got {len(numbers)}, expected {count}",
                fix="give text as a list of words, and one label a word",
            )
        firsts = [word is not None and word not in words[:at] for at, word in enumerate(words)]
        pairs = zip(words, firsts, strict=True)
        aligned = [numbers[word] if first else UNLABELLED for word, first in pairs]
        length = self._fixed or len(aligned)
        return np.array([aligned + [UNLABELLED] * (length - len(aligned))])

    def _find_number(self, label: Any, where: str) -> float | int:
        """Return the number of a class by its name; a number is one already."""
        if isinstance(label, (int, float)):
            return label
        classes = self._folder.classes
        if label in classes:
            return classes.index(label)
        for kind in (int, float):
            try:
                return kind(label)
            except ValueError:
                continue
        fix = suggest_names(str(label), classes) if classes else "give numbers"
        raise BadData(f"{where}: '{label}' is no class of the model", fix=fix)


def list_cache_shapes(
    folder: HubFolder | None, inputs: Sequence[TensorSpec], rows: int = 1
) -> dict[str, tuple[int, ...]]:
    """Return input -> shape of the cache before the first token, as a folder's settings say it."""
    if folder is None or folder.task != hub.GENERATION or (sizes := folder.cache_sizes) is None:
        return {}
    caches = (spec for spec in inputs if StatePair("", spec.name).grows)
    return {
        spec.name: (rows, sizes[0], 0, sizes[1]) for spec in caches if len(spec.shape or ()) == 4
    }


def _join_words(text: str | Sequence[str]) -> tuple[str, Sequence[int] | None]:
    """Return a text, and of each word its first character where it is given as words."""
    if isinstance(text, str):
        return text, None
    return " ".join(text), [0, *accumulate(len(word) + 1 for word in text)]


def open_sentences(
    folder: HubFolder | None, inputs: Sequence[TensorSpec], note: Note, *, answers: bool = False
) -> Sentences | None:
    """Return what tokenizes for a model; None where its folder has no tokenizer, or it takes none.

    Args:
        answers: Texts are to be answered; see `Sentences`.

    Raises:
        BadData: As `Sentences`.
    """
    names = checks.specs_by_name(inputs)
    if folder is None or IDS not in names or TEXT in names:
        return None
    if not (folder.folder / hub.TOKENIZER).is_file():
        return None
    return Sentences(folder, inputs, note, answers=answers)


def read_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where a row is from and its columns: lines of a .txt, or a .csv with a header.

    Raises:
        BadData: The file cannot be read, or a row has more columns than the header.
    """
    with arrays.open_text(path) as file:
        if path.suffix.lower() == ".txt":
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path.name} line {number}", {TEXT: line.strip()}
            return
        try:
            for number, row in enumerate(csv.DictReader(file), 1):
                if None in row or TEXT not in row:
                    raise BadData(
                        f"{path.name} row {number}: no column '{TEXT}', or more than the header",
                        fix=f"name the columns in the first line: {', '.join(COLUMNS)}",
                    )
                yield f"{path.name} row {number}", row
        except csv.Error as error:
            raise ValueError(str(error)) from error
