"""Pack a run's winner as a bundle that runs as it was measured."""

from __future__ import annotations

from contextlib import closing
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from ortune.cli.main import DONE
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.figures import size
from ortune.cli.terminal.output import answer, say
from ortune.core.fields import Option
from ortune.core.request import Request, request


@request
class _Asked(Request):
    """Pack the winner of RUN: model, plain fall-back, settings, recipe, evidence, golden samples.

    Example:
        ortune pack run -o model.ortune
        ortune pack run -o small.ortune --trial 3fa9 --unconfirmed
        ortune pack run --for "triton(release=26.05)" -o models

    Attributes:
        run: The run's folder; with --for a bundle will do.
        out: The bundle, NAME.ortune; with --for the folder of the package.
        target: Write a package for another runtime, of the best confirmed plan that it can run,
            and run the package again. One of: huggingface, kserve, oci, onnx, openvino,
            ort-mobile, ovms, triton, web; docs/packages.md has their options.
        trial: Another trial than the winner, by its key or the first characters of it.
        unconfirmed: Pack it though no fresh pairs have confirmed it.
        force: Overwrite an existing output.
        allow_custom_ops: Run the custom operators that the run names, where they are needed.
    """

    run: str | Path
    _: KW_ONLY
    out: Annotated[str | Path, Option("PATH", "-o --out")]
    trial: Annotated[str | None, Option("KEY")] = None
    unconfirmed: bool = False
    force: bool = False
    allow_custom_ops: bool = False
    target: Annotated[str | None, Option("TARGET", "--for")] = None


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Say what is in the bundle."""
    from ortune.backends.bucketed import Bucketed
    from ortune.bundle.pack import pack
    from ortune.core import wording
    from ortune.experiment.ledger import read_study

    if asked.target is not None:
        return _package(asked, asked.target)
    study = read_study(Path(asked.run))
    path = pack(
        study,
        asked.out,
        trial=asked.trial,
        unconfirmed=asked.unconfirmed,
        force=asked.force,
        custom_ops=asked.allow_custom_ops,
    )
    chosen = study.best if asked.trial is None else study.find(asked.trial)
    plan = str(chosen.plan) if chosen else ""
    result = {
        "run": asked.run,
        "bundle": path,
        "plan": plan,
        "bytes": path.stat().st_size,
        "ratio": chosen.ratio if chosen else None,
        "predicted": chosen.predicted if chosen else None,
        "confirmed": chosen is not None and study.confirmed(chosen),
    }
    lines = [f"bundle: {path} ({size(path.stat().st_size)}), {plan}"]
    if asked.trial is not None and chosen is not None and not study.confirmed(chosen):
        lines.append("not confirmed: no finalist that is faster and keeps the budget")
    if chosen is not None and (foreseen := wording.foreseen(chosen)):
        lines.append(f"ratio:  {wording.ratio(chosen)}; {foreseen}")
    if chosen is not None and isinstance(backend := chosen.plan.backend, Bucketed):
        outputs = ", ".join(backend.outputs)
        lines.append(
            f"calls:  cut to the shortest of {', '.join(map(str, backend.lengths))} that holds "
            f"them, by '{backend.mask}'" + (f"; {outputs}: zeros beyond that" if outputs else "")
        )
    answer(result, lambda: say("\n".join(lines)))
    return DONE


def _package(asked: _Asked, target: str) -> int:
    """Say what the package holds, what was passed over for it and what was run."""
    from ortune.bundle.pack import candidates
    from ortune.bundle.package import package
    from ortune.experiment.ledger import read_study

    run = Path(asked.run)
    bundles = candidates(
        run if run.is_file() else read_study(run),
        trial=asked.trial,
        unconfirmed=asked.unconfirmed,
        custom_ops=asked.allow_custom_ops,
    )
    with closing(bundles):
        found = package(
            bundles, asked.out, target, force=asked.force, custom_ops=asked.allow_custom_ops
        )
    held = sum(one.stat().st_size for one in found.path.rglob("*") if one.is_file())
    lines = [f"package: {found.path} ({size(held)}) for {found.target}, {found.plan.plan}"]
    lines += [f"passed over: {one.plan}: {one.why}" for one in found.passed_over]
    if (replay := found.replay) is not None:
        lines.append(f"run again: {replay.by}: {_agreement(replay.difference_db)}")
        if replay.overhead is not None:
            value, low, high = replay.overhead
            lines[-1] += f", {value:.2f} [{low:.2f}, {high:.2f}] of the bundle's time"
    if found.unrun:
        lines.append(f"not run here: {found.unrun}")
    answer({"run": asked.run, "bytes": held, **vars(found)}, lambda: say("\n".join(lines)))
    for line in found.lines:
        say(line)
    return DONE


def _agreement(decibels: float) -> str:
    return "equal answers" if decibels == float("inf") else f"answers {decibels:.0f} dB apart"
