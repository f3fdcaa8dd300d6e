"""The alphabet of a model that spells what it hears (CTC), as `vocab.json` has it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortune.core import hub
from ortune.core.hub import HubFolder

_DELIMITER, _UNKNOWN, _UPPER = "word_delimiter_token", "unk_token", "do_lower_case"


@dataclass(frozen=True)
class Alphabet:
    """Tokens of `vocab.json` and how a folder's tokenizer joins them.

    Attributes:
        tokens: By their numbers.
        blank: Number of the token that stands for no letter.
        delimiter: The token between words.
        unknown: What stands for numbers and letters that have no token.
        lowers: Tokens are capitals, and texts are not.
    """

    tokens: Mapping[int, str]
    blank: int
    delimiter: str = "|"
    unknown: str = "<unk>"
    lowers: bool = False

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

    Raises:
        BadModel: A file of it cannot be read.
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
