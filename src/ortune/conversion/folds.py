"""What `--fold-preprocess` and `--fold-postprocess` say, as steps."""

from __future__ import annotations

import re
from pathlib import Path

from ortune.conversion.requests import ConversionRequest
from ortune.core import preprocess
from ortune.core.errors import BadData, BadSettings
from ortune.core.plugins import catalog, codec
from ortune.core.plugins.spelling import parse
from ortune.core.step import Transform

_CALL = re.compile(r"\s*([a-z0-9-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)


def folds(asked: ConversionRequest) -> list[Transform]:
    """Return the steps, in order.

    Raises:
        OrtuneError: The file, the size or a text cannot be read.
    """
    before, size = asked.fold_preprocess, asked.picture_size
    if before is None and size is not None:
        raise BadSettings("--picture-size is of --fold-preprocess", fix="give that too")
    first = [] if before is None else [_preprocess(Path(before), size)]
    return [*first, *map(_postprocess, asked.fold_postprocess)]


def _preprocess(path: Path, size: tuple[int, int] | None) -> Transform:

    if not path.is_file():
        raise BadData(f"{path} is not there", fix="give a preprocess.toml, as for --data")
    given = preprocess.read(path)
    known = set(codec.encode(preprocess.Preprocess()))
    if unknown := sorted(given.keys() - known):
        raise BadData(
            f"{path} has a key '{unknown[0]}'", fix=f"its keys are: {', '.join(sorted(known))}"
        )
    fields = {key: value for key, value in given.items() if key != "dtype"}
    if size is not None:
        fields["size"] = list(size)
    try:
        return codec.build(catalog.load(Transform, "fold-preprocess"), fields)
    except BadSettings as error:
        raise BadData(f"{path}: {error.what}", fix=error.fix) from None


def _postprocess(text: str) -> Transform:

    found = _CALL.fullmatch(text)
    if found is None:
        raise BadSettings(
            f"--fold-postprocess {text}", fix='write argmax, uint8, softmax or "top-k(k=5)"'
        )
    fields = f", {found[2]}" if found[2] and found[2].strip() else ""
    return parse(Transform, f"fold-postprocess(give={found[1]}{fields})")
