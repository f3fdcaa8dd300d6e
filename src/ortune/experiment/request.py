"""What the user asked for, unread."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import Any

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.errors import BadSettings
from ortune.core.plugins.user_function import here_counts, is_function
from ortune.core.workload import Workload
from ortune.measurement.job import MAIN
from ortune.workloads.latency import Latency


@dataclass(frozen=True)
class Request:
    """Models, data and wishes.

    Attributes:
        models: ONNX files; several are run together by `evaluate`.
        evaluate: ``pkg.module:function`` that scores running models, or empty.
        budget: Spelled; None derives it from the outputs.
        baseline: Where the untouched models run.
        shapes: Input name -> shape of made-up samples.
        ranges: Input name -> (low, high) of made-up samples.
        on: The backends to search, as spelled.
        seconds: Time budget: it limits how many samples are scored.
        whole: Score all samples as one part: for comparing two given files.
        ranges_from: File of ranges that answers quantizers first.
        augment: Altered copies that quantizers observe too, spelled; nothing scores them.
    """

    models: tuple[Path, ...]
    data: str | Path | Callable[[], Any] | None = None
    labels: str | Path | None = None
    calibration: str | Path | Callable[[], Any] | None = None
    evaluate: str = ""
    budget: str | None = None
    baseline: Backend = field(default_factory=Cpu)
    workload: Workload = field(default_factory=Latency)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    seconds: float = 180
    memory_limit: int | None = None
    verbose: bool = False
    command: str = ""
    on: str = ""
    whole: bool = False
    ranges_from: Path | None = None
    augment: str = ""

    @property
    def names(self) -> dict[str, Path]:
        """Name -> file; the only model is named "".

        Raises:
            BadSettings: Several models without an evaluate function, or two of one name.
        """
        if self.data is None and (self.calibration or self.labels):
            raise BadSettings(
                "--calibration and --labels go with --data; made-up samples have no labels, and "
                "--evaluate brings its own",
                fix="leave them out, or give --data too",
            )
        if self.data is None and self.augment:
            raise BadSettings(
                "--augment alters samples, and none are given",
                fix="give --data too; calls that --evaluate makes are not altered",
            )
        if len(self.models) == 1:
            return {MAIN: self.models[0]}
        if self.ranges_from is not None:
            raise BadSettings(
                f"--ranges-from is of one model, and {len(self.models)} are given",
                fix="leave it out: they are calibrated on the calls that --evaluate makes",
            )
        if not self.evaluate:
            raise BadSettings(
                f"{len(self.models)} models are given without --evaluate",
                fix="give --evaluate pkg.module:function, which runs them together",
            )
        found = {path.stem: path for path in self.models}
        if len(found) < len(self.models):
            raise BadSettings("two models have the same file name", fix="rename one of them")
        return found

    @property
    def custom_ops(self) -> tuple[str, ...]:
        """Libraries of operators that the models need: those of the baseline."""
        return self.baseline.custom_ops

    def functions_digest(self) -> str:
        """Digest the user's functions and what the baseline reads: edited ones are another job."""
        here_counts()
        metric = (self.budget or "").partition(">")[0].partition("<")[0].strip()
        fields = [getattr(self.baseline, name) for name in self.baseline.reads]
        read = [text for one in fields for text in ([one] if isinstance(one, str) else one)]
        named = [*filter(is_function, (self.evaluate, metric)), *read]
        files = [_source(name) for name in named]
        texts = [_digest(path) for path in files if path is not None]
        return " ".join([self.evaluate, *texts])


def _source(name: str) -> Path | None:
    """Return the file so named, or that of ``pkg.module:function``; None where none is."""
    if name and Path(name).is_file():
        return Path(name)
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name.partition(":")[0].replace("-", "_"))
        if spec and spec.origin:
            return Path(spec.origin)
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
