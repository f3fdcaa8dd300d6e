"""Pack a run's winner as a bundle that runs as it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ortune.cli.main import DONE
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.figures import size
from ortune.cli.terminal.output import answer, say
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

    Attributes:
        run: The run's folder.
        out: The bundle, NAME.ortune.
        trial: Another trial than the winner, by its key or the first characters of it.
        with_: Further trials, whose plans are taken where those before them do not run.
        per_backend: The best confirmed plan of each backend as well, in one file.
        unconfirmed: Pack also what no fresh pairs have confirmed.
        licence: Of the model, an SPDX expression such as Apache-2.0.
        sign: Sign it with this private key: NAME.ortune.sig beside it.
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
    force: bool = False
    allow_custom_ops: bool = False


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Say what is in the bundle."""
    from ortune.bundle.pack import pack
    from ortune.engine import archive
    from ortune.experiment.ledger import read_study

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
    from ortune.core import wording

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
