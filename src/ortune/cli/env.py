"""Keep other releases of the runtimes, each apart."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Literal

from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, say, table
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
class _Asked(WorkerRequest):
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


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Do it; exit code 1 when an environment does not work."""
    # Refuse words that do not belong together.
    if asked.action == "list" and asked.what:
        raise BadSettings(f"list takes no '{asked.what}'", fix="write `ortune env list`")
    if asked.action != "list" and not asked.what:
        wanted = "cuda" if asked.action == "add" else "NAME"
        raise BadSettings(
            f"{asked.action} takes {'a release' if asked.action == 'add' else 'a name'}",
            fix=f"write `ortune env {asked.action} {wanted}`; `ortune env list` shows them",
        )
    if asked.name and asked.action != "add":
        raise BadSettings("--name is about add", fix="leave it out")
    what = asked.what or ""
    if asked.action == "list":
        return _list()
    if asked.action == "remove":
        from ortune.measurement.environments.installed import taken_out

        folder = taken_out(what)
        answer({"removed": what, "folder": folder}, lambda: say(f"removed: {folder}"))
        return DONE
    if asked.action == "add":
        from ortune.measurement.environments.installed import add

        what = add(what, asked.name, asked.sink).name
    from ortune.measurement.environments.check import check

    found = check(what)
    answer(found, lambda: _show(found))
    return NO if found.problem else DONE


def _list() -> int:
    from ortune.measurement.environments.installed import listed
    from ortune.measurement.environments.releases import every

    found, offered = listed(), [str(one) for one in every()]

    def show() -> None:
        if found:
            rows = [(one.name, one.release or "cannot be read", one.folder) for one in found]
            table(("environment", "release", "folder"), rows)
        else:
            say("no environment yet; `ortune env add cuda` makes one")
        say(f"there are releases: {', '.join(offered)}")

    answer({"environments": found, "releases": offered}, show)
    return DONE


def _show(found: CheckedEnvironment) -> None:
    one = found.environment
    say(f"environment: {one.name} in {one.folder}")
    held = [f"{name} {found.versions[name]}" for name in _SHOWN if name in found.versions]
    if held:
        say(f"versions:    {', '.join(held)}")
    for backend, state in (found.states or {}).items():
        say(f"{backend}: {state}")
    if found.driver:
        say(f"driver:      {', '.join(f'{name} {v}' for name, v in found.driver.items())}")
    say(f"problem:     {found.problem}\n  fix: {found.fix}" if found.problem else "works")
