"""What `bench` and `compare` are asked."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar

from ortune.core.custom_ops import CustomOpsRequest
from ortune.core.errors import BadSettings
from ortune.core.fields import Counts, Duration, Field, Files, Models, Option, Words
from ortune.core.plugins import user_function
from ortune.core.request import DataRequest, Request, request
from ortune.core.workload import Workload

_OF_ROWS = ("batch", "workload", "self_check")


@request
class Bench(CustomOpsRequest, DataRequest):
    """Time MODELS on backends in turns, in fresh processes; raw samples are kept.

    Every model is timed on every backend, at every level and thread count, at every batch. Ratios
    are to the first row of a batch. A row is called the fastest only if the 99 % intervals of its
    ratios to all others exclude 1. Without --data the inputs are made up.

    Every plan of a bundle is timed, with the settings that it was packed with.

    With --end-to-end a run is one call of your function frame(engine, sample); the model's share
    of its time is shown beside it.

    Exit code 1 if --self-check finds that the first row differs from itself.

    Example:
        ortune bench model.onnx --on cpu,openvino --threads 1,2
        ortune bench before.onnx after.onnx --data samples/ --json out.json
        ortune bench model.onnx --batch 1,8 --on "cpu(level=all),cpu" --self-check
        ortune bench model.onnx model.ortune --end-to-end camera:frame --data camera:samples

    Attributes:
        models: Model files, or bundles.
        on: Where to run: backends by comma, such as "cpu(threads=2),openvino"; may be repeated.
        threads: Time every backend at these thread counts.
        levels: Time at these graph levels, where a backend has levels.
        batch: Samples stacked into one run, such as 1,8: each is timed, and rows of one batch are
            compared; 0 takes them as they come.
        workload: How runs are driven: "throughput(sessions=2)", "arrivals(rate=50)".
        self_check: Time the first row against itself too (an A/A test).
        time: Time to measure; more where many rows need it.
        sets: Sets of fresh processes; fewer are quicker, and intervals wider.
        end_to_end: Time FILE.py:NAME, which gets (engine, sample), and the model's part of it.
        environment: Environments to time in, by comma: names of `ortune doctor env list`, and
            "here".

    Raises:
        OrtuneError: A model, an option or the data cannot be used, or a first row does not run.
    """

    formerly: ClassVar[dict[str, str]] = {"seconds": "time", "batches": "batch"}

    models: Models
    _: KW_ONLY
    on: Annotated[str | Sequence[str], Option("BACKENDS")] = "cpu"
    threads: Counts = Counts((), Option("N,...", per_cpu=2))
    levels: Words = Words((), Option("LEVEL,...", hidden=True))
    batch: Counts = Counts((), Option("N,..."))
    workload: Annotated[str | Workload, Option("SPEC")] = "latency"
    self_check: bool = False
    time: Duration = Duration("10s", Option("DURATION", low=0.1))
    sets: Annotated[int, Option(low=1, high=1000, hidden=True)] = 5
    end_to_end: Annotated[str, Option("FILE.py:NAME")] = ""
    environment: Words = Words((), Option("NAME,...", shown="here"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.end_to_end:
            user_function.demand_own(self.end_to_end, *user_function.FRAME)
            for name in _OF_ROWS:
                if getattr(self, name) not in (0, False, (), "latency"):
                    option = f"--{name.replace('_', '-')}"
                    raise BadSettings(
                        f"--end-to-end and {option} both say what is run",
                        fix=f"leave {option} out",
                    )


class Thresholds(Field[Mapping[str, float], Sequence[str] | None]):
    """Metric -> share by which it may grow, or texts such as ``10%``, ``p99=0.2``.

    In a text a number above 1 needs its per cent sign: ``10`` is either 10 % or tenfold.
    """

    metavar = "[METRIC=]SHARE"
    several = True

    def read(self, value: Any) -> Mapping[str, float]:
        """Convert to a mapping; a share without a metric is that of the latency."""
        if isinstance(value, Mapping):
            return {str(name): float(share) for name, share in value.items()}
        texts = (value,) if isinstance(value, str) else value or ()
        return dict(map(self._read_threshold, texts))

    def _read_threshold(self, text: str) -> tuple[str, float]:
        name, separator, share = text.rpartition("=")
        try:
            limit = float(share.removesuffix("%")) / (100 if share.endswith("%") else 1)
        except ValueError:
            raise BadSettings(
                f"cannot read the threshold '{text}'", fix="write 5%, 0.05 or p99=10%"
            ) from None
        if limit > 1 and not share.endswith("%"):
            raise BadSettings(
                f"the threshold '{text}' is {100 * limit:g} %: above 1 it needs its % sign",
                fix=f"write {name + separator}{share}%, or {name + separator}{100 * limit:g}%",
            )
        return name if separator else "latency", limit

    def spell(self, value: Mapping[str, float]) -> list[str]:
        """Write one text a metric."""
        return [
            f"{name}={share!r}" if share <= 1 else f"{name}={100 * share!r}%"
            for name, share in value.items()
        ]


class MatchFields(Words):
    """Fields by which rows are paired; "order" pairs them as they come."""

    metavar = "FIELD,..."

    def read(self, value: Any) -> tuple[str, ...]:
        """Convert to a tuple, empty for "order"."""
        return () if value == "order" else super().read(value)


@request
class Compare(Request):
    """Compare each of FILES with the first, row by row; exit code 1 if one regressed.

    FILES are what `bench --json FILE.json` or `loadtest --json FILE.json` wrote. A latency
    regression is a ratio whose whole 99 % interval is over the threshold; the interval includes
    what varies between two occasions. On another machine ratios to a common first row are
    compared, or nothing is judged.

    Example:
        ortune compare main.json branch.json --threshold 10%
        ortune compare old.json new.json --threshold memory=5% --markdown comment.md

    Attributes:
        files: Two or more; the first is the reference.
        thresholds: How much slower is too slow, such as 10% (5% if not given); others are judged
            if named: p99=0.2, memory=10%, size=1%, load=50%.
        by: Fields by which rows are matched; "order" matches them by position.
        across_machines: Judge times of different machines too.
        relative: Judge ratios to the first row, not times.

    Raises:
        OrtuneError: A file cannot be read, an option is wrong, or no row matches.
    """

    files: Files
    _: KW_ONLY
    thresholds: Thresholds = Thresholds((), Option("[METRIC=]SHARE", "--threshold"))
    by: MatchFields = MatchFields(("model", "backend", "workload", "batch"))
    across_machines: bool = False
    relative: bool = False
