"""One loaded model as a function of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ortune.core.errors import BadData, OrtuneError, gist
from ortune.core.session import Session
from ortune.engine.manifest import Signature
from ortune.engine.signature import check, wanted


class Call:
    """A session with its inputs checked. The overhead is a few microseconds a call.

    Attributes:
        name: The model's name, for messages.
        signature: What it takes and gives.
    """

    def __init__(self, name: str, session: Session, signature: Signature) -> None:
        self.name = name
        self.signature = signature
        self._session: Session | None = session
        self._inputs = wanted(signature.inputs)

    def __call__(self, /, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Run once and return every output by name.

        Raises:
            BadData: The inputs do not fit the model.
            OrtuneError: The engine was closed.
        """
        check(inputs, self._inputs, self.name)
        if self._session is None:
            raise OrtuneError(
                f"the engine of {self.name} is closed", fix="load it again, or call inside `with`"
            )
        try:
            return self._session.run(inputs)
        except OrtuneError:
            raise
        except Exception as error:
            raise BadData(
                f"{self.name}: the runtime refused {_shapes(inputs)}: {gist(error)}",
                fix="give arrays whose dimensions agree with each other and with the model",
            ) from error

    def placement(self) -> Mapping[str, int]:
        """Return execution provider -> nodes, from the runtime's own record; empty if unknown."""
        return self._session.placement() if self._session else {}

    def close(self) -> None:
        """Release the session."""
        self._session = None


def _shapes(inputs: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {getattr(v, 'shape', '')}" for k, v in inputs.items()) or "no inputs"
