"""Pack a run's winner as a bundle that runs as measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ortune.cli.main import DONE
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, say, size
from ortune.core import wording
from ortune.core.fields import Option, Words
from ortune.core.request import Request, request

if TYPE_CHECKING:
    from ortune.core.study import Study
    from ortune.core.trial import Trial


@request
class _Asked(Request):
    """Pack the winner of RUN: model, plain fall-back, settings, recipe, evidence, golden samples.

    Example:
        ortune pack run -o model.ortune
        ortune pack run -o model.ortune --per-backend --licence Apache-2.0 --sign key.pem
        ortune pack run -o small.ortune --trial 3fa9 --unconfirmed
        ortune pack run --for "triton(release=26.05)" -o models

    Attributes:
        run: The run's folder; with --for a bundle will do.
        out: The bundle, NAME.ortune; with --for the folder of the package.
        target: Write a package for another runtime, of the best confirmed plan that it can run,
            and run the package again; docs/packages.md has the targets and their options.
        trial: Another trial than the winner, by its key or the first characters of it.
        with_: Further trials, whose plans are taken where those before them do not run.
        per_backend: The best confirmed plan of each backend as well, in one file.
        unconfirmed: Pack also what no fresh pairs have confirmed.
        licence: Of the model, an SPDX expression such as Apache-2.0.
        sign: Sign it with this private key: NAME.ortune.sig beside it.
        preprocess: A preprocess.toml, by which the engine takes pictures; without it the one that
            lay beside the run's images.
        compiled: Put in what the plans' providers compile for this device, which opens at once.
        force: Overwrite an existing output.
        allow_custom_ops: Run the custom operators that the run names, where they are needed.
    """

    run: str | Path
    _: KW_ONLY
    out: Annotated[str | Path, Option("PATH", "-o --out")]
    trial: Annotated[str | None, Option("KEY")] = None
    with_: Words = Words((), Option("KEY,...", "--with"))
    per_backend: bool = False
    unconfirmed: bool = False
    licence: Annotated[str, Option("SPDX")] = ""
    sign: Annotated[str | Path | None, Option("KEY.pem")] = None
    preprocess: Annotated[str | Path | None, Option("FILE")] = None
    compiled: bool = False
    force: bool = False
    allow_custom_ops: bool = False
    target: Annotated[str | None, Option("TARGET", "--for")] = None


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Say what is in the bundle."""
    from ortune.bundle.engine import archive
    from ortune.bundle.pack import pack
    from ortune.search.experiment.ledger import read_study

    if asked.target is not None:
        return _package(asked, asked.target)
    study = read_study(Path(asked.run))
    path = pack(
        study,
        asked.out,
        trial=asked.trial,
        with_=asked.with_,
        per_backend=asked.per_backend,
        unconfirmed=asked.unconfirmed,
        licence=asked.licence,
        sign=asked.sign,
        preprocess=asked.preprocess,
        compiled=asked.compiled,
        force=asked.force,
        custom_ops=asked.allow_custom_ops,
    )
    with archive.opened(path) as (_, manifest):
        trials = [study.find(plan.key) or study.baseline for plan in manifest.plans]
    first = trials[0]
    result = {
        "run": asked.run,
        "bundle": path,
        "plan": str(first.plan),
        "plans": [_told(study, trial) for trial in trials],
        "bytes": path.stat().st_size,
        "ratio": first.ratio,
        "predicted": first.predicted,
        "confirmed": study.confirmed(first),
        "signature": path.with_name(f"{path.name}.sig") if asked.sign else None,
    }
    answer(result, lambda: say("\n".join(_lines(study, trials, result))))
    return DONE


def _told(study: Study, trial: Trial) -> dict[str, Any]:
    return {
        "key": trial.key,
        "plan": str(trial.plan),
        "ratio": trial.ratio,
        "confirmed": study.confirmed(trial),
    }


def _lines(study: Study, trials: Sequence[Trial], result: Mapping[str, Any]) -> Iterator[str]:
    from ortune.backends.bucketed import Bucketed

    path, first = result["bundle"], trials[0]
    yield f"bundle: {path} ({size(result['bytes'])}), {first.plan}"
    if not study.confirmed(first):
        yield "not confirmed: no finalist that is faster and keeps the budget"
    if foreseen := wording.foreseen(first):
        yield f"ratio:  {wording.ratio(first)}; {foreseen}"
    if isinstance(backend := first.plan.backend, Bucketed):
        outputs = ", ".join(backend.outputs)
        yield (
            f"calls:  cut to the shortest of {', '.join(map(str, backend.lengths))} that holds "
            f"them, by '{backend.mask}'" + (f"; {outputs}: zeros beyond that" if outputs else "")
        )
    for trial in trials[1:]:
        known = "" if study.confirmed(trial) else ", not confirmed"
        yield f"then:   {trial.plan} ({wording.ratio(trial)}{known})"
    if result["signature"]:
        yield f"signed: {result['signature']}"


def _package(asked: _Asked, target: str) -> int:
    """Say what the package holds, what was passed over for it and what was run."""
    from ortune.bundle.pack import candidates, demand_plain
    from ortune.bundle.package import package

    demand_plain(asked.with_, asked.per_backend, asked.sign, asked.preprocess, asked.compiled)
    code = asked.allow_custom_ops
    with closing(
        candidates(asked.run, asked.trial, asked.unconfirmed, asked.licence, code)
    ) as bundles:
        found = package(bundles, asked.out, target, force=asked.force, custom_ops=code)
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
    lines += found.lines
    answer({"run": asked.run, "bytes": held, **vars(found)}, lambda: say("\n".join(lines)))
    return DONE


def _agreement(decibels: float) -> str:
    return "equal answers" if decibels == float("inf") else f"answers {decibels:.0f} dB apart"
