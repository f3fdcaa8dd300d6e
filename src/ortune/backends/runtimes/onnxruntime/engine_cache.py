"""Engines that a provider built, kept on disk and used for exactly what they were built for.

A provider that compiles (TensorRT, OpenVINO on a GPU or an NPU) takes seconds to many minutes to
open a model, and writes what it built into a folder. Its own check of that folder knows neither
the release of the runtime nor the options (onnxruntime issues 22244 and 18272): here the folder
is named by all that an engine depends on, and what lies in it is compared with what was written.
"""

import hashlib
import json
import logging
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, runtime_checkable

from ortune.core.atomic_write import hold_lock, remove_path, write_text
from ortune.core.errors import BackendMissing, BadModel, OrtuneError, summarize_error
from ortune.core.event import Progress, Sink, ignore_event
from ortune.core.hardware.cpus import cpu_model, instruction_sets
from ortune.core.hardware.gpu import read_driver_versions
from ortune.core.outputs import find_cache_folder
from ortune.core.plugins.plugin import encode
from ortune.core.temporary_folder import open_temporary_folder
from ortune.graph.io.protobuf import walk_messages

_NODE = ("EPContext", "com.microsoft")


@runtime_checkable
class CompilingBackend(Protocol):
    """A backend whose provider compiles models ahead of time."""

    def compile(self, path: Path, out: Path) -> None:
        """Write a model as the provider compiles it; `open` takes that file like any other.

        Raises BackendMissing: the provider is not here, or compiles nothing of it; BadModel: the
        runtime does not accept the model.
        """
        ...

    def compiled_for(self) -> Mapping[str, str]:
        """Return all that must be the same where a compiled file is opened.

        Raises BackendMissing: the provider is not here.
        """
        ...


@dataclass(frozen=True)
class CompiledNode:
    """One part of a model that a provider compiled, into this file if `embedded`."""

    source: str
    embedded: bool


def compile_model(
    path: Path, options: Any, out: Path, provider: str, content: bytes | None = None
) -> None:
    """Write a model with everything that the provider compiles of it embedded.

    `options`: SessionOptions that have the provider, as a session would be opened with; `content`:
    the model, in the place of the file; external data lies beside the file. Raises BackendMissing:
    the installed onnxruntime has no compiler, or the provider took no node; BadModel: the model is
    not compiled, for another reason.
    """
    import onnxruntime as ort

    if not hasattr(ort, "ModelCompiler"):
        raise BackendMissing(
            f"onnxruntime {ort.__version__} compiles no model ahead of time",
            fix="pip install 'onnxruntime>=1.23'",
        )
    if content is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(path.absolute().parent)
        )
    try:
        ort.ModelCompiler(
            options, content or str(path), embed_compiled_data_into_model=True
        ).compile_to_file(str(out))
    except Exception as error:
        raise BadModel(
            f"{provider} does not compile {path.name}: {summarize_error(error)}",
            fix="leave --compiled out: it is compiled when it loads",
        ) from error
    if not list_compiled_nodes(out):
        out.unlink()
        raise BackendMissing(
            f"{provider} compiled no node of {path.name}", fix="leave --compiled out"
        )


def list_compiled_nodes(path: Path) -> list[CompiledNode]:
    """Return the compiled nodes of a file; none of an ordinary model.

    Raises BadModel: it is no model.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.ModelProto.FromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise BadModel(
            f"{path.name} is no compiled model: {error}", fix="compile it again"
        ) from error
    nodes = []
    for node in walk_messages(proto):
        if isinstance(node, onnx.NodeProto) and (node.op_type, node.domain) == _NODE:
            parts = {attribute.name: attribute for attribute in node.attribute}
            source = parts["source"].s.decode(errors="replace") if "source" in parts else ""
            embedded = "embed_mode" not in parts or parts["embed_mode"].i == 1
            # Of those that share another's bytes (``main_context`` 0) it is the other.
            main = "main_context" not in parts or parts["main_context"].i == 1
            embedded = embedded or not (main or parts.get("ep_cache_context"))
            nodes.append(CompiledNode(source, embedded))
    return nodes


def describe_build_environment(
    provider: str,
    device: Any = None,
    *packages: str,
    more: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return what a compiled model depends on besides itself, by name.

    `device`: the runtime's description of a plug-in's device (OrtEpDevice), where there is one;
    `packages`: distributions that bring the provider; `more`: anything else, such as the name of a
    GPU.
    """
    environment = {"provider": provider, "system": f"{platform.system()} {platform.machine()}"}
    for name in ("onnxruntime", *packages):
        with suppress(PackageNotFoundError):
            environment[name] = version(name)
    kind = device.device.type.name if device is not None else ""
    if kind == "CPU":
        flags = " ".join(sorted(instruction_sets()))
        environment["device"] = cpu_model()
        environment["instruction sets"] = hashlib.sha256(flags.encode()).hexdigest()[:16]
    elif device is not None:
        hardware = device.device
        metadata = {**dict(hardware.metadata), **dict(device.ep_metadata)}
        environment["device"] = (
            f"{kind} {hardware.vendor} {hardware.vendor_id:x}:{hardware.device_id:x}"
        )
        environment |= {
            key: metadata[key] for key in sorted(metadata) if "version" in key.casefold()
        }
    if kind != "CPU" and (driver_version := read_driver_versions().get("driver")):
        environment["driver"] = driver_version
    return {**environment, **more}


KEY = "key.json"
"""What an engine was built for, in its folder."""
MOST = 20 << 30
"""Bytes that all engines together may take; what was used last stays."""
_LOCKS = ".locks"
WAIT_S = 3600.0
"""For another process that builds the same engine."""
_ALIKE = 2.0
"""A build tells of another whose model has up to so many times its nodes."""


@dataclass(frozen=True)
class EngineKey:
    """All that an engine depends on: where one of it differs, another is built."""

    model: str  # digest of the file and its external data
    nodes: int  # of the model; how long a build takes is estimated by it
    provider: str  # execution provider, in the runtime's spelling
    # Of the provider and the session, each by its name.
    options: Mapping[str, str] = field(default_factory=dict)
    # Of the runtime, the provider's own libraries and the driver.
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""  # name of the device
    compute_capability: str = ""  # of a GPU, such as ``9.0``
    profile: str = ""  # shapes that it is built for, as spelled; empty for those of the first run

    @property
    def digest(self) -> str:
        """32 hex digits: the name of its folder."""
        text = json.dumps(encode(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def estimate_build_time(home: Path, key: EngineKey) -> float | None:
    """Return how many seconds a build may take, by earlier ones; None where none is like it.

    Those of as many nodes on the same device decide, else the nearest within a factor of two,
    in proportion.
    """
    took: dict[int, list[float]] = {}
    for record in map(_read_record, home.glob(f"*/{KEY}")):
        other = record.get("key", {})
        same = (other.get("provider"), other.get("device")) == (key.provider, key.device)
        if same and isinstance(other.get("nodes"), int) and record.get("seconds"):
            took.setdefault(other["nodes"], []).append(float(record["seconds"]))
    ratios = {nodes: key.nodes / nodes for nodes in took if nodes > 0}
    near = [node_count for node_count, by in ratios.items() if 1 / _ALIKE <= by <= _ALIKE]
    if not near:
        return None
    nodes = min(near, key=lambda node_count: abs(node_count - key.nodes))
    return median(took[nodes]) * ratios[nodes]


def evict_engines(home: Path, most: int, spare: Path | None = None) -> None:
    """Remove engines, those used longest ago first, until all take at most so many bytes.

    Args:
        spare: The folder in use, which stays; so do those that another process opens.
    """
    entries = []
    for path in home.glob(f"*/{KEY}"):
        with suppress(OSError):
            size = sum(file.stat().st_size for file in path.parent.iterdir() if file.is_file())
            entries.append((path.stat().st_mtime, size, path.parent))
    total = sum(size for _, size, _ in entries)
    for _, size, place in sorted(entries):
        if total <= most:
            return
        if place != spare:
            with (
                suppress(OrtuneError),
                hold_lock(_make_lock_path(home, place.name), OrtuneError("", fix="")),
            ):
                remove_path(place)
                total -= size


def record_engine(place: Path, key: EngineKey, seconds: float = 0.0) -> None:
    """Write down what lies in a folder, for what it was built, and the seconds that took."""
    took = seconds or _read_record(place / KEY).get("seconds", 0.0)
    record = {"key": encode(key), "seconds": took, "files": _hash_files(place)}
    write_text(place / KEY, json.dumps(record, indent=1))


def _hash_files(place: Path) -> dict[str, str]:
    """Return name -> SHA-256 of every file but the key, those in folders too."""
    digests = {}
    for path in _list_engine_files(place):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        digests[path.relative_to(place).as_posix()] = digest
    return digests


def snapshot_files(place: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of change by file: what tells that a session added something."""
    snapshot = {}
    for path in _list_engine_files(place):
        with suppress(OSError):
            seen = path.stat()
            snapshot[path] = (seen.st_size, seen.st_mtime_ns)
    return snapshot


def _list_engine_files(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file() and path.name != KEY)


def _read_record(path: Path) -> dict[str, Any]:
    """Return what was kept; empty where it is gone or no longer a mapping."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _make_lock_path(home: Path, digest: str) -> Path:
    return home / _LOCKS / digest


def lock_engine(home: Path, key: EngineKey) -> AbstractContextManager[None]:
    """Keep other processes from the folder of a key; the system frees it when one dies."""
    error = OrtuneError(
        f"another process has built the same engine for {WAIT_S / 60:.0f} minutes",
        fix="end it, or wait and try again",
    )
    return hold_lock(_make_lock_path(home, key.digest), error, WAIT_S)


T = TypeVar("T")

TICK_S = 1.0
"""Between two words of how long a build has taken."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineWatch:
    """What somebody wants to know of the sessions that are opened within a block."""

    sink: Sink = ignore_event  # receives how far a build is
    # Folder of the engines in the place of the user's; None is the user's.
    root: Path | None = None
    # Gains True for each session opened from the cache, False for each that was built.
    warm: list[bool] = field(default_factory=list)


_WATCH: ContextVar[EngineWatch] = ContextVar("engine_watch")


@contextmanager
def watch_engines(sink: Sink = ignore_event, root: Path | None = None) -> Iterator[EngineWatch]:
    """Watch the sessions that this thread opens in the block."""
    watch = EngineWatch(sink, root)
    token = _WATCH.set(watch)
    try:
        yield watch
    finally:
        _WATCH.reset(token)


@contextmanager
def open_with_engines(
    key: EngineKey,
    opening: Callable[[Path], AbstractContextManager[T]],
    *,
    root: Path | None = None,
    most: int = MOST,
) -> Iterator[T]:
    """Open a session with the engines of its key, or build them.

    Engines that were changed, cut off or do not open are built again. What runs add, such as an
    engine for another shape, is kept too when the session ends.

    Args:
        opening: Opens the session with this folder as the provider's own cache.
        root: Where engines are; the user's cache folder without it.
        most: Bytes that all engines may take afterwards.

    Raises:
        OrtuneError: Another process has built the same engine for an hour; the disk refuses.
    """
    watch = _WATCH.get(None) or EngineWatch()
    with ExitStack() as stack:
        cache_folder = find_cache_folder()
        home = root or watch.root or (cache_folder and cache_folder / "engines")
        if home is None:
            temporary_folder = open_temporary_folder()
            home = Path(stack.enter_context(temporary_folder))
        place = home / key.digest
        with ExitStack() as session:
            with lock_engine(home, key):
                opened_session, warm = _open_or_build(session, key, opening, place, watch)
                watch.warm.append(warm)
                seen = snapshot_files(place)
            evict_engines(home, most, spare=place)
            yield opened_session
        if snapshot_files(place) != seen:
            with lock_engine(home, key):
                record_engine(place, key)


def _open_or_build(
    stack: ExitStack,
    key: EngineKey,
    opening: Callable[[Path], AbstractContextManager[T]],
    place: Path,
    watch: EngineWatch,
) -> tuple[T, bool]:
    """Open from the folder, or build into it; return whether it was there."""
    # The folder must hold what was kept for the key, to the last byte; nothing is not enough.
    record, is_intact = _read_record(place / KEY), False
    if record.get("key") == encode(key) and record.get("files"):
        with suppress(OSError):
            is_intact = _hash_files(place) == record["files"]
    if is_intact:
        seen = snapshot_files(place)
        try:
            opened = stack.enter_context(opening(place))
        except Exception as error:  # whatever a provider raises of an engine that it cannot use
            _LOG.warning("an engine in %s does not open (%s): it is built again", place, error)
        else:
            warm = snapshot_files(place) == seen  # else it has built some of it anew
            if not warm:
                record_engine(place, key)
            with suppress(OSError):  # those used longest ago are removed first
                (place / KEY).touch()
            return opened, warm
    remove_path(place)
    place.mkdir(parents=True, mode=0o700)
    expected = estimate_build_time(place.parent, key)
    about = "" if expected is None else f", about {expected:.0f} s by earlier builds"
    work = f"building an engine for {key.provider}"
    _LOG.info("%s (%d nodes)%s", work, key.nodes, about)
    start = time.monotonic()
    try:
        with _report_progress(watch.sink, work, expected or 0.0):
            opened = stack.enter_context(opening(place))
    except BaseException:
        remove_path(place)
        raise
    record_engine(place, key, time.monotonic() - start)
    return opened, False


@contextmanager
def _report_progress(sink: Sink, work: str, total: float) -> Iterator[None]:
    """Tell how many seconds the block has taken, now and then."""
    done, start = threading.Event(), time.monotonic()

    def tell() -> None:
        sink(Progress(work, 0.0, total))
        while not done.wait(TICK_S):
            sink(Progress(work, time.monotonic() - start, total))

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
