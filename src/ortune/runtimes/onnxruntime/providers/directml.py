"""onnxruntime's DirectML provider: what it demands of a session, and one caller at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ortune.core.session import Session, Tensors
from ortune.runtimes.onnxruntime import session as ort

PROVIDER = "DmlExecutionProvider"
PACKAGE = "onnxruntime-directml"
ELSEWHERE = "DirectML is a part of Windows; use --on cpu, or cuda, here"


@dataclass(frozen=True)
class Configuration:
    """What a session is told.

    Attributes:
        options: Of the provider. With a device, performance preference and filter are ignored
            (onnxruntime dml_provider_factory.cc, CreateFromProviderOptions), so none is given.
        keys: Of the session. Graph capture is left out: it needs bound inputs and outputs, and
            without them a second run answers with what the first left.
    """

    options: Mapping[str, str]
    keys: Mapping[str, str]


def configuration(device: int, *, metacommands: bool, graph_fusion: bool) -> Configuration:
    """Return the provider's options and the session's keys; only what is not the default."""
    options = {"device_id": str(device)}
    if not metacommands:
        options["disable_metacommands"] = "true"
    return Configuration(options, {} if graph_fusion else {"ep.dml.disable_graph_fusion": "1"})


def missing(system: str) -> str | None:
    """Return what keeps DirectML from running, or None.

    Args:
        system: As `platform.system` calls it.
    """
    if system != "Windows":
        return ELSEWHERE
    if PROVIDER not in ort.providers():
        return f"pip uninstall -y onnxruntime && pip install {PACKAGE}"
    return None


def prepared(made: Any, told: Configuration) -> None:
    """Set a session's options as DirectML demands.

    Memory patterns and parallel execution are not supported by the provider (its documentation,
    Configuration options).
    """
    import onnxruntime

    made.enable_mem_pattern = False
    made.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    for key, value in told.keys.items():
        made.add_session_config_entry(key, value)


@contextmanager
def session(path: Path, made: Any, told: Configuration) -> Iterator[Session]:
    """Open a session of which DirectML takes a part.

    Raises:
        BackendMissing: The installed onnxruntime lacks it, or it took no node.
    """
    prepared(made, told)
    chain = [(PROVIDER, told.options)]
    with ort.session(path, made, provider=PROVIDER, chain=chain) as opened:
        yield _OneAtATime(opened.inner)


class _OneAtATime(ort.OrtSession):
    """A session that may not run in two threads at once (DirectML's documentation)."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._turn = threading.Lock()

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        with self._turn:
            return super().run(feeds)
