"""Several sessions of one model, each on CPUs of its own where the system can bind threads."""

from __future__ import annotations

import os
import threading
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.onnxruntime import checks
from ortune.bundle.engine import archive
from ortune.bundle.engine.manifest import SERVING, Manifest
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.errors import BadData, BadModel, BadSettings, OrtuneError, summarize_error
from ortune.core.hardware.cpus import divide_cpus, effective_cpus, set_usable_cpus, usable_cpus
from ortune.core.hardware.instances import (
    InstanceGroup,
    count_instances,
    read_device,
    read_instances,
)
from ortune.core.plugins import codec, stored
from ortune.core.plugins.bounds import Bounds
from ortune.core.session import Session, Tensors

MAX_BATCH = 8
"""Rows that are computed together where nothing is said: more gain little on a CPU, where the
activations of convolutions leave the caches."""
MOST_ROWS = 1 << 20
MAX_QUEUE = 1024
"""Requests that wait at most, where nothing is said."""
_RESERVE = "ENABLE_CPU_RESERVATION"
"""OpenVINO's property; without it all instances compute on the same CPUs, the first ones."""

_FOR = {"cpu": "on='cpu'", "gpu": "on='cuda' or on='tensorrt'", "npu": "on='openvino(device=npu)'"}


@dataclass(frozen=True)
class Serving:
    """How an engine shares the CPUs among sessions, and requests among runs."""

    instances: Annotated[int, Bounds(1, 1024)] = 1  # sessions of every model
    # Rows that are computed together at most; 1 joins nothing, 0 leaves it to `settle_batches`.
    max_batch: Annotated[int, Bounds(0, MOST_ROWS)] = MAX_BATCH
    # Microseconds that a request waits for others to be joined with.
    max_delay_us: Annotated[int, Bounds(high=10_000_000)] = 0
    # Rows that are enough for a batch to wait no longer.
    preferred: Annotated[tuple[int, ...], stored.items(stored.integer(1, MOST_ROWS), 64)] = ()
    max_queue: int = MAX_QUEUE  # requests that wait at most
    # Of each instance; 0 leaves those of the backend.
    threads: Annotated[int, Bounds(high=1_000_000)] = 0
    # Of each instance, such as ``gpu0``; none leaves them to the backend.
    devices: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[InstanceGroup, ...]:
        """The instances by device, in order."""
        if not self.devices:
            return (InstanceGroup(self.instances),)
        counts = Counter(self.devices)
        return tuple(
            replace(read_device(device), count=n) if device else InstanceGroup(n)
            for device, n in counts.items()
        )

    def settle_batches(self, backend: Backend, model: Path) -> tuple[Serving, bool]:
        """Return this with a batch's rows decided for a file, and whether every batch has them.

        Where nothing is said and another number of rows costs many runs, requests are not joined:
        one alone would take as long as a whole batch.
        """
        fills = has_operators(model, backend.planned_by_shape)
        rows = self.max_batch or (1 if fills else MAX_BATCH)
        return replace(self, max_batch=rows), fills and rows > 1

    def share_threads(self, backend: Backend) -> Backend:
        """Return the settings of each instance: all together have one thread for each CPU.

        Fewer threads than the share stay as they are: they were measured, or asked for.
        """
        most = max(1, effective_cpus() // self.instances)
        if self.threads not in (0, backend.threads):
            return _set_threads(backend, min(self.threads, most))
        if self.instances == 1:
            return backend
        fit, _ = stored.limit_threads(backend, most)
        return fit if fit.threads else replace(fit, threads=most)

    def open_instances(
        self, stack: ExitStack, backend: Backend, path: Path, name: str
    ) -> Instances:
        """Open the sessions of one model, each on its device, on what `share_threads` gave.

        Threads of onnxruntime's own kernels have the CPUs of the thread that opens a session.
        OpenVINO knows all CPUs from the first session on, and is told to reserve some for each.
        Raises BadSettings: the backend does not run on a device that was asked for.
        """
        sessions, places = [], []
        devices = self.devices or ("",) * self.instances
        for device, cpus in zip(devices, self._list_cpus(backend), strict=True):
            settings = backend if self.instances == 1 else _bind_instance(backend, sorted(cpus))
            settings = on_device(settings, device) if device else settings
            with bind_thread(cpus):
                sessions.append(stack.enter_context(settings.open(path)))
            places.append(cpus)
        return Instances(name, sessions, places)

    def _list_cpus(self, backend: Backend) -> Iterator[frozenset[int]]:
        """Yield the CPUs of each instance; none where they cannot be bound, or need not be."""
        binds = backend.provider == Cpu.provider and hasattr(os, "sched_setaffinity")
        for cpus in divide_cpus(usable_cpus(), self.instances):
            yield frozenset(cpus if binds and self.instances > 1 else ())


class Instances:
    """Sessions of one model; any number of threads may call at once.

    A call goes to the instance that computes the fewest, in the caller's thread, which is bound
    to the instance's CPUs meanwhile.
    """

    def __init__(
        self, name: str, sessions: Sequence[Session], cpus: Sequence[Collection[int]] = ()
    ) -> None:
        self.name = name
        self._sessions = tuple(sessions)
        self._cpus = tuple(cpus) or ((),) * len(sessions)
        self._running = [0] * len(sessions)
        self._lock = threading.RLock()  # a finalizer may close what its own thread runs
        self._ended = threading.Condition(self._lock)
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    def run(self, feeds: Tensors, place: int | None = None) -> dict[str, NDArray[Any]]:
        """Run once, on the instance at `place` or the least busy, and return every output by name.

        Raises BadData: the runtime refuses the inputs; OrtuneError: the sessions were closed.
        """
        with self._lock:
            if self._closed:
                raise make_closed_error(self.name)
            running = self._running
            if place is None:
                place = running.index(min(running)) if len(running) > 1 else 0
            running[place] += 1
            session, cpus = self._sessions[place], self._cpus[place]
        try:
            if not cpus:
                return session.run(feeds)
            with bind_thread(cpus):
                return session.run(feeds)
        except OrtuneError:
            raise
        except Exception as error:
            shapes = ", ".join(f"{k} {getattr(v, 'shape', '')}" for k, v in feeds.items())
            raise BadData(
                f"{self.name}: the runtime refused {shapes or 'no inputs'}: "
                f"{summarize_error(error)}",
                fix="give arrays whose dimensions agree with each other and with the model",
            ) from error
        finally:
            with self._lock:
                running[place] -= 1
                if self._closed:
                    self._ended.notify_all()

    def find_first_session(self) -> Session | None:
        """Return the first session; None when closed."""
        with self._lock:
            return next(iter(self._sessions), None)

    def wait_idle(self) -> None:
        """Refuse calls from now on and return when those that run have ended."""
        with self._lock:
            self._closed = True
            self._ended.wait_for(lambda: not any(self._running))

    def close(self) -> None:
        """Release the sessions; a call that still runs keeps its own."""
        with self._lock:
            self._closed = True
            self._sessions = ()


def make_closed_error(name: str) -> OrtuneError:
    """Return what a call of a closed engine is told."""
    return OrtuneError(
        f"the engine of {name} is closed", fix="load it again, or call inside `with`"
    )


@contextmanager
def bind_thread(cpus: Collection[int]) -> Iterator[None]:
    """Keep the calling thread, and those that it starts, on these CPUs; none binds nothing.

    Where a CPU was taken from the process meanwhile, the thread stays as it was.
    """
    if not cpus:
        yield
        return
    before = usable_cpus()
    set_usable_cpus(cpus)
    try:
        yield
    finally:
        set_usable_cpus(before)


def flushes_denormals(backend: Backend) -> bool:
    """Whether threads that compute with it flush denormals, as the one that opened it does."""
    inner = getattr(backend, "inner", None)
    is_set = bool(getattr(backend, "flush_denormals", False))
    return is_set or (isinstance(inner, Backend) and flushes_denormals(inner))


def on_device(backend: Backend, device: str) -> Backend:
    """Return settings on ``cpu`` or ``gpu1``; BadSettings where the backend does not run there."""
    group = read_device(device)
    inner = getattr(backend, "inner", None)
    if isinstance(inner, Backend):
        return _replace_fields(backend, inner=on_device(inner, device))
    if group.kind != backend.runs_on:
        raise BadSettings(
            f"backend '{backend}' runs on the {backend.runs_on.upper()}, not on '{device}'",
            fix=f"leave @{device} out, or name a backend for it: {_FOR[group.kind]}",
        )
    if isinstance(getattr(backend, "device", None), int):
        return _replace_fields(backend, device=group.index)
    if group.index:
        raise BadSettings(
            f"backend '{backend}' cannot be told which {group.kind.upper()} to take",
            fix=f"leave the number of '{device}' out",
        )
    return backend


def _replace_fields(backend: Backend, **fields: Any) -> Backend:
    """Return the settings with fields that only some backends have."""
    return replace(backend, **fields)


def _set_threads(backend: Backend, count: int) -> Backend:
    """Return the settings with so many threads, which are bound to no CPUs."""
    fields: dict[str, Any] = {"threads": count}
    if hasattr(backend, "affinity"):
        fields["affinity"] = ""
    if isinstance(inner := getattr(backend, "inner", None), Backend):
        fields["inner"] = _set_threads(inner, 0)
    return replace(backend, **fields)


def _bind_instance(backend: Backend, cpus: Sequence[int]) -> Backend:
    """Return one instance's settings, with threads on CPUs of its own, if any are given."""
    inner = getattr(backend, "inner", None)
    changed: dict[str, Any] = {}
    if isinstance(inner, Backend):
        changed["inner"] = _bind_instance(replace(inner, threads=backend.threads), cpus)
    elif backend.name() == "openvino" and getattr(backend, "device", "cpu") == "cpu":
        config = [entry for entry in backend.config if not entry.startswith(_RESERVE)]  # type: ignore[attr-defined]
        changed["config"] = (*config, f"{_RESERVE}=YES")
    elif cpus and bool(getattr(backend, "affinity", "")):
        changed["affinity"] = checks.affinity_of_workers(backend.threads, cpus)
    return replace(backend, **changed) if changed else backend


def has_operators(path: Path, names: Collection[str]) -> bool:
    """Say whether a model has a node of some operators, in a body or a function too."""
    if not names:
        return False
    from ortune.graph.io import file, wellformed

    model = file.parse_outline(path)
    bodies = (model.graph.node, *(function.node for function in model.functions))
    return any(n.op_type in names for body in bodies for n in wellformed.walk_node_protos(body))


UNSAID = Serving(max_batch=0)
"""How a model is served of which nothing is said."""


def read_serving(
    instances: int | str = 0,
    device: str | None = None,
    max_batch: int = 0,
    max_delay_us: int = 0,
    preferred: Sequence[int] = (),
    max_queue: int = 0,
    *,
    packed: Serving | None = None,
) -> Serving:
    """Read what a caller asks for, such as instances ``2``, ``1@cpu`` or ``2@gpu0,2@gpu1``.

    `device` is of groups that name none; `packed` holds in the place of zeros and of nothing, the
    defaults without it. Raises BadSettings: a number is not one, there are more instances than
    CPUs, or no device is called so.
    """
    for name, values, least, most in (
        ("max_batch", (max_batch,), 0, 1 << 20),
        ("max_delay_us", (max_delay_us,), 0, 10_000_000),
        ("preferred", preferred, 1, max_batch or 1 << 20),
        ("max_queue", (max_queue,), 0, 1 << 20),
    ):
        for value in values:
            if not isinstance(value, int) or not least <= value <= most:
                raise BadSettings(
                    f"{name}={value!r} is not possible", fix=f"give {least} to {most}"
                )
    groups: Sequence[InstanceGroup] = ()
    if instances != 0:
        groups = read_instances(instances, device or "")
        count = count_instances([value for value in groups if value.kind in ("", "cpu")])
        if count > (cpus := effective_cpus()):
            raise BadSettings(
                f"{count} instances need a CPU each, and {wording.format_count(cpus, 'CPU')} can "
                "be used",
                fix=f"give instances={cpus} or fewer",
            )
    names = tuple(value.device for value in groups for _ in range(value.count))
    fields: dict[str, Any] = {
        "instances": count_instances(groups),
        "devices": names if any(names) else (),
        "max_batch": max_batch,
        "max_delay_us": max_delay_us,
        "preferred": tuple(preferred),
        "max_queue": max_queue,
    }
    result = replace(packed or UNSAID, **{name: value for name, value in fields.items() if value})
    if device and not groups:
        return replace(result, devices=(read_device(device).device,) * result.instances)
    return result


def load_serving(name: str, file: zipfile.ZipFile, manifest: Manifest) -> Serving:
    """Return how a bundle wants to be served, or the defaults; no more instances than CPUs.

    Raises BadModel, with its `name`: that was changed, or is out of the bounds that a bundle has.
    """
    if SERVING not in manifest.members:
        return UNSAID
    archive.extract_member(file, manifest, SERVING, None)
    where = f"{name}: '{SERVING}'"
    try:
        data = stored.parse_json(file.read(SERVING))
        if not isinstance(data, dict):
            raise ValueError("it is no mapping")
        stored.demand_fields(data, Serving, where)
    except ValueError as error:
        raise BadModel(f"{where} cannot be read: {error}", fix=stored.DISTRUST) from error
    except BadSettings as error:
        raise BadModel(error.what, fix=error.fix) from None
    result: Serving = codec.decode(Serving, data)
    return replace(result, instances=min(result.instances, effective_cpus()))
