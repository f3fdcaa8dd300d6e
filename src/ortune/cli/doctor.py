"""Check which backends run here, and how noisy this machine is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import is_verbose, make_command
from ortune.cli.terminal.output import (
    format_size,
    print_result,
    print_table,
    print_text,
    write_remark,
)
from ortune.core import wording
from ortune.core.capabilities import HERE, State
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.fields import Option
from ortune.core.hardware.cpus import EMULATED
from ortune.core.request import WorkerRequest, request
from ortune.core.runtime_conflict import find_runtime_conflict
from ortune.core.temporary_folder import open_temporary_folder

if TYPE_CHECKING:
    from ortune.core.backend import Backend
    from ortune.core.hardware.gpu import Gpu
    from ortune.measurement.environments.check import CheckedEnvironment, GpuProblem, OfferedThere


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


_SHOWN = (
    *("onnxruntime", "onnxruntime-gpu", "openvino", "onnxruntime-ep-openvino"),
    *("onnxruntime-ep-nv-tensorrt-rtx-cu13", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
    *("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "tensorrt-cu13-libs", "numpy", "python"),
)
"""Packages whose versions are shown of an environment."""


@dataclass(frozen=True)
class ProbeResult:
    """A backend or sample, as ``--on`` or ``--model`` spells it, and whether it runs.

    `unverified`: why what is offered was never seen to run on its device; empty where it was.
    """

    name: str
    state: State
    detail: str
    unverified: str = ""


@request
class _Options(WorkerRequest):
    """Say whether this machine is fit to measure, what runs here, and what to install.

    A small model is timed against itself for a few seconds, and tried on every backend in a
    process of its own, and every environment is asked what it offers.

    `env` is about the environments alone: other releases of the runtimes, each in a Python of its
    own. pip makes them in the cache folder, from a fixed table of versions. `add`
    takes PACKAGE==VERSION of that table or a word of it (cuda, tensorrt, openvino, rtx), `check`
    (which runs a small model) and `remove` take a name, `list` nothing.

    Example:
        ortune doctor
        ortune doctor env add cuda
        ortune doctor env add onnxruntime==1.24.4
        ortune doctor env check ort-1.24.4
        ortune bench model.onnx --environment here,ort-1.24.4
        ortune doctor --executor ssh:devices.toml

    Attributes:
        subject: The environments alone.
        action: What to do with them; list if not given.
        environment: A release to add, or the name of an environment.
        name: With add: name of the environment; ort-1.24.4 and the like if not given.
        executor: Show instead what devices offer: ssh:FILE.toml of an inventory, or ray.
    """

    subject: Annotated[Literal["env"] | None, Option("[env]")] = None
    action: Annotated[
        Literal["add", "list", "check", "remove"] | None, Option("[add|list|check|remove]")
    ] = None
    environment: Annotated[str | None, Option("[RELEASE|NAME]")] = None
    _: KW_ONLY
    name: Annotated[str | None, Option("NAME")] = None
    executor: Annotated[str, Option("WHERE")] = "local"


@make_command(_Options)
def command(options: _Options) -> int:
    """Show the machine, its backends and the demo's models, or see to an environment."""
    if options.subject == "env":
        return _manage_environments(options)
    if options.name:
        raise BadSettings("--name works only with `ortune doctor env add`", fix="leave it out")
    if options.executor != "local":
        return _examine_devices(options.executor)
    _examine_machine()
    return DONE


def _examine_devices(executor: str) -> int:
    """Show what devices or a cluster offer; exit code 1 where a device is of no use."""
    from ortune.core.cluster import is_ray
    from ortune.measurement.environments.check import check_device
    from ortune.measurement.executors import describe_nodes, open_devices

    with open_devices(executor) as devices:
        nodes = describe_nodes() if is_ray(executor) else []
        checked = [check_device(device) for device in devices]

    def show() -> None:
        if nodes:
            print_table(
                ("node", "CPUs", "memory", "kinds"),
                [
                    (n["node"], f"{n['cpus']:g}", format_size(n["memory"]), ", ".join(n["kinds"]))
                    for n in nodes
                ],
            )
        for device in checked:
            offers = {name: offer for name, offer in device.offers.items() if not offer.missing}
            state = device.readings
            rows = [("host", device.host), ("backends", ", ".join(offers) or "none")]
            for offer in list(offers.values())[:1]:
                rows += offer.machine.items()
                rows += [(k, v) for k, v in offer.versions.items() if k in _SHOWN]
            if state:
                hottest = max(state["celsius"].values(), default=None)
                rows.append(("temperature", "unknown" if hottest is None else f"{hottest:.0f} C"))
                clocks = {c["scaling_governor"] for c in state["clocks"].values()}
                rows.append(("clock governor", ", ".join(clocks) or "unknown"))
                rows.append(("free memory", format_size(state["free_bytes"] or 0)))
                rows.append(("load", f"{state['load']:.2f}"))
            print_table((device.name, ""), rows)
            if device.problem:
                print_text(f"! {device.problem}\n  fix: {device.fix}")

    print_result({"devices": checked, "nodes": nodes}, show)
    return NO if any(device.problem for device in checked) else DONE


def _examine_machine() -> None:
    """Measure what runs here, and show it. Raises OrtuneError: no backend works."""
    import tempfile
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context

    from ortune.analysis.benchmark.bench import measure_local_fitness
    from ortune.core.backend import Backend
    from ortune.core.hardware import gpu
    from ortune.core.hardware.cpus import effective_cpus, usable_cpus
    from ortune.core.plugins import catalog
    from ortune.core.runtime_conflict import list_runtimes
    from ortune.core.sample import Sample
    from ortune.measurement.environments import check
    from ortune.measurement.machine import noise
    from ortune.measurement.machine.machine import describe_machine, package_versions

    write_remark("timing a small model against itself, some seconds")
    fitness = measure_local_fitness()
    # Load a small model in a worker on every backend, and on each of its other devices.
    verbose = is_verbose()  # threads do not know
    kinds = [catalog.load_plugin(Backend, name) for name in catalog.list_plugins(Backend)]
    candidates = [item for kind in kinds for item in kind.tried()]
    with open_temporary_folder() as folder, ThreadPoolExecutor(len(candidates)) as pool:
        probing = [
            pool.submit(copy_context().run, _probe_backend, item, Path(folder) / str(at), verbose)
            for at, item in enumerate(candidates)
        ]
        backends = tuple(item.result() for item in probing)
    missing = {
        name: catalog.load_plugin(Sample, name)().missing()
        for name in catalog.list_plugins(Sample)
    }
    samples = tuple(
        ProbeResult(name, "not installed", reason)
        if reason
        else ProbeResult(name, "works", f"ortune demo --model {name}")
        for name, reason in missing.items()
    )
    environments = check.list_environment_offers()
    boards = gpu.list_gpus()
    driver = gpu.read_driver_versions()
    installed = [offered.environment for offered in environments]
    devices = check.gpu_problems(boards, driver, installed, list_runtimes())
    host = os.cpu_count() or 1
    mask = len(usable_cpus()) or host
    result = {
        "fitness": fitness,
        "versions": package_versions(),
        "machine": describe_machine(),
        # CPUs of the host, of this process's mask, and those that its quota leaves.
        "cpus": {"host": host, "affinity": mask, "effective": effective_cpus()},
        "memory": measure_memory(),
        "disk_free": {
            "here": shutil.disk_usage(".").free,
            "temporary": shutil.disk_usage(tempfile.gettempdir()).free,
        },
        "noise": noise.read_current_state(),
        "backends": backends,
        "environments": environments,
        "gpus": boards,
        "driver": driver,
        "samples": samples,
        "problems": diagnose_problems(list_runtimes(), environments, devices),
    }
    print_result(result, lambda: _print_machine(result, backends, samples))
    if not any(backend.state == "works" for backend in backends):
        raise OrtuneError("no backend works here", fix="pip install --force-reinstall onnxruntime")


def _probe_backend(backend: Backend, folder: Path, verbose: bool) -> ProbeResult:
    from importlib.resources import as_file, files

    from ortune.measurement.job import MAIN, WorkerJob
    from ortune.measurement.process import Worker, WorkerFailed, query_capabilities

    name = str(backend)
    offered = query_capabilities(backend)
    if offered.missing:
        return ProbeResult(name, offered.state, offered.missing, backend.unverified)
    with as_file(files("ortune.data.zoo") / "digit_cnn.onnx") as model:
        folder.mkdir()
        job = WorkerJob({MAIN: model.absolute()}, backend, {}, folder, verbose=verbose)
        try:
            with Worker(job, timeout_s=60) as worker:
                placed: Mapping[str, int] = worker.ask("load")["placement"]
        except (WorkerFailed, OrtuneError) as error:
            reason = str(error).splitlines()[0]
            return ProbeResult(name, "not loadable", reason, backend.unverified)
    proved = ", ".join(f"{wording.format_count(n, 'node')} on {ep}" for ep, n in placed.items())
    return ProbeResult(name, "works", proved, backend.unverified)


def measure_memory() -> dict[str, int | None]:
    """Return bytes of memory: of the host, free now, and the cgroup's limit (None without one)."""
    import psutil

    virtual = psutil.virtual_memory()
    limit: int | None = None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < virtual.total:
            limit = int(text)
    return {"total": virtual.total, "available": virtual.available, "limit": limit}


def _print_machine(
    result: Mapping[str, Any], backends: tuple[ProbeResult, ...], samples: tuple[ProbeResult, ...]
) -> None:
    machine, counts, ram = result["machine"], result["cpus"], result["memory"]
    sets = [name for name in machine["instruction sets"].split() if name in MEANING]
    limit = f", limited to {format_size(ram['limit'])}" if ram["limit"] else ""
    print_text(str(result["fitness"]))
    facts = [
        ("system", machine["system"]),
        ("CPU", machine["cpu"]),
        *((name, machine[name]) for name in (EMULATED,) if name in machine),
        ("CPUs", describe_cpus(counts)),
        ("instruction sets", ", ".join(f"{n} ({MEANING[n]})" for n in sets) or "unknown"),
        (
            "memory",
            f"{format_size(ram['total'])}, {format_size(ram['available'])} available{limit}",
        ),
        ("GPU", describe_gpus(result["gpus"], result["driver"])),
        ("disk free", f"{format_size(result['disk_free']['here'])} here"),
        *((name, version) for name, version in result["versions"].items()),
    ]
    print_table(("this machine", ""), facts)
    marks = [(f.name, describe_state(f.state, f.unverified), f.detail) for f in backends]
    print_table(("backend", "state", "detail"), marks)
    if result["environments"]:
        columns = ("environment", "backend", "state", "detail")
        print_table(columns, environment_rows(result["environments"]))
    print_table(("demo model", "state", "detail"), [(f.name, f.state, f.detail) for f in samples])
    for problem in result["problems"]:
        print_text(f"! {problem['what']}\n  fix: {problem['fix']}")


def describe_cpus(counts: Mapping[str, int]) -> str:
    """Say how many CPUs may be used, and what narrows them."""
    text = f"{counts['effective']} of {counts['host']} usable"
    if counts["effective"] < counts["affinity"]:
        return f"{text} (a cgroup quota narrows {counts['affinity']})"
    if counts["affinity"] < counts["host"]:
        return f"{text} (the affinity mask narrows {counts['host']})"
    return text


def describe_state(availability: str, unverified: str) -> str:
    """Say whether a backend runs, and that nobody saw it run on its device."""
    return f"{availability}, unverified" if unverified else availability


def environment_rows(environments: Sequence[OfferedThere]) -> list[tuple[str, str, str, str]]:
    """Return a row for every backend that an environment is for."""
    from ortune.core.backend import Backend
    from ortune.core.plugins.spelling import parse_plugin

    rows = []
    for offered in environments:
        name = offered.environment.name
        if offered.problem:
            rows.append((name, "-", "not loadable", offered.problem))
        for spelled, offer in offered.offers.items():
            status = describe_state(offer.state, parse_plugin(Backend, spelled).unverified)
            rows.append((name, spelled, status, offer.missing or offered.environment.release))
    return rows


def describe_gpus(boards: Sequence[Gpu], driver: Mapping[str, str]) -> str:
    """Say which GPUs the driver sees, and the versions that matter for them."""
    names = [
        f"{board.name} ({format_size(board.memory)})" if board.memory else board.name
        for board in boards
    ]
    versions = [f"{name} {version}" for name, version in driver.items()]
    return ", ".join([*(names or ["none reported by an NVIDIA driver"]), *versions])


def diagnose_problems(
    runtimes: Mapping[str, str],
    environments: Sequence[OfferedThere],
    devices: Sequence[GpuProblem],
) -> list[dict[str, str]]:
    """Return what is wrong with this installation, environments and GPUs, each with its fix.

    Args:
        runtimes: Installed distributions of onnxruntime -> version.
    """
    overwritten = find_runtime_conflict(runtimes)
    pairs = [overwritten] if overwritten else []
    pairs += [
        (f"environment {offered.environment.name}: {offered.problem}", offered.fix)
        for offered in environments
        if offered.problem
    ]
    for gpu in devices:
        where = "" if gpu.environment == HERE else f"environment {gpu.environment}: "
        pairs.append((f"{where}{gpu.problem}", gpu.fix))
    return [{"what": problem, "fix": fix} for problem, fix in pairs]


def _manage_environments(options: _Options) -> int:
    """Add, list, check or remove; exit code 1 when an environment does not work."""
    action, name = options.action or "list", options.environment or ""
    # Refuse words that do not belong together.
    if action == "list" and name:
        raise BadSettings(f"list takes no '{name}'", fix="write `ortune doctor env list`")
    if action != "list" and not name:
        word, example = ("a release", "cuda") if action == "add" else ("a name", "NAME")
        raise BadSettings(
            f"{action} takes {word}",
            fix=f"write `ortune doctor env {action} {example}`; `ortune doctor env` lists them",
        )
    if options.name and action != "add":
        raise BadSettings("--name works only with add", fix="leave it out")
    if action == "list":
        from ortune.measurement.environments.installed import list_environments
        from ortune.measurement.environments.releases import list_releases

        environments, offered = list_environments(), [str(item) for item in list_releases()]

        def show() -> None:
            if environments:
                rows = [
                    (item.name, item.release or "cannot be read", item.folder)
                    for item in environments
                ]
                print_table(("environment", "release", "folder"), rows)
            else:
                print_text("no environment yet; make one with `ortune doctor env add cuda`")
            print_text(f"available releases: {', '.join(offered)}")

        print_result({"environments": environments, "releases": offered}, show)
        return DONE
    if action == "remove":
        from ortune.measurement.environments.installed import remove_environment

        folder = remove_environment(name)
        print_result({"removed": name, "folder": folder}, lambda: print_text(f"removed: {folder}"))
        return DONE
    if action == "add":
        from ortune.measurement.environments.installed import add_environment

        name = add_environment(name, options.name, options.sink).name
    from ortune.measurement.environments.check import check_environment

    checked = check_environment(name)
    print_result(checked, lambda: _print_environment(checked))
    return NO if checked.problem else DONE


def _print_environment(checked: CheckedEnvironment) -> None:
    environment = checked.environment
    print_text(f"environment: {environment.name} in {environment.folder}")
    versions = [f"{name} {checked.versions[name]}" for name in _SHOWN if name in checked.versions]
    if versions:
        print_text(f"versions:    {', '.join(versions)}")
    for backend, state in (checked.states or {}).items():
        print_text(f"{backend}: {state}")
    if checked.driver:
        print_text(
            f"driver:      {', '.join(f'{name} {v}' for name, v in checked.driver.items())}"
        )
    print_text(
        f"problem:     {checked.problem}\n  fix: {checked.fix}" if checked.problem else "works"
    )
