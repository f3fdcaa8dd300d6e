"""Run a written package beside its bundle: answers and time; write OpenVINO's format."""

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ortune.backends.openvino import Openvino
from ortune.bundle.engine.golden import TOLERANCE_DB, snr_db
from ortune.bundle.target import Replay, Source
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.errors import BadModel, BadSettings
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import stored
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data.stream import Stream
from ortune.measurement import process
from ortune.measurement.environment import find_interpreter
from ortune.measurement.job import WorkerJob
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import BaselineFailed, Effort, fresh_pairs

ANOTHER = "pack another trial (--plan KEY)"
_NUMBER = re.compile(r"[1-9][0-9]{0,5}")
_MOST_THREADS = 4096
"""Threads of one model at most."""
_WORDS = {"onnxruntime": "ort"}
"""Distribution -> what the names of its environments begin with, where it is not itself."""
EFFORT = Effort(min_blocks=3, max_blocks=12, seconds=1.0, decide=False)
"""Of each fresh pair of bundle and package."""


def count_threads(source: Source) -> int:
    """Return the threads of a plan; where it takes all CPUs, those of the machine it ran on.

    Other servers take 0 for a number of their own: a package always says how many. Raises
    BadModel: they are more than any machine has CPUs, and where a package is started nobody lowers
    them.
    """
    text = source.manifest.machine.get("effective cpus", "")
    measured = int(text) if _NUMBER.fullmatch(text) else effective_cpus()
    count = source.backend.threads or measured
    if count > _MOST_THREADS:
        threads_text = wording.format_count(count, "thread")
        raise BadModel(f"its settings ask for {threads_text}", fix=stored.DISTRUST)
    return count


def find_environment(distribution: str, release: str) -> tuple[str, str | None]:
    """Return the environment that has a version of a runtime, and how to add it if there is none.

    This process's own serves where it has that version.
    """
    try:
        if version(distribution) == release:
            return HERE, None
    except PackageNotFoundError:
        pass
    name = f"{_WORDS.get(distribution, distribution)}-{release}"
    try:
        find_interpreter(name)
    except BadSettings:
        return name, f"ortune doctor env add {distribution}=={release}"
    return name, None


def replay_in_workers(
    source: Source,
    models: Mapping[str, Path],
    backend: Backend,
    by: str,
    *,
    environment: str = HERE,
) -> Replay:
    """Run a package's models in workers, and time them beside the bundle's own.

    No more threads than there are CPUs here, on both sides. Wrong answers are not timed.
    `environment`: where the package runs; the bundle's runs here. Raises BadModel: it does not
    run.
    """
    cpus = effective_cpus()
    here, _ = stored.limit_threads(source.backend, cpus)
    there, _ = stored.limit_threads(backend, cpus)
    with open_temporary_folder() as temporary:
        root = Path(temporary).resolve()
        worst = float("inf")
        for name, path in models.items():
            inputs, expected = source.streams(name)
            job = _make_job({"": path}, there, {"": inputs}, root, environment)
            answers = root / f"answers-{len(list(root.iterdir()))}"
            with process.translate_failures(f"the package does not run under {by}", ANOTHER):
                actual = process.compute_outputs(job, range(len(Stream(job.feeds[""]))), answers)
            pairs = zip(Stream(expected), actual, strict=True)
            worst = min(worst, *(snr_db(reference, answer) for reference, answer in pairs))
        if not worst >= TOLERANCE_DB:
            return Replay(by, worst)
        feeds = {name: source.streams(name)[0] for name in models}
        starts = (
            lambda: process.Worker(_make_job(source.models, here, feeds, root, HERE)),
            lambda: process.Worker(_make_job(models, there, feeds, root, environment)),
        )
        return Replay(by, worst, measure_overhead(*starts))


def measure_overhead(
    bundle: Callable[[], process.Worker], package: Callable[[], process.Worker]
) -> tuple[float, float, float] | None:
    """Return packaged time over the bundle's; None where the bundle's plan does not run here."""
    try:
        with process.translate_failures("the package does not run", ANOTHER):
            pairs = [
                fresh_pair.pair for fresh_pair in fresh_pairs(bundle, package, stats.PAIRS, EFFORT)
            ]
    except BaselineFailed:
        return None
    ratio = stats.latency_ratio(pairs)
    return ratio.value, ratio.low, ratio.high


def _make_job(
    models: Mapping[str, Path],
    backend: Backend,
    feeds: Mapping[str, Path],
    root: Path,
    environment: str,
) -> WorkerJob:
    out = process.worker_folder(root / "workers", "package")
    files = {name: path.absolute() for name, path in models.items()}
    return WorkerJob(files, backend, feeds, out, environment=environment)


def find_missing() -> str | None:
    """Return what must be installed to write OpenVINO's own format; None if it is there."""
    return None if importlib.util.find_spec("openvino") else "pip install openvino"


def explain_openvino_refusal(source: Source) -> str:
    """Return why OpenVINO cannot run a plan as it was measured; empty when it can."""
    if not isinstance(source.backend, Openvino):
        return f"it was measured on '{source.backend.name()}', not on OpenVINO"
    if source.backend.device != "cpu":
        return f"it was measured on OpenVINO's device {source.backend.device}, not on its CPU"
    return ""


def read_openvino_backend(source: Source) -> Openvino:
    """Return the settings of an OpenVINO plan, with its threads as a number."""
    backend = source.backend
    assert isinstance(backend, Openvino)
    return replace(backend, threads=count_threads(source))


def write_models(source: Source, files: Mapping[str, Path], environment: str = HERE) -> None:
    """Write tuned models and their ``.bin`` in a worker; BadModel where one does not convert."""
    for name, out in files.items():
        with process.translate_failures("OpenVINO does not convert the model", ANOTHER):
            process.optimize_in_worker(source.models[name], Openvino(threads=1), out, environment)


def replay_models(
    source: Source,
    files: Mapping[str, Path],
    properties: Mapping[str, str],
    environment: str = HERE,
) -> Replay:
    """Open the written files with the package's properties; BadModel where one does not run."""
    backend = read_openvino_backend(source)
    if properties != (expected := backend.build_properties()):
        raise BadModel(
            f"the package says {dict(properties)}, and the plan was tuned as {expected}",
            fix="pack again",
        )
    release = version("openvino") if environment == HERE else environment.partition("-")[2]
    return replay_in_workers(
        source, files, backend, f"openvino {release}", environment=environment
    )
