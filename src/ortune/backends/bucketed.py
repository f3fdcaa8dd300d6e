"""Another backend, called without the padding that its inputs carry."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ortune.core.backend import Backend, GraphLevel, Kind
from ortune.core.capabilities import Capabilities, State
from ortune.core.errors import BadSettings
from ortune.core.facts import Facts
from ortune.core.plugins import catalog, stored
from ortune.core.session import Recording, Session, Tensors
from ortune.core.workload import Workload


@dataclass(frozen=True)
class Bucketed(Backend):
    """Cuts padding off every call: down to the shortest bucket that holds all real positions.

    The mask and the inputs beside it are [batch, length, ...]. A call whose longest row fits no
    bucket, whose mask does not begin with a real position in every row, or whose inputs disagree
    about the length, runs as it is. Outputs of a length come back as long as the inputs were, with
    zeros beyond the bucket; padded positions inside it hold whatever the model computes there.
    Real positions are never changed. A model that computes with its padded positions answers
    otherwise: `ortune optimize --buckets` proves that it does not.

    Attributes:
        threads: Threads of the inner backend.
        inner: Where the model really runs.
        mask: Input that is 0 at padded positions and not 0 at real ones; none cuts nothing.
        inputs: Other inputs that are cut with it.
        outputs: Outputs that have the length as their second dimension.
        lengths: The buckets, rising.
        side: Where the padding is.
        custom_ops: Libraries of custom operators, for the inner backend.
    """

    title: ClassVar[str] = "padding cut off"
    automatic: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("custom_ops",)

    inner: Backend = field(default_factory=lambda: catalog.load_plugin(Backend, "cpu")())
    mask: Annotated[str, stored.NAME] = ""
    inputs: Annotated[tuple[str, ...], stored.items(stored.NAME, 4096)] = ()
    outputs: Annotated[tuple[str, ...], stored.items(stored.NAME, 4096)] = ()
    lengths: Annotated[tuple[int, ...], stored.items(stored.integer(1, 1 << 40), 4096)] = ()
    side: Literal["right", "left"] = "right"
    custom_ops: Annotated[tuple[str, ...], stored.CODE] = ()

    def __post_init__(self) -> None:
        if list(self.lengths) != sorted({n for n in self.lengths if n > 0}):
            raise BadSettings(
                f"bucketed(lengths={list(self.lengths)}): lengths must rise from 1 on",
                fix="write each once, the shortest first",
            )
        if code_fields := [name for name in self.inner.reads if getattr(self.inner, name)]:
            raise BadSettings(
                f"bucketed(inner={self.inner.name()}({code_fields[0]}=...)): an inner backend "
                "must not name your own code",
                fix="write bucketed(custom_ops=[...])",
            )
        if self.inner.threads:  # one place for them: what asks a backend asks this field
            object.__setattr__(self, "threads", self.threads or self.inner.threads)
            object.__setattr__(self, "inner", replace(self.inner, threads=0))

    # --- what the inner backend says --------------------------------------------------------

    def leave_out(self, optimizers: Sequence[str], level: GraphLevel | None) -> Self:
        return replace(self, inner=self.inner.leave_out(optimizers, level))

    @property
    def provider(self) -> str:  # type: ignore[override]
        return self.inner.provider

    @property
    def domains(self) -> frozenset[str]:  # type: ignore[override]
        return self.inner.domains

    @property
    def runs_on(self) -> Kind:
        return self.inner.runs_on

    @property
    def unverified(self) -> str:
        return self.inner.unverified

    @property
    def lossy(self) -> bool:
        """The inner backend's; cutting what a mask hides changes the order of sums only."""
        return self.inner.lossy

    @property
    def portable(self) -> bool:
        return self.inner.portable

    @property
    def planned_by_shape(self) -> frozenset[str]:
        return self.inner.planned_by_shape

    @property
    def arithmetic(self) -> frozenset[str]:
        return self.inner.arithmetic

    def missing(self) -> str | None:
        return self.inner.missing()

    def state(self, missing: str | None) -> State:
        return self.inner.state(missing)

    def builds_with(self, capabilities: Capabilities) -> Backend:
        return self.inner.builds_with(capabilities)

    def variants(
        self, facts: Facts, workload: Workload, capabilities: Capabilities
    ) -> Iterable[Self]:
        inner = self._resolve_inner().variants(facts, workload, capabilities)
        return map(self.wrap_backend, inner)

    def coordinates(
        self, facts: Facts, capabilities: Capabilities
    ) -> Mapping[str, Sequence[Self]]:
        neighbours = self._resolve_inner().coordinates(facts, capabilities)
        return {
            name: [self.wrap_backend(neighbour) for neighbour in values]
            for name, values in neighbours.items()
        }

    def takes(self, path: Path) -> Mapping[str, Sequence[str]]:
        return self._resolve_inner().takes(path)

    def wrap_backend(self, inner: Backend) -> Self:
        """Return the same buckets in front of another backend."""
        bare = replace(inner, custom_ops=()) if inner.custom_ops else inner  # type: ignore[call-arg]
        plain = replace(bare, threads=0)
        return replace(self, inner=plain, threads=inner.threads, custom_ops=inner.custom_ops)

    def _resolve_inner(self) -> Backend:
        """Return the inner backend with its threads and libraries, else raise BadSettings."""
        inner = replace(self.inner, threads=self.threads)
        if not self.custom_ops:
            return inner
        if "custom_ops" not in inner.reads:
            raise BadSettings(
                f"backend '{inner.name()}' takes no custom operators", fix="use inner=cpu"
            )
        return replace(inner, custom_ops=self.custom_ops)  # type: ignore[call-arg]

    # --- sessions ---------------------------------------------------------------------------

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        return self._open_bucketed(self._resolve_inner().open(path, verbose=verbose))

    def record(
        self, path: Path, folder: Path, *, verbose: bool = False
    ) -> AbstractContextManager[Recording]:
        return self._open_bucketed(self._resolve_inner().record(path, folder, verbose=verbose))

    @contextmanager
    def _open_bucketed(self, opening: AbstractContextManager[Any]) -> Iterator[Any]:
        with opening as session:
            yield _BucketedSession(session, self)

    # --- cutting ----------------------------------------------------------------------------

    def choose_bucket(self, feeds: Tensors) -> int:
        """Return the length that a call is cut to; 0 when it runs as it is. A few microseconds."""
        mask = feeds.get(self.mask)
        if mask is None or mask.ndim != 2:
            return 0
        width = mask.shape[1]
        for name in self.inputs:
            shape = feeds[name].shape if name in feeds else ()
            if len(shape) < 2 or shape[1] != width:
                return 0
        real = count_real_columns(mask, self.side)
        place = bisect_left(self.lengths, real)
        if not real or place == len(self.lengths) or self.lengths[place] >= width:
            return 0
        return self.lengths[place]

    def cut_feeds(self, feeds: Tensors, length: int) -> dict[str, NDArray[Any]]:
        """Return a call's inputs at a length."""
        bucket_feeds = dict(feeds)
        for name in (self.mask, *self.inputs):
            bucket_feeds[name] = np.ascontiguousarray(feeds[name][:, self._make_slice(length)])
        return bucket_feeds

    def _make_slice(self, length: int) -> slice:
        return slice(length) if self.side == "right" else slice(-length, None)

    def pad_outputs(self, outputs: dict[str, NDArray[Any]], width: int) -> dict[str, NDArray[Any]]:
        """Give the outputs of a cut call the length of its inputs, zeros where it was cut."""
        for name in self.outputs:
            array = outputs[name]
            whole = np.zeros((array.shape[0], width, *array.shape[2:]), array.dtype)
            whole[:, self._make_slice(array.shape[1])] = array
            outputs[name] = whole
        return outputs

    @property
    def compared_on(self) -> str:
        """Padded positions of outputs mean nothing, so nothing is claimed of them."""
        return "real positions only" if self.outputs and self.lengths else ""

    def compared(self, feeds: Tensors, outputs: Tensors) -> Tensors:
        """Leave out the positions behind the longest row's last real one."""
        mask = feeds.get(self.mask)
        real = 0 if mask is None else count_real_columns(mask, self.side)
        if not real:
            return outputs
        cut = {
            name: array[:, self._make_slice(real)]
            for name, array in outputs.items()
            if name in self.outputs and array.ndim > 1
        }
        return {**outputs, **cut}


def count_real_columns(mask: NDArray[Any], side: str = "right") -> int:
    """Return how many columns of a mask [batch, length] hold all its real positions.

    0 where that cannot be told: a row that is empty or does not begin (end, for padding on the
    left) with a real position.
    """
    if mask.ndim != 2 or not mask.size:
        return 0
    is_left = side == "left"
    edge = mask[:, -1 if is_left else 0]
    if not edge.all():
        return 0
    seen = mask if len(mask) == 1 else mask.any(axis=0)
    mask_bytes = seen.tobytes()
    used = len(mask_bytes.lstrip(b"\0") if is_left else mask_bytes.rstrip(b"\0"))
    return -(-used // seen.itemsize)


class _BucketedSession:
    def __init__(self, inner: Any, how: Bucketed) -> None:
        self._inner, self._how = inner, how

    def __getattr__(self, name: str) -> Any:
        """Everything but a run is the inner session's."""
        return getattr(self._inner, name)

    def stage(self, feeds: Tensors) -> None:
        """Stage what `run` would give the inner session, where that can be timed apart."""
        length = self._how.choose_bucket(feeds)
        self._inner.stage(self._how.cut_feeds(feeds, length) if length else feeds)

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        length = self._how.choose_bucket(feeds)
        outputs: dict[str, NDArray[Any]]
        if not length:
            outputs = self._inner.run(feeds)
            return outputs
        outputs = self._inner.run(self._how.cut_feeds(feeds, length))
        return self._how.pad_outputs(outputs, feeds[self._how.mask].shape[1])
