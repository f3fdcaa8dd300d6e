"""Devices, by ssh or as nodes of Ray: workers run there, and files travel by content.

The user's own OpenSSH client connects, so that hosts, keys, ports and jumps are what
``~/.ssh/config`` says. The device runs Python with numpy and onnxruntime; what it runs of ours is
`ortune.measurement.worker`, copied once.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import subprocess
import threading
import time
import tomllib
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import IO, Any, Protocol

from ortune.core import regular_file
from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings, suggest_names
from ortune.core.plugins import codec
from ortune.core.python_process import make_python_command
from ortune.core.system import kill_group
from ortune.graph.io import file
from ortune.measurement.job import WorkerJob

LOST = 255  # exit code of the OpenSSH client where the connection failed or broke
_SSH = ("-T", "-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5")
_HEARTBEAT_S, _END_S = 4.0, 10.0
_WAIT_S = 30.0
"""How long a search waits for another one on a device: that may be dead, which shows in 20 s."""
_PACKAGES = ("core", "data", "graph", "backends", "metrics", "measurement")
"""What a worker imports from, below our package."""
_CHUNK = 1 << 20
_ARRIVAL = Path(__file__).parent / "worker" / "arrival.py"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


class LinkLost(Exception):
    """The connection to a device broke, or what came over it is not what was sent."""


class Connection(Protocol):
    """A process on a device, as `subprocess.Popen` shows one."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    @property
    def pid(self) -> int:
        """The process on this machine that stands for it; 0 where none does."""

    @property
    def returncode(self) -> int | Any:
        """Exit code, `LOST` where the connection broke; None while it runs."""

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raise `subprocess.TimeoutExpired` after so many seconds."""

    def kill(self) -> None:
        """End it at once."""


@dataclass(frozen=True)
class Device:
    """A machine of the user's inventory.

    Attributes:
        host: As the user's OpenSSH client is given it.
        python: Interpreter there, with numpy and onnxruntime.
        folder: Where our files lie there, below the home folder unless absolute.
        config: File to read in the place of ``~/.ssh/config``.
        cool_below: Degrees Celsius; no worker starts while a zone is hotter, for five minutes.
    """

    name: str
    host: str
    python: str = "python3"
    folder: str = ".cache/ortune"
    config: str = ""
    cool_below: float | None = None

    def run_code(self, code: str, stderr: int | IO[bytes]) -> Connection:
        """Start Python code there, in a process whose standard streams are ours.

        Raises:
            BadSettings: There is no OpenSSH client on this machine.
        """
        words = make_python_command("-c", code, python=Path(self.python), isolated=True)
        try:
            return subprocess.Popen(
                self.spell_command(shlex.join(words)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise BadSettings(
                "no OpenSSH client is installed", fix="install it: apt-get install openssh-client"
            ) from None

    def spell_command(self, command: str) -> list[str]:
        """Return the words that run a shell's command there from here."""
        chosen = ["-F", str(Path(self.config).expanduser())] if self.config else []
        return ["ssh", *_SSH, *chosen, "--", self.host, command]


def read_inventory(path: Path) -> tuple[Device, ...]:
    """Read the devices of a file: a table a device, such as ``[pi5]`` with ``host = "pi@pi5"``.

    Raises:
        BadSettings: It cannot be read, names no device, or one of them badly.
    """
    try:
        tables = tomllib.loads(regular_file.read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise BadSettings(
            f"the inventory {path} cannot be read: {error}",
            fix='write a table a device: [pi5], and below it host = "pi@pi5.local"',
        ) from None
    devices = tuple(_read_device(path, name, table) for name, table in tables.items())
    if not devices:
        raise BadSettings(f"{path} names no device", fix='write [pi5], and host = "pi@pi5.local"')
    return devices


def _read_device(path: Path, name: str, table: Any) -> Device:
    settings = {item.name: item for item in fields(Device) if item.name != "name"}
    if not isinstance(table, dict) or not isinstance(table.get("host"), str):
        raise BadSettings(
            f"{path}: device '{name}' has no host", fix='write host = "user@address" below it'
        )
    if name == HERE or not _NAME.fullmatch(name) or table["host"].startswith("-"):
        raise BadSettings(
            f"{path}: '{name}' at '{table['host']}' cannot be a device",
            fix="name it by a-z, 0-9, '-' and '.', and its host as you write it for ssh",
        )
    if unknown := sorted(table.keys() - settings.keys()):
        raise BadSettings(
            f"{path}: device '{name}' has no '{unknown[0]}'",
            fix=suggest_names(unknown[0], settings),
        )
    for key, value in table.items():
        right = isinstance(value, (int, float)) if key == "cool_below" else isinstance(value, str)
        if not right or isinstance(value, bool):
            raise BadSettings(
                f"{path}: {key} = {value!r:.60} of '{name}' is of the wrong type",
                fix="write a number of degrees" if key == "cool_below" else "write a text",
            )
    return Device(name=name, **table)


@contextmanager
def open_device(*devices: Device, environment: str = "") -> Iterator[str]:
    """Let workers run on a device while the block runs; give the environment that stands for it.

    No other search times there meanwhile. Of several, `LEASES`, the first is used. None stand for
    this machine.

    Args:
        environment: What it is called, where not as the first device.
    """
    if not devices:
        yield HERE
        return
    environment = environment or devices[0].name
    leases = [Lease(device, environment) for device in devices]
    token = LEASES.set(tuple(leases))
    try:
        yield environment
    finally:
        LEASES.reset(token)
        for lease in leases:
            lease.release()


def bind_device(lease: Lease) -> Context:
    """Return a context, to run in any thread, that uses this of the open devices alone."""
    context = copy_context()
    context.run(LEASES.set, (lease,))
    return context


def find_lease(environment: str) -> Lease | None:
    """Return the open device that an environment stands for; None where it is on this machine."""
    lease = next(iter(LEASES.get()), None)
    return lease if lease is not None and lease.environment == environment else None


@dataclass(eq=False)
class Lease:
    """A device that is this process's alone.

    Attributes:
        environment: What stands for it.
        session: Names what this process makes there.
        sent: Places of the files that are known to be there.
        readings: Clocks, temperatures, free memory and load when it was leased.
    """

    device: Device
    environment: str
    session: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    sent: set[str] = field(default_factory=set)
    readings: Mapping[str, Any] = field(default_factory=dict)
    _holder: Connection | None = None
    _released: bool = False

    def hold(self) -> Mapping[str, Any]:
        """Keep others off the device, again where the connection broke; return its readings.

        Raises:
            LinkLost: It is not reached, or another search has it.
        """
        if self._holder is not None and self._holder.poll() is None:
            return self.readings
        self._holder = self.connect({"do": "hold", "session": self.session, "wait_s": _WAIT_S})
        self.sent.clear()
        self.readings = read_device_answer(self._holder)["readings"]
        threading.Thread(target=_beat, args=(self._holder,), daemon=True).start()
        return self.readings

    def release(self) -> None:
        """Let others have the device; workers of ours that are left end, and none starts."""
        self._released = True
        if self._holder is not None:
            end_connection(self._holder)

    def connect(
        self,
        order: Mapping[str, Any],
        stderr: int | IO[bytes] = subprocess.PIPE,
        parcels: Sequence[Parcel] = (),
    ) -> Connection:
        """Begin a connection and say what is asked, and which files that needs.

        Raises:
            LinkLost: The device was released.
        """
        if self._released:
            raise LinkLost("the device was released")
        device = self.device
        process = device.run_code(_ARRIVAL.read_text(encoding="utf-8"), stderr)
        files = [(parcel.place, parcel.size, parcel.digest) for parcel in parcels]
        where = {"folder": device.folder, "cool_below": device.cool_below}
        request = {**where, "files": files, **order}
        send(process, json.dumps(request).encode() + b"\n")
        return process

    def ask(
        self, order: Mapping[str, Any], parcels: Sequence[Parcel] = ()
    ) -> tuple[dict[str, Any], bytes]:
        """Ask over a connection of its own; return the answer, and the bytes behind it.

        Raises:
            LinkLost: There is no answer, or the bytes are not those that were sent.
        """
        process = self.connect(order, parcels=parcels)
        assert process.stdout is not None, "a connection has pipes"
        try:
            answer = read_device_answer(process)
            if "lacking" in answer:
                send_files(process, [parcels[at] for at in answer["lacking"]])
                answer = read_device_answer(process)
            content = process.stdout.read(answer.get("size") or 0)
            if hashlib.sha256(content).hexdigest() != answer.get("digest", _NOTHING):
                raise LinkLost("a file did not arrive as it was sent")
            return answer, content
        finally:
            end_connection(process)


@dataclass
class Link:
    """A worker's process as its parent sees it: on this machine, or on a device.

    Attributes:
        lease: The device; None where it runs here and nothing travels.
        readings: Clocks, temperatures, free memory and load before it began, raw.
    """

    lease: Lease | None
    process: Connection
    folder: str = ""
    reproduce: str = ""
    readings: Mapping[str, Any] = field(default_factory=dict)
    _outputs: list[tuple[str, Path]] = field(default_factory=list)
    _count: int = 0

    def send_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments with paths as they are there: files are sent, others will be fetched.

        Raises:
            LinkLost: The connection broke.
        """
        there = dict(arguments)
        for name, value in arguments.items():
            if self.lease is None or not isinstance(value, Path):
                continue
            if value.is_file():
                parcel = pack_files({value.name: value})[0]
                if parcel.place not in self.lease.sent:
                    self.lease.ask({"do": "put"}, [parcel])
                    self.lease.sent.add(parcel.place)
                there[name] = parcel.place
            else:
                self._count += 1
                there[name] = f"{self.folder}/{self._count}-{value.name}"
                self._outputs.append((there[name], value))
        return there

    def fetch_outputs(self) -> None:
        """Bring back what the last command has written. Raises LinkLost: the connection broke."""
        while self.lease is not None and self._outputs:
            place, path = self._outputs.pop()
            answer, content = self.lease.ask({"do": "fetch", "path": place})
            if answer["size"] is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def kill(self) -> None:
        """End the worker, whatever it does; a device's without a connection ends by itself."""
        self.kill_process()
        if self.lease is not None:
            with suppress(LinkLost):
                self.lease.ask({"do": "kill", "path": self.folder})

    def kill_process(self) -> None:
        """End the process here, and what it left."""
        if isinstance(self.process, subprocess.Popen):
            kill_group(self.process)
        else:
            self.process.kill()


def start_remote_worker(lease: Lease, job: WorkerJob, stderr: int | IO[bytes]) -> Link:
    """Send what a job needs and start its worker; what fails shows in how the process ends."""
    parcels: list[Parcel] = []

    def place(files: Mapping[str, Path], name: str) -> Path:
        packed = pack_files(files)
        parcels.extend(packed)
        return Path(next(item.place for item in packed if item.place.endswith(f"/{name}")))

    models = {}
    for name, path in job.models.items():
        listed = file.list_model_files(path) if path.suffix == ".onnx" else {path.name: path}
        files = {
            path.name if item == path else location: item for location, item in listed.items()
        }
        models[name] = place(files, path.name)
    feeds = {name: place({path.name: path}, path.name) for name, path in job.feeds.items()}
    source = pack_source()
    folder = f"jobs/{lease.session}/{job.out.name}-{uuid.uuid4().hex[:6]}"
    there = replace(job, models=models, feeds=feeds, out=Path(folder), environment=HERE)
    parcels = [*dict.fromkeys(parcels), source]
    order = {"do": "work", "session": lease.session, "source": source.place}
    order |= {"job": codec.encode(there)}
    python = Path(lease.device.python)
    words = make_python_command(
        "-m", "ortune.measurement.worker", f"{folder}/job.json", python=python
    )
    home = f"PYTHONPATH=$PWD/{Path(source.place).parent}/unpacked"
    again = f"cd {lease.device.folder} && {home} {shlex.join(words)}"
    reproduce = shlex.join(lease.device.spell_command(again))
    with suppress(LinkLost):
        lease.hold()
    process = lease.connect(order, stderr, parcels)
    link = Link(lease, process, folder, reproduce)
    with suppress(LinkLost):
        answer = read_device_answer(process)
        send_files(process, [parcels[at] for at in answer["lacking"]])
        lease.sent.update(parcel.place for parcel in parcels)
        link.readings = answer["readings"]
    return link


@dataclass(frozen=True)
class Parcel:
    """A file on its way.

    Attributes:
        place: Where it lies there, named by what is in it.
        digest: SHA-256 of its bytes.
        content: Its bytes, or the file here that has them.
    """

    place: str
    size: int
    digest: str
    content: Path | bytes = field(repr=False)


def pack_files(files: Mapping[str, Path]) -> list[Parcel]:
    """Return files that lie beside each other, in a folder named by what is in all of them."""
    digests = {}
    for name, path in files.items():
        status = path.stat()
        digests[name] = _digest_version(path.resolve(), status.st_mtime_ns, status.st_size)
    key = hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:32]
    return [
        Parcel(f"files/{key}/{name}", path.stat().st_size, digests[name], path)
        for name, path in files.items()
    ]


@cache
def _digest_version(path: Path, changed_ns: int, size: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@cache
def pack_source() -> Parcel:
    """Return the files of our own that a worker imports, as one archive."""
    home, buffer = Path(__file__).parents[1], io.BytesIO()
    folders = [home / name for name in _PACKAGES]
    paths = [home / "__init__.py", *(path for item in folders for path in item.rglob("*.py"))]
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(paths):
            entry = zipfile.ZipInfo(path.relative_to(home.parent).as_posix())
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    return Parcel(f"source/{digest[:32]}/source.zip", len(content), digest, content)


def send_files(process: Connection, parcels: Sequence[Parcel]) -> None:
    """Send the bytes of files, one after the other."""
    for parcel in parcels:
        if isinstance(parcel.content, bytes):
            send(process, parcel.content)
            continue
        with parcel.content.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                send(process, chunk)


def send(process: Connection, content: bytes) -> None:
    """Write to a connection; that it broke is seen where an answer is awaited."""
    assert process.stdin is not None, "a connection has pipes"
    with suppress(BrokenPipeError):
        process.stdin.write(content)
        process.stdin.flush()


def read_device_answer(process: Connection) -> dict[str, Any]:
    """Read a line that a device answers. Raises LinkLost: there is none."""
    assert process.stdout is not None, "a connection has pipes"
    line = process.stdout.readline()
    if not line.endswith(b"\n"):
        remarks = (
            process.stderr.read().decode(errors="replace").split("\n") if process.stderr else []
        )
        raise LinkLost(next((text for text in reversed(remarks) if text.strip()), "no answer"))
    answer: dict[str, Any] = json.loads(line)
    return answer


_NOTHING = hashlib.sha256().hexdigest()


def end_connection(process: Connection) -> None:
    """Close a connection, and wait for its end for a while."""
    assert process.stdin is not None and process.stdout is not None, "a connection has pipes"
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(timeout=_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    if process.stderr is not None:
        process.stderr.close()


def _beat(process: Connection) -> None:
    """Tell a device now and then that its search is alive."""
    while process.poll() is None:
        with suppress(ValueError):  # it is closed meanwhile
            send(process, b".")
        time.sleep(_HEARTBEAT_S)


LEASES: ContextVar[tuple[Lease, ...]] = ContextVar("leases", default=())
"""The devices that are open, and in use."""
