"""The device's side of a connection: it takes files by content, then becomes a worker.

Its text is the argument of ``python3 -c`` on the device (`ortune.measurement.devices`), so it
needs the standard library alone. One line of JSON says what is asked; files lie below one folder
and are named by what is in them, so that each travels once.
"""

import hashlib
import json
import os
import runpy
import shutil
import signal
import site
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    sys.exit("a device has to run Linux, macOS or another Unix")

_CHUNK = 1 << 20
_SILENCE_S = 20.0  # after so much silence a search is taken for dead
_COOLING_S, _PAUSE_S = 300.0, 2.0
_BUSY = "another search is timing on this device: wait for it"
_KEPT_S = 86400.0
"""How long the folders of jobs are kept, so that a failure can be repeated by hand."""


def main() -> None:
    """Read the order and carry it out; a refusal is a line on stderr."""
    if sys.version_info < (3, 11):  # noqa: UP036 - it is another Python than ours
        sys.exit("Python 3.11 or later is needed on the device: name it in the inventory")
    line = b""
    while not line.endswith(b"\n"):  # and not a byte more: the rest is another's to read
        byte = os.read(0, 1)
        if not byte:
            sys.exit("the connection ended before anything was asked")
        line += byte
    order: Mapping[str, Any] = json.loads(line)
    os.umask(0o077)
    root = Path(order["folder"]).expanduser()
    root.mkdir(parents=True, exist_ok=True)
    os.chdir(root)
    {"work": _work, "put": _put, "fetch": _fetch, "hold": _hold, "kill": _kill}[order["do"]](order)


def _work(order: Mapping[str, Any]) -> None:
    """Take files, cool down, and become the worker of a job: its commands come next."""
    holder = Path("lock").read_text(encoding="utf-8") if Path("lock").exists() else ""
    if holder != order["session"]:
        sys.stderr.write(f"{_BUSY}\n")
        sys.exit(255)  # as where it is not reached: that says nothing of the plan
    below, began = order["cool_below"], time.monotonic()
    while below is not None and time.monotonic() - began < _COOLING_S:
        if max(read_device_state()["celsius"].values(), default=0.0) < below:
            break
        time.sleep(_PAUSE_S)
    waited_s = time.monotonic() - began
    _take_files(order["files"], {"readings": {**read_device_state(), "waited_s": waited_s}})
    source = Path(order["source"])
    if not (home := source.parent / "unpacked").exists():
        draft = source.parent / f"draft-{os.getpid()}"
        with zipfile.ZipFile(source) as archive:
            archive.extractall(draft)
        with suppress(OSError):  # another worker was there first
            draft.rename(home)
        shutil.rmtree(draft, ignore_errors=True)
    folder = Path(order["job"]["out"])
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(order["job"]), encoding="utf-8")
    (folder / "pid").write_text(str(os.getpid()), encoding="utf-8")
    site.addsitedir(site.getusersitepackages())  # isolated mode leaves it out
    sys.path.insert(0, str(home.absolute()))
    sys.argv[1:] = [str(folder / "job.json")]
    runpy.run_module("ortune.measurement.worker", run_name="__main__")


def _put(order: Mapping[str, Any]) -> None:
    """Take files for a worker that runs."""
    _take_files(order["files"], {})
    _tell({"taken": True})


def _fetch(order: Mapping[str, Any]) -> None:
    """Send a file that a worker has written, if there is one."""
    path = Path(order["path"])
    content = path.read_bytes() if path.is_file() else b""
    digest = hashlib.sha256(content).hexdigest()
    _tell({"size": len(content) if path.is_file() else None, "digest": digest})
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _hold(order: Mapping[str, Any]) -> None:
    """Keep every other search off this device until this one is silent; then end its workers."""
    import fcntl
    import select

    jobs = Path("jobs")
    for folder in jobs.glob("*/*") if jobs.is_dir() else ():
        if time.time() - folder.stat().st_mtime > _KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)
    with Path("lock").open("a", encoding="utf-8") as lock:
        until = time.monotonic() + order["wait_s"]
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > until:
                    sys.exit(_BUSY)
                time.sleep(0.5)
        lock.truncate(0)
        lock.write(order["session"])
        lock.flush()
        _tell({"held": True, "readings": read_device_state()})
        while select.select([0], [], [], _SILENCE_S)[0] and os.read(0, 1):
            pass
        for folder in jobs.glob(f"{order['session']}/*"):
            _end_worker(folder)


def _kill(order: Mapping[str, Any]) -> None:
    """End the worker of a job, whatever it does."""
    _end_worker(Path(order["path"]))
    _tell({"ended": True})


def _end_worker(folder: Path) -> None:
    with suppress(OSError, ValueError):
        number = int((folder / "pid").read_text(encoding="utf-8"))
        if b"ortune.measurement" in Path(f"/proc/{number}/cmdline").read_bytes():
            os.kill(number, signal.SIGKILL)


def _take_files(files: Sequence[Sequence[Any]], answer: Mapping[str, Any]) -> None:
    """Say which files are lacking, and take these: each appears whole and with its digest."""
    lacking = [
        at
        for at, (place, size, _) in enumerate(files)
        if not Path(place).is_file() or Path(place).stat().st_size != size
    ]
    _tell({**answer, "lacking": lacking})
    for at in lacking:
        place, size, digest = files[at]
        path, total = Path(place), hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}.part")
        with draft.open("wb") as file:
            while size:
                chunk = os.read(0, min(size, _CHUNK))
                if not chunk:
                    draft.unlink()
                    sys.exit("the connection ended while a file was on its way")
                file.write(chunk)
                total.update(chunk)
                size -= len(chunk)
        if total.hexdigest() != digest:
            draft.unlink()
            sys.exit(f"{path.name} did not arrive as it was sent")
        draft.rename(path)


def read_device_state() -> dict[str, Any]:
    """Read clocks, temperatures, free memory and load, raw; what a system hides is left out."""
    celsius: dict[str, float] = {}
    for zone in Path("/sys/class/thermal").glob("thermal_zone*"):
        with suppress(OSError, ValueError):
            kind = (zone / "type").read_text(encoding="utf-8").strip()
            celsius[f"{zone.name} {kind}"] = int((zone / "temp").read_text()) / 1000
    clocks: dict[str, dict[str, str]] = {}
    for folder in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq"):
        names = ("scaling_cur_freq", "cpuinfo_max_freq", "scaling_governor")
        with suppress(OSError):
            clocks[folder.parent.name] = {n: (folder / n).read_text().strip() for n in names}
    free = None
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").split("MemAvailable:")
        free = 1024 * int(lines[1].split()[0])
    load = os.getloadavg()
    return {"celsius": celsius, "clocks": clocks, "free_bytes": free, "load": load[0]}


def _tell(answer: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
