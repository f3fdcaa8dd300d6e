"""Say what runs here, and how fit this machine is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortune.cli.terminal.command import verb, verbose
from ortune.cli.terminal.output import answer, remark, say, size, table
from ortune.core import wording
from ortune.core.capabilities import HERE, State, mixed
from ortune.core.errors import OrtuneError
from ortune.core.request import WorkerRequest, request

if TYPE_CHECKING:
    from ortune.core.backend import Backend
    from ortune.core.hardware.gpu import Gpu
    from ortune.measurement.environments.check import GpuProblem, OfferedThere


MEANING = {
    "avx2": "float32 and int8",
    "avx512f": "wider float32",
    "avx_vnni": "fast int8",
    "avx512_vnni": "fast int8",
    "avx512_bf16": "bf16 arithmetic",
    "avx512_fp16": "fp16 arithmetic",
    "amx_int8": "much faster int8",
    "amx_bf16": "much faster bf16",
    "amx_fp16": "much faster fp16",
    "asimddp": "fast int8",
    "i8mm": "faster int8",
    "bf16": "bf16 arithmetic",
}


@dataclass(frozen=True)
class TriedHere:
    """One backend or sample.

    Attributes:
        name: As ``--on`` or ``--model`` spells it.
        state: Whether it runs, and what is wrong where it does not.
        detail: What was proved, or what to do.
        unverified: Why what is offered was never seen to run on its device; empty where it was.
    """

    name: str
    state: State
    detail: str
    unverified: str = ""


@request
class _Asked(WorkerRequest):
    """Say whether this machine is fit to measure, what runs here, and what to install.

    A small model is timed against itself for a few seconds, and tried on every backend in a
    process of its own, and every environment is asked what it offers.

    Example:
        ortune doctor
        ortune doctor --json
    """


@verb(_Asked)
def command(asked: _Asked) -> None:
    """Show the machine, its backends and the demo's models.

    Raises:
        OrtuneError: No backend works.
    """
    import tempfile

    from ortune.analysis.benchmark.bench import here
    from ortune.core.capabilities import runtimes
    from ortune.core.hardware import gpu
    from ortune.core.plugins import catalog
    from ortune.core.sample import Sample
    from ortune.measurement.environments import check
    from ortune.measurement.machine import noise
    from ortune.measurement.machine.machine import machine, versions

    remark("timing a small model against itself, some seconds")
    fitness = here()
    backends = probe(verbose())
    missing = {name: catalog.load(Sample, name)().missing() for name in catalog.names(Sample)}
    samples = tuple(
        TriedHere(name, "not installed", reason)
        if reason
        else TriedHere(name, "works", f"ortune demo --model {name}")
        for name, reason in missing.items()
    )
    environments, boards, driver = check.offered(), gpu.gpus(), gpu.driver()
    installed = [one.environment for one in environments]
    devices = check.gpu_problems(boards, driver, installed, runtimes())
    result = {
        "fitness": fitness,
        "versions": versions(),
        "machine": machine(),
        "cpus": cpus(),
        "memory": memory(),
        "disk_free": {
            "here": shutil.disk_usage(".").free,
            "temporary": shutil.disk_usage(tempfile.gettempdir()).free,
        },
        "warm_start": warm_start(),
        "noise": noise.now(),
        "backends": backends,
        "environments": environments,
        "gpus": boards,
        "driver": driver,
        "samples": samples,
        "problems": problems(runtimes(), environments, devices),
    }
    answer(result, lambda: _show(result, backends, samples))
    if not any(found.state == "works" for found in backends):
        raise OrtuneError("no backend works here", fix="pip install --force-reinstall onnxruntime")


def probe(verbose: bool) -> tuple[TriedHere, ...]:
    """Load a small model in a worker on every backend, and on each of its other devices."""
    import tempfile
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context

    from ortune.core.backend import Backend
    from ortune.core.plugins import catalog

    kinds = [catalog.load(Backend, name) for name in catalog.names(Backend)]
    tried = [one for kind in kinds for one in kind.tried()]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(tried)) as pool:
        probing = [
            pool.submit(copy_context().run, _probe, one, Path(folder) / str(at), verbose)
            for at, one in enumerate(tried)
        ]
        return tuple(one.result() for one in probing)


def _probe(backend: Backend, folder: Path, verbose: bool) -> TriedHere:
    from importlib.resources import as_file, files

    from ortune.measurement.job import MAIN, WorkerJob
    from ortune.measurement.process import Worker, WorkerFailed, capabilities

    name = str(backend)
    offered = capabilities(backend)
    if offered.missing:
        return TriedHere(name, offered.state, offered.missing, backend.unverified)
    with as_file(files("ortune.data.zoo") / "digit_cnn.onnx") as model:
        folder.mkdir()
        job = WorkerJob({MAIN: model.absolute()}, backend, {}, folder, verbose=verbose)
        try:
            with Worker(job, timeout_s=60) as worker:
                placed: Mapping[str, int] = worker.ask("load")["placement"]
        except (WorkerFailed, OrtuneError) as error:
            said = str(error).splitlines()[0]
            return TriedHere(name, "not loadable", said, backend.unverified)
    proved = ", ".join(f"{wording.count(n, 'node')} on {ep}" for ep, n in placed.items())
    return TriedHere(name, "works", proved, backend.unverified)


def cpus() -> dict[str, Any]:
    """Return the CPUs of the host, of this process's mask, and those that its quota leaves."""
    from ortune.core.hardware.cpus import effective_cpus, usable_cpus

    host = os.cpu_count() or 1
    mask = len(usable_cpus()) or host
    return {"host": host, "affinity": mask, "effective": effective_cpus()}


def memory() -> dict[str, int | None]:
    """Return bytes of memory: of the host, free now, and the cgroup's limit (None without one)."""
    import psutil

    found = psutil.virtual_memory()
    limit: int | None = None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < found.total:
            limit = int(text)
    return {"total": found.total, "available": found.available, "limit": limit}


def warm_start() -> dict[str, Any]:
    """Return where searches leave what paid, how many files there are, and their bytes."""
    from ortune.search.warm_start import folder, kept

    files = kept()
    return {"folder": folder(), "files": len(files), "bytes": sum(p.stat().st_size for p in files)}


def _show(
    result: Mapping[str, Any], backends: tuple[TriedHere, ...], samples: tuple[TriedHere, ...]
) -> None:
    machine, counts, ram = result["machine"], result["cpus"], result["memory"]
    sets = [name for name in machine["instruction sets"].split() if name in MEANING]
    limit = f", limited to {size(ram['limit'])}" if ram["limit"] else ""
    say(str(result["fitness"]))
    facts = [
        ("system", machine["system"]),
        ("CPU", machine["cpu"]),
        ("CPUs", cpu_text(counts)),
        ("instruction sets", ", ".join(f"{n} ({MEANING[n]})" for n in sets) or "unknown"),
        ("memory", f"{size(ram['total'])}, {size(ram['available'])} available{limit}"),
        ("GPU", gpu_text(result["gpus"], result["driver"])),
        ("disk free", f"{size(result['disk_free']['here'])} here"),
        ("what paid before", paid_text(result["warm_start"])),
        *((name, version) for name, version in result["versions"].items()),
    ]
    table(("this machine", ""), facts)
    marks = [(f.name, state(f.state, f.unverified), f.detail) for f in backends]
    table(("backend", "state", "detail"), marks)
    if result["environments"]:
        columns = ("environment", "backend", "state", "detail")
        table(columns, environment_rows(result["environments"]))
    table(("demo model", "state", "detail"), [(f.name, f.state, f.detail) for f in samples])
    for problem in result["problems"]:
        say(f"! {problem['what']}\n  fix: {problem['fix']}")


def paid_text(found: Mapping[str, Any]) -> str:
    """Say where the records of earlier searches lie: whoever wants may remove them."""
    from ortune.core.wording import count

    if not found["files"]:
        if not found["folder"]:
            return "not recorded: there is no home folder"
        return f"nothing recorded yet in {found['folder']}"
    files = count(found["files"], "file")
    return f"{files}, {size(found['bytes'])} in {found['folder']}"


def cpu_text(counts: Mapping[str, int]) -> str:
    """Say how many CPUs may be used, and what narrows them."""
    text = f"{counts['effective']} of {counts['host']} usable"
    if counts["effective"] < counts["affinity"]:
        return f"{text} (a cgroup quota narrows {counts['affinity']})"
    if counts["affinity"] < counts["host"]:
        return f"{text} (the affinity mask narrows {counts['host']})"
    return text


def state(found: str, unverified: str) -> str:
    """Say whether a backend runs, and that nobody saw it run on its device."""
    return f"{found}, unverified" if unverified else found


def environment_rows(environments: Sequence[OfferedThere]) -> list[tuple[str, str, str, str]]:
    """Return a row for every backend that an environment is for."""
    from ortune.core.backend import Backend
    from ortune.core.plugins.spelling import parse

    found = []
    for one in environments:
        name = one.environment.name
        if one.problem:
            found.append((name, "-", "not loadable", one.problem))
        for spelled, told in one.offers.items():
            said = state(told.state, parse(Backend, spelled).unverified)
            found.append((name, spelled, said, told.missing or one.environment.release))
    return found


def gpu_text(boards: Sequence[Gpu], driver: Mapping[str, str]) -> str:
    """Say which GPUs the driver sees, and the versions that matter for them."""
    names = [f"{one.name} ({size(one.memory)})" if one.memory else one.name for one in boards]
    versions = [f"{name} {version}" for name, version in driver.items()]
    return ", ".join([*(names or ["none that an NVIDIA driver tells of"]), *versions])


def problems(
    runtimes: Mapping[str, str],
    environments: Sequence[OfferedThere],
    devices: Sequence[GpuProblem],
) -> list[dict[str, str]]:
    """Return what is wrong with this installation, environments and GPUs, each with its fix.

    Args:
        runtimes: Installed distributions of onnxruntime -> version.
    """
    overwritten = mixed(runtimes)
    pairs = [overwritten] if overwritten else []
    pairs += [
        (f"environment {one.environment.name}: {one.problem}", one.fix)
        for one in environments
        if one.problem
    ]
    for gpu in devices:
        where = "" if gpu.environment == HERE else f"environment {gpu.environment}: "
        pairs.append((f"{where}{gpu.what}", gpu.fix))
    return [{"what": what, "fix": fix} for what, fix in pairs]
