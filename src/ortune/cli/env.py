"""Keep other releases of the runtimes, each apart."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Literal

from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_result, print_table, print_text
from ortune.core.errors import BadSettings
from ortune.core.fields import Option
from ortune.core.request import WorkerRequest, request

if TYPE_CHECKING:
    from ortune.measurement.environments.check import CheckedEnvironment

_SHOWN = (
    *("onnxruntime", "onnxruntime-gpu", "openvino", "onnxruntime-ep-openvino"),
    *("onnxruntime-ep-nv-tensorrt-rtx-cu13", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
    *("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "tensorrt-cu13-libs", "numpy", "python"),
)


@request
class _Options(WorkerRequest):
    """Keep other releases of the runtimes, each in a Python environment of its own.

    They lie below the cache folder and are made of a fixed table of versions by pip. `add` takes
    PACKAGE==VERSION of that table or a word of it (cuda, tensorrt, openvino, rtx), `check` (which
    runs a small model) and `remove` take a name, `list` nothing.

    Example:
        ortune env add cuda
        ortune env add onnxruntime==1.24.4
        ortune env check ort-1.24.4
        ortune bench model.onnx --environment here,ort-1.24.4

    Attributes:
        action: What to do.
        what: A release to add, or the name of an environment.
        name: With add: what to call it; ort-1.24.4 and the like without.
    """

    action: Literal["add", "list", "check", "remove"]
    what: Annotated[str | None, Option("[RELEASE|NAME]")] = None
    _: KW_ONLY
    name: Annotated[str | None, Option("NAME")] = None


@make_command(_Options)
def command(options: _Options) -> int:
    """Do it; exit code 1 when an environment does not work."""
    # Refuse words that do not belong together.
    if options.action == "list" and options.what:
        raise BadSettings(f"list takes no '{options.what}'", fix="write `ortune env list`")
    if options.action != "list" and not options.what:
        example = "cuda" if options.action == "add" else "NAME"
        raise BadSettings(
            f"{options.action} takes {'a release' if options.action == 'add' else 'a name'}",
            fix=f"write `ortune env {options.action} {example}`; `ortune env list` shows them",
        )
    if options.name and options.action != "add":
        raise BadSettings("--name is about add", fix="leave it out")
    name = options.what or ""
    if options.action == "list":
        return _list_environments()
    if options.action == "remove":
        from ortune.measurement.environments.installed import remove_environment

        folder = remove_environment(name)
        print_result({"removed": name, "folder": folder}, lambda: print_text(f"removed: {folder}"))
        return DONE
    if options.action == "add":
        from ortune.measurement.environments.installed import add_environment

        name = add_environment(name, options.name, options.sink).name
    from ortune.measurement.environments.check import check_environment

    checked = check_environment(name)
    print_result(checked, lambda: _print_environment(checked))
    return NO if checked.problem else DONE


def _list_environments() -> int:
    from ortune.measurement.environments.installed import list_environments
    from ortune.measurement.environments.releases import list_releases

    environments, offered = list_environments(), [str(item) for item in list_releases()]

    def show() -> None:
        if environments:
            rows = [
                (item.name, item.release or "cannot be read", item.folder) for item in environments
            ]
            print_table(("environment", "release", "folder"), rows)
        else:
            print_text("no environment yet; `ortune env add cuda` makes one")
        print_text(f"there are releases: {', '.join(offered)}")

    print_result({"environments": environments, "releases": offered}, show)
    return DONE


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
