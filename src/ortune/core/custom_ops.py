"""Libraries of custom operators, given to the backends that take some."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ortune.core.backend import Backend
from ortune.core.errors import BadSettings
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse_list, with_field


def equipped(on: str, custom_ops: Sequence[str]) -> str:
    """Return a spelling of backends with the libraries given to every one.

    ``auto`` becomes those backends that run here and take libraries.

    Raises:
        BadSettings: One that is named takes none.
    """
    if not custom_ops:
        return on
    if on.strip() == "auto":
        kinds = [catalog.load(Backend, name) for name in catalog.names(Backend)]
        fit = [kind for kind in kinds if kind.automatic and _takes_custom_ops(kind)]
        on = ",".join(kind.name() for kind in fit if kind().missing() is None)
    for backend, _ in parse_list(Backend, on):
        if not _takes_custom_ops(type(backend)):
            raise BadSettings(
                f"--custom-ops: backend '{backend.name()}' takes no custom operators; they are "
                "onnxruntime's",
                fix="use --on cpu",
            )
    return with_field(on, "custom_ops", tuple(custom_ops))


def _takes_custom_ops(kind: type[Backend]) -> bool:
    return any(field.name == "custom_ops" for field in dataclasses.fields(kind))
