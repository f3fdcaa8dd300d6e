"""The contract between a caller and its worker process: one JSON file and one folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.errors import Interruption
from ortune.core.workload import Workload
from ortune.measurement.workloads.latency import Latency

MAIN = ""  # name of the only model where a job has one


@dataclass(frozen=True)
class WorkerJob:
    """What a worker loads before it answers commands.

    Attributes:
        models: Name -> model file, absolute; one model is named "".
        feeds: Name -> stream file of its samples, absolute; may be empty.
        workload: How timed runs are driven, and how many samples are stacked into one.
        environment: Where the worker runs; see `measurement.environment`.
        engines: Folder of what providers build, in the place of the user's.
    """

    models: Mapping[str, Path]
    backend: Backend
    feeds: Mapping[str, Path]
    out: Path
    workload: Workload = field(default_factory=Latency)
    verbose: bool = False
    environment: str = HERE
    engines: Path | None = None

    formerly: ClassVar[Mapping[str, str]] = {"path": ""}


@dataclass(frozen=True)
class Failure:
    """Why a worker failed, and the command that shows it again.

    Attributes:
        fix: What the worker's own error says to do; empty for a crash.
        interruption: What ended it from outside; None where the work itself failed.
    """

    reason: str
    reproduce: str
    fix: str = ""
    interruption: Interruption | None = None


class Answering(Protocol):
    """What answers the commands of a worker: one, or several as one."""

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send one command and return its answer."""
