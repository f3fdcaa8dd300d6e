"""The models of a bundle that the reader opened, as functions of their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData, BadSettings, OrtuneError, gist
from ortune.engine.signature import check, wanted


class ReadModel:
    """One model of a bundle as a function of its inputs.

    Attributes:
        name: In messages.
        signature: Its `inputs` and `outputs`, each with `name`, `dtype` and `shape`.
    """

    def __init__(self, name: str, session: Any, signature: Any) -> None:
        self.name = name
        self.signature = signature
        self._session = session
        self._inputs = wanted(signature.inputs)

    def __call__(self, /, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Run once and return every output by name.

        Raises:
            BadData: The inputs do not fit the model; the text says ``Got`` and ``expected``.
            OrtuneError: The bundle was closed.
        """
        check(inputs, self._inputs, self.name)
        if self._session is None:
            raise OrtuneError(f"{self.name} is closed", fix="load it again, or call inside `with`")
        try:
            found: dict[str, NDArray[Any]] = self._session.run(inputs)
        except Exception as error:
            shapes = ", ".join(f"{name} {np.shape(one)}" for name, one in inputs.items())
            raise BadData(
                f"{self.name}: the runtime refused {shapes}: {gist(error)}",
                fix="give arrays whose dimensions agree with each other and with the model",
            ) from error
        return found

    def close(self) -> None:
        """Release the session."""
        self._session = None


class ReadBundle:
    """The models of an opened bundle; a context manager.

    Attributes:
        models: Name -> model; one alone is named ''.
        plan: What runs, as a person reads it.
        fallback: Why the original runs in place of a tuned model; empty when it does not.
    """

    def __init__(
        self, models: Mapping[str, ReadModel], plan: str, fallback: str, resources: ExitStack
    ) -> None:
        self.models = dict(models)
        self.plan = plan
        self.fallback = fallback
        self._resources = resources

    def __call__(self, /, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Run the only model once; see `ReadModel`."""
        if len(self.models) > 1:
            raise BadSettings(
                f"the bundle holds several models: {', '.join(self.models)}",
                fix=f"call model['{next(iter(self.models))}'](...)",
            )
        return next(iter(self.models.values()))(**inputs)

    def __getitem__(self, name: str) -> ReadModel:
        """Return one of several models."""
        if name not in self.models:
            held = ", ".join(f"'{one}'" for one in self.models)
            raise BadSettings(f"the bundle has no model '{name}'", fix=f"use {held}")
        return self.models[name]

    def close(self) -> None:
        """Close the sessions and remove the unpacked files; safe to call twice."""
        for model in self.models.values():
            model.close()
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
