"""Where ``--executor`` has plans timed: here, on a device by ssh, or on a node of Ray.

A node of Ray is a device like another: what `ortune.measurement.devices` sends over ssh goes to a
process that an actor of Ray starts there.
"""

import io
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

from ortune.core.capabilities import HERE
from ortune.core.cluster import is_ray, list_live_nodes, open_cluster
from ortune.core.errors import BadSettings, suggest_names
from ortune.core.python_process import make_python_command
from ortune.measurement.devices import LOST, Connection, Device, open_device, read_inventory

KIND = "target:"  # what the resource of Ray is called that a node of a kind has: ``target:rpi5``
_SHARE = 1e-3  # how much of that resource what starts processes takes
_CHUNK = 1 << 20
_START_S = 60.0  # how long a node of a kind is waited for: that one is gone shows in half of it
_OF_RAY = ("OMP_NUM_THREADS", "PYTHONPATH")
"""What Ray sets for its workers, and would change how fast a model runs or what is imported."""


@contextmanager
def open_devices(executor: str) -> Iterator[tuple[Device, ...]]:
    """Give the devices that ``--executor`` names: one, or all of an inventory or a cluster.

    Those of Ray are one a kind; the cluster is joined while the block runs.

    Raises:
        BadSettings: It is no executor, or has no such device; no cluster answers.
    """
    address, _, name = executor.partition("#")
    kind, _, place = address.partition(":")
    if is_ray(address):
        with open_cluster(address):
            kinds = sorted({kind for node in describe_nodes() for kind in node["kinds"]})
            devices = {kind: RayDevice(kind, address) for kind in kinds}
            if name and name not in devices:
                raise BadSettings(
                    f"no node of the Ray cluster is of the kind '{name}'",
                    fix=f"run there: ray start --address=HOST:PORT "
                    f"--resources='{{\"{KIND}{name}\": 1}}'",
                )
            yield (devices[name],) if name else tuple(devices.values())
    elif kind == "ssh" and place:
        inventory = {device.name: device for device in read_inventory(Path(place))}
        if name and name not in inventory:
            raise BadSettings(
                f"{place} has no device '{name}'", fix=suggest_names(name, inventory)
            )
        yield (inventory[name],) if name else tuple(inventory.values())
    else:
        raise BadSettings(
            f"there is no executor '{executor}'",
            fix="write local, ssh:FILE.toml#DEVICE, ray, or ray#KIND",
        )


@contextmanager
def open_executor(executor: str) -> Iterator[str]:
    """Let workers run where ``--executor`` says while the block runs; give its environment.

    That stands for all devices of an inventory, or all nodes of a kind.

    Raises:
        BadSettings: As `open_devices`.
    """
    if executor == "local":
        yield HERE
        return
    with open_devices(executor) as devices:
        name = executor.partition("#")[2]
        if is_ray(executor):  # without a kind this machine times
            devices = _list_by_node(name, devices[0].host) if name else ()
        with open_device(*devices, environment=name) as environment:
            yield environment


def _list_by_node(kind: str, address: str) -> tuple[Device, ...]:
    """Return a device a node of a kind; where there is one node, another may take its place."""
    resource = f"{KIND}{kind}"
    nodes = sorted(n["NodeID"] for n in list_live_nodes() if resource in n["Resources"])
    if len(nodes) < 2:
        return (RayDevice(kind, address),)
    numbered = enumerate(nodes, 1)
    return tuple(RayDevice(f"{kind}.{place}", address, node=node) for place, node in numbered)


def describe_nodes() -> list[dict[str, Any]]:
    """Return address, CPUs, bytes of memory and kinds of each node of the cluster that is open."""
    return [
        {
            "node": node["NodeManagerAddress"],
            "cpus": node["Resources"].get("CPU", 0),
            "memory": int(node["Resources"].get("memory", 0)),
            "kinds": sorted(
                name.removeprefix(KIND) for name in node["Resources"] if name.startswith(KIND)
            ),
        }
        for node in list_live_nodes()
    ]


@dataclass(frozen=True)
class RayDevice(Device):
    """A node of a Ray cluster that has the resource ``target:NAME``; another where it is lost.

    Attributes:
        host: Address of the cluster, as ``--executor`` says it.
        node: The only one that it may be, whatever its name.
    """

    node: str = ""
    _shells: list[Any] = field(default_factory=list, compare=False)

    def run_code(self, code: str, stderr: int | IO[bytes]) -> Connection:
        """Start Python code there, by the interpreter that Ray itself has there."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        for _ in range(2):
            if not self._shells:
                options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 64}
                if self.node:
                    node = NodeAffinitySchedulingStrategy(self.node, soft=False)
                    options["scheduling_strategy"] = node
                else:
                    options["resources"] = {f"{KIND}{self.name}": _SHARE}
                self._shells.append(ray.remote(_Shell).options(**options).remote())
            try:
                return RayConnection.begin(self._shells[0], code, stderr)
            except ray.exceptions.RayError:
                self._shells.clear()
        return RayConnection(None, 0, LOST)

    def spell_command(self, command: str) -> list[str]:
        """Return the words that run a shell's command there, typed on the node itself."""
        return ["eval", f"cd && {command}"]


class _Shell:
    """What an actor of Ray does on its node: start processes and pass on their bytes."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, code: str) -> int:
        """Start Python code; return the process's number."""
        self._processes.append(
            subprocess.Popen(
                make_python_command("-c", code, isolated=True),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                cwd=Path.home(),  # as by ssh
                env={name: text for name, text in os.environ.items() if name not in _OF_RAY},
            )
        )
        return len(self._processes) - 1

    def write(self, number: int, content: bytes) -> bool:
        """Write to standard input, which no bytes close; say whether it was read from."""
        pipe = self._processes[number].stdin
        assert pipe is not None
        try:
            if content:
                pipe.write(content)
                pipe.flush()
            else:
                pipe.close()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def read(self, number: int, stream: str) -> bytes:
        """Return what comes next of ``stdout`` or ``stderr``; nothing at the end."""
        content: bytes = getattr(self._processes[number], stream).read1(_CHUNK)
        return content

    def wait(self, number: int, timeout_s: float | None) -> int | None:
        """Return the exit code, or None where it still runs by then."""
        with suppress(subprocess.TimeoutExpired):
            return self._processes[number].wait(timeout_s)
        return None

    def kill(self, number: int) -> None:
        """End it at once."""
        self._processes[number].kill()


class RayConnection:
    """A process that a `_Shell` has started; a node or an actor that is lost ends it."""

    def __init__(self, shell: Any, number: int, returncode: int | None = None) -> None:
        self._shell, self._number = shell, number
        self.pid = 0
        self.returncode: int | Any = returncode
        self.stdin: IO[bytes] | None = io.BufferedWriter(_Writer(self), _CHUNK)
        self.stdout: IO[bytes] | None = io.BufferedReader(_Reader(self, "stdout"), _CHUNK)
        self.stderr: IO[bytes] | None = io.BufferedReader(_Reader(self, "stderr"), _CHUNK)

    @classmethod
    def begin(cls, shell: Any, code: str, stderr: int | IO[bytes]) -> Self:
        """Start a process; its remarks go where `subprocess.Popen` would send them.

        Raises:
            ray.exceptions.RayError: The node is lost, or none of the kind is free.
        """
        import ray

        self = cls(shell, ray.get(shell.start.remote(code), timeout=_START_S))
        if not isinstance(stderr, int):
            assert self.stderr is not None
            copy = os.fdopen(os.dup(stderr.fileno()), "wb")
            threading.Thread(target=_copy, args=(self.stderr, copy), daemon=True).start()
            self.stderr = None
        return self

    def ask(self, method: str, *arguments: Any) -> Any:
        """Ask the shell; None where it is lost, which ends the process."""
        import ray

        if self._shell is None or not ray.is_initialized():  # asking would start a cluster
            return None
        try:
            return ray.get(getattr(self._shell, method).remote(self._number, *arguments))
        except ray.exceptions.RayError:
            self._shell, self.returncode = None, LOST
            return None

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raise `subprocess.TimeoutExpired` after so many seconds."""
        if self.returncode is None:
            code = self.ask("wait", timeout)
            self.returncode = LOST if self._shell is None else code
        if self.returncode is None:
            raise subprocess.TimeoutExpired("the worker", timeout or 0.0)
        return int(self.returncode)

    def kill(self) -> None:
        """End it at once."""
        self.ask("kill")


class _Reader(io.RawIOBase):
    """What a process on a node writes."""

    def __init__(self, connection: RayConnection, stream: str) -> None:
        self._next: Callable[[], bytes | None] = partial(connection.ask, "read", stream)
        self._unread = b""

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes; 0 at the end."""
        content = self._unread or self._next() or b""
        count = min(len(buffer), len(content))
        buffer[:count], self._unread = content[:count], content[count:]
        return count


class _Writer(io.RawIOBase):
    """What a process on a node reads."""

    def __init__(self, connection: RayConnection) -> None:
        self._write: Callable[[bytes], bool | None] = partial(connection.ask, "write")

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, content: Any) -> int:
        """Send bytes. Raises BrokenPipeError: nobody reads them."""
        sent = bytes(content)
        if sent and not self._write(sent):
            raise BrokenPipeError("the worker reads no more")
        return len(sent)

    def close(self) -> None:
        """Say that nothing more comes."""
        if not self.closed:
            self._write(b"")
        super().close()


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    with source, target:
        for line in source:
            target.write(line)
            target.flush()
