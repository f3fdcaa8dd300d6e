"""Target `commands`: whole commands in processes of their own, with real sessions."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import ortune
from tests.fuzz import archives, bundles, feeds, models, mutate, wire
from tests.fuzz.answers import Answer, check
from tests.fuzz.models import FIXTURES
from tests.fuzz.target import Broken, Case, Target
from tests.fuzz.watch import PATIENCE
from tests.models import write_classifier

SECONDS = 30.0
_RUNTIME = {".ses"}
"""What onnxruntime itself leaves in the folder for temporary files."""
_BYTES = 1 << 30
_SELF = 500 << 20
"""What a process with the runtime in it has before it is given anything."""
_FIELDS = {
    "M": "m.onnx",
    "D": "d.npz",
    "P": "p.ortune",
    "R": "r",
    "J": "j.json",
    "ON": "cpu(threads=1)",
    "B": "top1>=base-0.5",
}
_LINES: tuple[str, ...] = (
    "optimize M --data D --time 2s --on ON -o out --quiet",
    "optimize M --time 2s --on ON -o out --quiet",
    "optimize M --data D --time 2s --on ON -o out --quiet --budget B",
    "bench M --on ON --time 0.2 --sets 2",
    "bench M --data D --on ON --time 0.2 --sets 2 --batch 2",
    "profile M --on ON --time 0.2 --runs 2",
    "verify M M --data D --on ON",
    "apply M simplify STEP -o out.onnx",
    "apply M STEP --data D -o out.onnx",
    "convert M out.onnx --precision int8",
    "convert M out.onnx --precision fp16 --data D",
    "calibrate M --data D -o out.json",
    "inspect M --on ON",
    "diff M M",
    "extract M --from h1 --to logits -o out.onnx",
    "tune M --time 2s --on ON",
    "timeline M --on ON --starts 1 --time 0.2",
    "run M D --on ON",
    "run P D",
    "pack R -o out.ortune",
    "report R -o out.html",
    "explain R",
    "explain R --plan 1",
    "sensitivity M --data D --on ON --time 2s",
    "cost R",
    "compare J J",
)


@cache
def whole() -> dict[str, bytes]:
    """Return a model and samples that fit it, a bundle, a run's files and a saved run."""
    with TemporaryDirectory() as name:
        model, data = write_classifier(Path(name), samples=40)
        found = {"m.onnx": model.read_bytes(), "d.npz": (data / "all.npz").read_bytes()}
    found["p.ortune"] = archives.zipped(list(bundles.seeds()[0]))
    found["j.json"] = (FIXTURES / "bench.json").read_bytes()
    return found | {f"r/{name}": content for name, content in bundles.runs()[0].items()}


def draw(rng: Random) -> Case:
    """Return a command that would work, with one of its files or words changed."""
    line = rng.choice(_LINES)
    files = dict(whole())
    steps = ("fp16", "int8-dynamic", "fuse-gelu", "int8-static", "int4-weights")
    fields = {**_FIELDS, "STEP": rng.choice(steps)}
    spelled = [fields.get(word, word) for word in line.split()]
    kind = rng.randrange(6)
    if kind == 0:
        at = rng.randrange(1, len(spelled))
        spelled[at] = mutate.text(rng, spelled[at])
    elif kind == 1:
        spelled = [*spelled, *rng.choice(_extras())]
    elif kind < 5:
        _change(
            rng, rng.choice([word for word in line.split() if word in "MDPRJ"] or ["M"]), files
        )
    kept = tuple(word.replace("\0", "") for word in spelled)
    return Case(f"{line.split()[0]} ({kind})", _used(files, kept), kept)


def _used(files: dict[str, bytes], line: Sequence[str]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name.split("/")[0] in line}


def _extras() -> Sequence[Sequence[str]]:
    return (
        ["--on", "cpu(threads=5000)"],
        ["--shape", "x:1000000x64"],
        ["--shape", "x:1x64"],
        ["--range", "x:0..1"],
        ["--batch", "100000"],
        ["--memory-limit", "1M"],
        ["--memory-limit", "300M"],
        ["--custom-ops", "nope.so"],
        ["--evaluate", "os:getcwd"],
        ["--data", "os:getcwd"],
        ["--data", "json:loads"],
        ["--labels", "d.npz"],
        ["--workload", "arrivals(rate=1000000)"],
        ["--workload", "throughput"],
        ["--augment", "noise(db=1)"],
        ["--json"],
        ["-v"],
        ["--force"],
        ["--time", "1e9"],
        ["--threads", "1,2"],
        ["--time", "0.001s"],
    )


def _change(rng: Random, which: str, files: dict[str, bytes]) -> None:
    """Change one of the files that a command is given."""
    if which == "M":
        files["m.onnx"] = rng.choice((models.draw(rng).files["model.onnx"], _classifier(rng)))
    elif which == "D":
        held = archives.members(files["d.npz"])
        at = rng.randrange(len(held))
        held[at] = held[at][0], feeds.changed(rng, held[at][1])
        files["d.npz"] = archives.zipped(held, 8)
    elif which == "P":
        files["p.ortune"] = bundles.bundle(rng).files["x.ortune"]
    elif which == "R":
        for name, content in bundles.run(rng).files.items():
            files[name.replace("run/", "r/")] = content
    else:
        files["j.json"] = mutate.raw(rng, files["j.json"])


def _classifier(rng: Random) -> bytes:
    return wire.change(rng, whole()["m.onnx"])


def read(case: Case, folder: Path) -> None:
    """Run the command and look at what it said and left.

    Raises:
        Broken: It took too long or too much, said what none may say, or left something.
    """
    temporary = folder / "tmp"
    temporary.mkdir()
    before = set(folder.iterdir())
    began = time.monotonic()
    found, peak = _run(case.words, folder, temporary)
    took = time.monotonic() - began
    for log in temporary.glob("ortune-traceback-*"):
        raise Broken(f"unforeseen in a command: {log.read_text()[-4000:]}")
    check(found, alone=False)
    if took > SECONDS * PATIENCE:
        raise Broken(f"it ended late: {took:.0f} s")
    if peak > _SELF + _BYTES + case.size:
        raise Broken(f"it took too much memory: {peak / 1e6:.0f} MB")
    if left := [path.name for path in temporary.iterdir() if path.name not in _RUNTIME]:
        raise Broken(f"temporary files are left: {left}")
    if found.code == 2 and (more := {path.name for path in set(folder.iterdir()) - before}):
        raise Broken(f"something is left behind by a failed command: {sorted(more)}")


def _run(line: Sequence[str], folder: Path, temporary: Path) -> tuple[Answer, int]:
    """Run a command in a session of its own; return its answer and peak memory in bytes.

    Raises:
        Broken: It did not end, or left a process.
    """
    source = str(Path(ortune.__file__).parents[1])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(p for p in (source, os.environ.get("PYTHONPATH")) if p),
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
    }
    streams = [(folder.parent / name).open("w+b") for name in ("stdout", "stderr")]
    process = subprocess.Popen(
        [sys.executable, "-m", "ortune.cli.main", *line],
        stdin=subprocess.DEVNULL,
        stdout=streams[0],
        stderr=streams[1],
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    until = time.monotonic() + 2 * SECONDS * PATIENCE
    status = usage = None
    while usage is None and time.monotonic() < until:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        usage = used if pid else None
        time.sleep(0.02)
    left = _end(process.pid)
    if usage is None:
        raise Broken(f"it did not end: {line!a}"[:500])
    process.returncode = code = os.waitstatus_to_exitcode(status or 0)
    if left:
        raise Broken("a process outlives its command: it was killed")
    texts = []
    for stream in streams:
        stream.seek(0)
        texts.append(io.TextIOWrapper(stream, encoding="utf-8", errors="replace").read())
    return Answer(code, *texts), usage.ru_maxrss * 1024


def _end(pid: int) -> bool:
    """End all that is left of a session; say whether there was anything."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    time.sleep(0.5)  # a worker that was told to end may be ending
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def corpus() -> Sequence[Callable[[], Case]]:
    """Return each command as it is, which must do what it says, and what was seen to break."""

    def made(line: str) -> Case:
        fields = {**_FIELDS, "STEP": "fp16"}
        spelled = tuple(fields.get(word, word) for word in line.split())
        return Case(line.split()[0], _used(dict(whole()), spelled), spelled)

    seen = (
        "bench M --on cpu(threads=100000)",
        "bench M --shape x:100000000x64 --on ON",
        "optimize M --time 2s --on cpu(threads=5000) -o out",
        "optimize M --data D --time nan -o out",
        "verify M M --evaluate os:system",
        "inspect nowhere.onnx",
        "optimize M --data D --time 2s --on ON -o out --quiet --workload arrivals(rate=1000000)",
    )
    return [lambda line=line: made(line) for line in (*seen, *_LINES)]  # type: ignore[misc]


TARGET = Target("commands", cache(corpus), draw, read, patience=2.5 * SECONDS * PATIENCE)
