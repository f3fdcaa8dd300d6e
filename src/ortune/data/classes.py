"""What numbers stand for: class folders, and the letters of a model that spells (CTC)."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortune.core import hub, regular_file
from ortune.core.errors import BadData
from ortune.core.hub import HubFolder
from ortune.data import arrays, sizes
from ortune.data.checks import Note

CLASSES_FILE = "classes.txt"
"""Beside class folders: one class a line, in the order in which the model numbers them."""
_KEYS = ("names", "classes", "class_names", "labels", "id2label", "categories")
"""Of a model's metadata, as exporters write them."""
_LONGEST = 2**20
"""Characters of metadata that are read."""
FROM_FOLDERS = "labels from sub-folder names"
"""How the note on their numbers begins."""
_SHOWN = 5


def read_classes(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return a model's class names in the order of their numbers; empty where it has none.

    A list, or a mapping from the numbers 0, 1, ..., as JSON or Python writes it, or names with
    commas or line ends between them.
    """
    by_key = {key.lower(): text for key, text in metadata.items()}
    for key in _KEYS:
        if names := _parse_names(by_key.get(key, "")):
            return names
    return ()


def _parse_names(text: str) -> tuple[str, ...]:
    if not text or len(text) > _LONGEST:
        return ()
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = read(text)
            if isinstance(value, Mapping):
                with suppress(TypeError, ValueError):
                    numbered = {int(key): name for key, name in value.items()}
                    value = [numbered.get(at) for at in range(len(numbered))]
            if not isinstance(value, (list, tuple)) or not value:
                return ()
            return tuple(value) if all(isinstance(name, str) for name in value) else ()
    separator = "\n" if "\n" in text.strip() else ","
    names = tuple(name.strip() for name in text.strip().split(separator))
    return names if len(names) > 1 and all(names) else ()


def number_classes(
    files: Sequence[Path], folder: Path, note: Note, classes: Sequence[str] = ()
) -> dict[str, int]:
    """Return the number of every sub-folder that has files, and note the mapping.

    Names that are all numbers are the labels themselves. Else the file ``classes.txt`` in the
    folder says which number a name has, else the model does, else it is their place by name.

    Args:
        classes: The model's own, in the order of their numbers.

    Raises:
        BadData: The file cannot be read, or does not have a folder's name.
    """
    names = sorted({path.parent.name for path in files if path.parent != folder})
    if len(names) < 2:
        return {}
    if all(name.isdecimal() for name in names):
        return {name: int(name) for name in names}
    listed = folder / CLASSES_FILE
    source = f"numbered by name, as there is no {CLASSES_FILE}"
    numbers: dict[str, int] = {name: at for at, name in enumerate(names)}
    if listed.is_file():
        with arrays.translate_read_errors(listed):
            sizes.require_memory(8 * listed.stat().st_size, f"classes in {listed}")
            lines = regular_file.read_bytes(listed).decode("utf-8-sig").splitlines()
        lines = [line.strip() for line in lines]
        numbers, missing = _find_numbers(names, lines)
        if missing:
            raise BadData(
                f"{listed} has no class '{missing[0]}', and there is a folder of that name",
                fix="write one class a line, in the model's order, as the folders are called",
            )
        source = f"by {CLASSES_FILE}"
    elif classes:
        model_numbers, missing = _find_numbers(names, classes)
        if missing:
            source += f"; the model's metadata has no '{missing[0]}'"
        else:
            numbers, source = model_numbers, "by the model's metadata"
    ordered = sorted(numbers.items(), key=lambda item: item[1])
    shown = ", ".join(f"{at} = {name}" for name, at in ordered[:_SHOWN])
    note(f"{FROM_FOLDERS}, {source}: {shown}{', ...' if len(names) > _SHOWN else ''}")
    return numbers


def _find_numbers(
    folders: Sequence[str], classes: Sequence[str]
) -> tuple[dict[str, int], list[str]]:
    """Return the number of each folder among the classes, and the folders that are none."""
    places: dict[str, int] = {}
    for at, line in enumerate(classes):
        for spelling in _list_spellings(line):
            places.setdefault(spelling, at)
    numbers = {
        name: next((places[text] for text in _list_spellings(name) if text in places), -1)
        for name in folders
    }
    return numbers, [name for name, at in numbers.items() if at < 0]


def _list_spellings(name: str) -> Iterator[str]:
    """Yield a name as it is compared, and the synset that a line of ImageNet's begins with."""
    plain = re.sub(r"[\s_-]+", " ", name).strip().casefold()
    yield plain
    if re.fullmatch(r"n\d{8} .*", plain):
        yield plain.split()[0]


_DELIMITER, _UNKNOWN, _UPPER = "word_delimiter_token", "unk_token", "do_lower_case"


@dataclass(frozen=True)
class Alphabet:
    """Tokens of `vocab.json` and how a folder's tokenizer joins them."""

    tokens: Mapping[int, str]  # by their numbers
    blank: int  # number of the token that stands for no letter
    delimiter: str = "|"  # the token between words
    unknown: str = "<unk>"  # what stands for numbers and letters that have no token
    lowers: bool = False  # tokens are capitals, and texts are not

    @property
    def words_end(self) -> int:
        """Number of the token between words; -1 without one."""
        return next((n for n, token in self.tokens.items() if token == self.delimiter), -1)

    def join_tokens(self, numbers: Sequence[int]) -> str:
        """Return the text of numbers, as transformers' tokenizer decodes them."""
        tokens = (self.tokens.get(number, self.unknown) for number in numbers)
        text = "".join(" " if token == self.delimiter else token for token in tokens).strip()
        return text.lower() if self.lowers else text

    def number_text(self, text: str) -> list[int]:
        """Return the numbers of a text's letters, in the case that the alphabet has."""
        numbers = {token: number for number, token in self.tokens.items()}
        letters = self.delimiter.join(text.split()) if self.delimiter else text
        spelled = (
            next((numbers[x] for x in (c, c.upper(), c.lower()) if x in numbers), None)
            for c in letters
        )
        unknown = numbers.get(self.unknown, -1)
        return [unknown if number is None else number for number in spelled]


def read_alphabet(folder: HubFolder | None) -> Alphabet | None:
    """Return the alphabet of a folder; None where its model does not spell, or has no letters.

    Raises BadModel: a file of it cannot be read.
    """
    if folder is None or not folder.spells or not (folder.folder / hub.VOCABULARY).is_file():
        return None
    numbers: Any = hub.read_json(folder.folder / hub.VOCABULARY)
    path = folder.folder / "tokenizer_config.json"
    settings = hub.read_json(path) if path.is_file() else {}
    language = numbers.get(str(settings.get("target_lang")))
    numbers = language if isinstance(language, Mapping) else numbers  # one alphabet a language
    tokens = {number: token for token, number in numbers.items() if type(number) is int}
    added = settings.get("added_tokens_decoder")
    for number, token in added.items() if isinstance(added, Mapping) else ():
        if str(number).isdecimal() and isinstance(token, Mapping):
            tokens.setdefault(int(number), str(token.get("content")))
    delimiter = _read_token(settings, _DELIMITER, "|")
    unknown = _read_token(settings, _UNKNOWN, "<unk>")
    return Alphabet(tokens, folder.blank, delimiter, unknown, bool(settings.get(_UPPER)))


def _read_token(settings: Mapping[str, Any], key: str, usual: str) -> str:
    token = settings.get(key, usual)
    return str(token.get("content") if isinstance(token, Mapping) else token or "")
