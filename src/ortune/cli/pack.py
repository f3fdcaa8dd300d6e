"""Pack a run's winner as a bundle that runs as it was measured."""

from __future__ import annotations

from pathlib import Path

import click

from ortune.cli import shared


@shared.verb(shared.Verb)
@click.argument("run", type=shared.FILE)
@shared.output("The bundle, NAME.ortune.", required=True)
@click.option("--trial", metavar="KEY", help="Another trial than the winner, by its key.")
@shared.force
def command(
    run: Path, out: Path, trial: str | None, force: bool, json_to: str | None, verbose: bool
) -> int:
    """Pack the winner of RUN: model, plain fall-back, settings, recipe, evidence, golden samples.

    \b
    Example:
      ortune pack run -o model.ortune
      ortune pack run -o small.ortune --trial 3fa9
    """
    from ortune.backends.bucketed import Bucketed
    from ortune.bundle.pack import pack
    from ortune.core import wording as say
    from ortune.experiment.ledger import read_study

    study = read_study(run)
    shared.free(out, force)
    path = pack(study, out, trial=trial, force=force)
    chosen = study.best if trial is None else study.find(trial)
    plan = str(chosen.plan) if chosen else ""
    result = {
        "run": run,
        "bundle": path,
        "plan": plan,
        "bytes": path.stat().st_size,
        "ratio": chosen.ratio if chosen else None,
        "predicted": chosen.predicted if chosen else None,
    }
    lines = [f"bundle: {path} ({shared.size(path.stat().st_size)}), {plan}"]
    if chosen is not None and (foreseen := say.foreseen(chosen)):
        lines.append(f"ratio:  {say.ratio(chosen)}; {foreseen}")
    if chosen is not None and isinstance(backend := chosen.plan.backend, Bucketed):
        outputs = ", ".join(backend.outputs)
        lines.append(
            f"calls:  cut to the shortest of {', '.join(map(str, backend.lengths))} that holds "
            f"them, by '{backend.mask}'" + (f"; {outputs}: zeros beyond that" if outputs else "")
        )
    shared.answer(json_to, result, lambda: shared.say("\n".join(lines)))
    return 0
