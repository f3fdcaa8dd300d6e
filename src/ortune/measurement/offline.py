"""Optimize a model file offline by onnxruntime's own rewrites, in a worker."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.backends.cpu import Cpu
from ortune.core.errors import BadModel
from ortune.core.plugins import codec
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker, WorkerFailed


def optimize_offline(
    model: Path, level: str, out: Path, *, custom_ops: tuple[str, ...] = ()
) -> Path:
    """Write `model` as the runtime rewrites it at `level` to `out`.

    Args:
        level: disabled, basic, extended or all; ``all`` binds the file to this hardware.

    Raises:
        BadModel: The runtime does not load the model.
    """
    backend = codec.build(Cpu, {"level": level, "custom_ops": custom_ops})
    with TemporaryDirectory(prefix="ortune-") as folder:
        job = WorkerJob({MAIN: model.resolve()}, backend, {}, Path(folder))
        try:
            with Worker(job) as worker:
                worker.ask("optimize", out=str(out.resolve()))
        except WorkerFailed as error:
            raise BadModel(
                f"{model.name} is not optimized: {error.failure.reason}",
                fix="run `ortune inspect` on it",
            ) from None
    return out
