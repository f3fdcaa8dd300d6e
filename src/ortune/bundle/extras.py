"""What a bundle may carry beside its plans: how pictures are taken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ortune.core import preprocess
from ortune.core.errors import BadData
from ortune.core.study import Study
from ortune.engine.manifest import PREPROCESS, Signature
from ortune.engine.samples import pictures


def extras(
    study: Study,
    signatures: Mapping[str, Signature],
    given: str | Path | None = None,
) -> dict[str, bytes]:
    """Return member -> content.

    Args:
        signatures: Model name -> what it takes.
        given: A ``preprocess.toml``; the one that lay beside the run's images without it.

    Raises:
        BadData: The file cannot be read.
        BadModel: It fits no model, or is out of the bounds that a bundle has.
    """
    path = Path(study.root) / preprocess.SETTINGS if given is None else Path(given)
    if given is None and not path.is_file():
        return {}
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadData(
            f"cannot read {path}: {error.strerror or error}", fix="give a preprocess.toml"
        ) from error
    pictures.read(content, str(path), signatures)
    return {PREPROCESS: content}
