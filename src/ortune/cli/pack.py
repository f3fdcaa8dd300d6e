"""Pack a run's winner as a bundle that runs as measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ortune.cli.main import DONE
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import format_size, print_result, print_text
from ortune.core import wording
from ortune.core.fields import Option, Words
from ortune.core.request import Request, request

if TYPE_CHECKING:
    from ortune.core.study import Study
    from ortune.core.trial import Trial


_WINNER = "winner"
"""Stands for its key in ``--plan``."""


@request
class _Options(Request):
    """Pack the winner of RUN: model, plain fall-back, settings, recipe, evidence, golden samples.

    Example:
        ortune pack run -o model.ortune
        ortune pack run -o model.ortune --per-backend --licence Apache-2.0 --sign key.pem
        ortune pack run -o small.ortune --plan 3fa9 --unconfirmed
        ortune pack run --for "triton(release=26.05)" -o models

    Attributes:
        run: The run's folder; with --for a bundle will do.
        out: The bundle, NAME.ortune; with --for the folder of the package.
        target: Write a package for another runtime, of the best confirmed plan that it can run,
            and run the package again; docs/packages.md has the targets and their options.
        plans: Plans to pack, in the order in which they are tried where it runs: "winner", or
            the first characters of a key. Without it the winner alone.
        per_backend: Pack the best confirmed plan of each backend too, in one file.
        unconfirmed: Pack also plans that were not re-measured.
        licence: Licence of the model, as an SPDX expression such as Apache-2.0.
        sign: Sign the bundle with this private key, in NAME.ortune.sig beside it.
        preprocess: A preprocess.toml that says how pictures become inputs; default: the one beside
            the run's images.
        compiled: Store what the providers compile for this device too: the bundle then opens at
            once here.
        force: Overwrite an existing output.
        allow_custom_ops: Run the custom operators that the run names, where they are needed.
        original: With --for, pack the original model where no faster plan can run there.
    """

    formerly: ClassVar[dict[str, str]] = {"trial": "plans"}

    run: str | Path
    _: KW_ONLY
    out: Annotated[str | Path, Option("PATH", "-o --out")]
    plans: Words = Words((), Option("PLAN,...", "--plan"))
    per_backend: bool = False
    unconfirmed: bool = False
    licence: Annotated[str, Option("SPDX")] = ""
    sign: Annotated[str | Path | None, Option("KEY.pem")] = None
    preprocess: Annotated[str | Path | None, Option("FILE")] = None
    compiled: bool = False
    force: bool = False
    allow_custom_ops: bool = False
    target: Annotated[str | None, Option("TARGET", "--for")] = None
    original: bool = False

    @property
    def trial(self) -> str | None:
        """The key of the first plan; None for the winner."""
        return next((None if plan == _WINNER else plan for plan in self.plans), None)


@make_command(_Options)
def command(options: _Options) -> int:
    """Say what is in the bundle."""
    from ortune.bundle.engine import archive
    from ortune.bundle.pack import pack
    from ortune.core.judgement import choose_step
    from ortune.search.experiment.ledger import read_study

    if options.target is not None:
        return _write_package(options, options.target)
    study = read_study(Path(options.run))
    study = study if options.trial is None else choose_step(study, options.trial)
    path = pack(
        study,
        options.out,
        trial=options.trial,
        with_=options.plans[1:],
        per_backend=options.per_backend,
        unconfirmed=options.unconfirmed,
        licence=options.licence,
        sign=options.sign,
        preprocess=options.preprocess,
        compiled=options.compiled,
        force=options.force,
        custom_ops=options.allow_custom_ops,
        original=options.original,
    )
    with archive.open_bundle(path) as (_, manifest):
        trials = [study.find(plan.key) or study.baseline for plan in manifest.plans]
    first = trials[0]
    result = {
        "run": options.run,
        "bundle": path,
        "plan": str(first.plan),
        "plans": [
            {
                "key": trial.key,
                "plan": str(trial.plan),
                "ratio": trial.shown_ratio,
                "confirmed": study.is_confirmed(trial),
            }
            for trial in trials
        ],
        "bytes": path.stat().st_size,
        "ratio": first.ratio,
        "predicted": first.predicted,
        "confirmed": study.is_confirmed(first),
        "signature": path.with_name(f"{path.name}.sig") if options.sign else None,
    }
    print_result(result, lambda: print_text("\n".join(_describe_bundle(study, trials, result))))
    return DONE


def _describe_bundle(
    study: Study, trials: Sequence[Trial], result: Mapping[str, Any]
) -> Iterator[str]:
    from ortune.backends.bucketed import Bucketed

    path, first = result["bundle"], trials[0]
    yield f"bundle: {path} ({format_size(result['bytes'])}), {study.label(first.plan)}"
    if not study.is_confirmed(first):
        yield "not confirmed: not re-measured as faster and within the accuracy budget"
    if (ends := first.predicted) is not None and ends.value == ends.value:
        again = wording.describe_speedup(ends)
        speed = wording.describe_speedup(first.shown_ratio)
        yield f"speed:  {speed} (99 %); repeated: {again} (95 %)"
    if isinstance(backend := first.plan.backend, Bucketed):
        outputs = ", ".join(backend.outputs)
        yield (
            f"calls:  cut to the shortest of {', '.join(map(str, backend.lengths))} that holds "
            f"them, by '{backend.mask}'" + (f"; {outputs}: zeros beyond that" if outputs else "")
        )
    for trial in trials[1:]:
        confirmation = "" if study.is_confirmed(trial) else ", not confirmed"
        speed = wording.describe_speedup(trial.shown_ratio)
        yield f"then:   {study.label(trial.plan)} ({speed}{confirmation})"
    if result["signature"]:
        yield f"signed: {result['signature']}"


def _write_package(options: _Options, target: str) -> int:
    """Say what the package holds, what was passed over for it and what was run."""
    from ortune.bundle.pack import build_candidates, package, refuse_bundle_options

    refuse_bundle_options(
        options.plans[1:], options.per_backend, options.sign, options.preprocess, options.compiled
    )
    code = options.allow_custom_ops
    with closing(
        build_candidates(options.run, options.trial, options.unconfirmed, options.licence, code)
    ) as bundles:
        written = package(
            bundles,
            options.out,
            target,
            force=options.force,
            custom_ops=code,
            original=options.original,
        )
    total_bytes = sum(entry.stat().st_size for entry in written.path.rglob("*") if entry.is_file())
    size = format_size(total_bytes)
    lines = [f"package: {written.path} ({size}) for {written.target}, {written.plan.plan}"]
    lines += [f"skipped: {entry.plan}: {entry.why}" for entry in written.passed_over]
    if (replay := written.replay) is not None:
        agreement = f"outputs agree to {replay.difference_db:.0f} dB"
        equal = replay.difference_db == float("inf")
        lines.append(f"checked by {replay.by}: {'equal answers' if equal else agreement}")
        if replay.overhead is not None:
            value, low, high = replay.overhead
            lines[-1] += f", {value:.2f} [{low:.2f}, {high:.2f}] of the bundle's time"
    if written.unrun:
        lines.append(f"not run here: {written.unrun}")
    lines += written.lines
    print_result(
        {"run": options.run, "bytes": total_bytes, **vars(written)},
        lambda: print_text("\n".join(lines)),
    )
    return DONE
