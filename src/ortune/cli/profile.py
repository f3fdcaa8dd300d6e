"""Say where the time of a run goes, in terms of the model's own nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ortune.analysis.profiling.requests import ProfileRequest
from ortune.cli.main import DONE
from ortune.cli.terminal.command import verb, verbose
from ortune.cli.terminal.output import answer, remark, say, table
from ortune.core.errors import OrtuneError
from ortune.core.fields import Option, Out
from ortune.core.request import request

if TYPE_CHECKING:
    from ortune.analysis.profiling.roofline import KernelRoofline
    from ortune.core.profile import Action, Kernel, Profile, Share

_TOP = 15
_NOT_COMPUTE = ("cast", "copy", "quantize", "transpose", "reorder", "shape", "control")
_SOURCES = 3


@request
class _Asked(ProfileRequest):
    """Options of the command line.

    Attributes:
        trying: Do what can be done about the bottlenecks and time it against the model as it is.
        out: Folder for profile.html, trace.json (Perfetto), kernels.csv and profile.json.
    """

    _: KW_ONLY
    trying: Annotated[bool, Option(word="--try")] = False
    out: Out = None


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Show the time by operator, node and region, and what can be done."""
    from ortune.analysis.profiling import files as profile_files
    from ortune.analysis.profiling.profile import run
    from ortune.analysis.profiling.suggestions import evaluate_suggestions, suggest

    out = None if asked.out is None else _made(Path(asked.out))
    found = run(asked)
    actions = suggest(found)
    if asked.trying:
        actions = evaluate_suggestions(
            found,
            actions,
            data=asked.data,
            shapes=asked.shapes,
            ranges=asked.ranges,
            sink=asked.sink,
        )
    written = [] if out is None else _written(found, actions, out)
    answer(profile_files.whole(found, actions), lambda: _show(found, actions))
    for path in written:
        remark(f"wrote {path}")
    return DONE


def _written(found: Profile, actions: Sequence[Action], out: Path) -> list[Path]:
    from ortune.analysis.profiling import files as profile_files
    from ortune.reporting import profile_page

    files = profile_files.write(found, out, actions)
    return [*files, profile_page.write(found, actions, out / "profile.html", force=True)]


def _made(out: Path) -> Path:
    """Make the folder before the time is spent."""
    if out.exists() and not out.is_dir():
        raise OrtuneError(f"{out} is a file", fix="give a folder with -o")
    out.mkdir(parents=True, exist_ok=True)
    return out


def _show(found: Profile, actions: Sequence[Action]) -> None:
    """Print the headline, the time by operator, node and region, and what can be done."""
    from ortune.analysis.profiling import roofline

    say(headline(found))
    _shares("operator", found.by("op_type"))
    ranked = sorted(found.kernels, key=lambda kernel: -kernel.time_ns)
    shown = ranked if verbose() else ranked[:_TOP]
    total = sum(kernel.time_ns for kernel in found.kernels)
    judged = {id(one.kernel): one for one in roofline.verdicts(found)}
    columns = ("bound", "of its roof>", "gain at most us>") if judged else ()
    table(
        ("kernel", "operator", "time us>", "share>", *columns, "stands for"),
        [_line(kernel, total, judged.get(id(kernel))) for kernel in shown],
    )
    if len(shown) < len(ranked):
        say(f"and {len(ranked) - len(shown)} more kernels; -v lists them all")
    _shares("region", found.by("region"))
    say(beside(found))
    for line in placed(found):
        say(line)
    if not actions:
        return
    table(
        ("suggestion", "at most us>", "estimate us>", "measured", "do"),
        [_doing(one) for one in actions],
    )


def _doing(one: Action) -> tuple[str, ...]:
    estimate = "" if one.estimate_ns is None else f"{one.estimate_ns / 1e3:.1f}"
    measured = one.note if one.measured is None else str(one.measured)
    return (one.title, f"{one.stake_ns / 1e3:.1f}", estimate, measured, one.does)


def headline(found: Profile) -> str:
    """Say how long a run takes, what of it is known, and what the profiler costs."""
    return (
        f"a run takes {found.plain_ns / 1e6:.3f} ms on {found.backend}; "
        f"{len(found.kernels)} kernels fill {found.inside:.1%} of the profiled run by the "
        f"runtime's own figures, {found.coverage:.1%} with the steps between them; "
        f"the profiler adds {found.overhead:.1%}, taken off below"
    )


def beside(found: Profile) -> str:
    """Say what is spent beside computing."""
    kinds = found.by("kind")
    parts = [f"{name} {kinds[name].share:.1%}" for name in _NOT_COMPUTE if name in kinds]
    outside = max(0.0, 1 - found.attributed)
    text = f"beside computing: {', '.join(parts)}" if parts else "nothing beside computing"
    return f"{text}; {outside:.1%} of a call is outside of the kernels"


def placed(found: Profile) -> list[str]:
    """Say which provider took how many nodes, and which nodes fell back and why."""
    listed = ", ".join(f"{name} {count} nodes" for name, count in found.placement.items())
    lines = [f"placement: {listed}"] if listed else []
    return lines + [f"fell back: {name}: {why}" for name, why in found.fallbacks.items()]


def _shares(title: str, found: Mapping[str, Share]) -> None:
    ranked = list(found.items())
    shown = ranked if verbose() else ranked[:_TOP]
    rows = [
        (name, one.kernels, f"{one.time_ns / 1e3:.1f}", f"{one.share:.1%}") for name, one in shown
    ]
    table((title, "kernels>", "time us>", "share>"), rows)


def _line(kernel: Kernel, total: float, verdict: KernelRoofline | None) -> tuple[str, ...]:
    judged: tuple[str, ...] = ()
    if verdict is not None:
        share = "-" if verdict.bound == "unknown" else f"{verdict.share:.0%}"
        judged = (verdict.bound, share, f"{verdict.gain_ns / 1e3:.1f}")
    named = ", ".join(kernel.sources[:_SOURCES]) or kernel.note
    more = len(kernel.sources) - _SOURCES
    return (
        kernel.name,
        kernel.op_type,
        f"{kernel.time_ns / 1e3:.1f}",
        f"{kernel.time_ns / max(1.0, total):.1%}",
        *judged,
        f"{named} and {more} more" if more > 0 else named,
    )
