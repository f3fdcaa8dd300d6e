"""Pack trials of a study into one file that serves exactly as it was measured.

`package` writes a plan of such files for another runtime, and runs that package again.
"""

import hashlib
import json
import zipfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ortune.bundle.content import (
    Content,
    PrecompiledFiles,
    collect_content,
    compile_plans,
    list_side_members,
    read_extras,
)
from ortune.bundle.engine import archive
from ortune.bundle.engine.archive import make_signer, signature_of
from ortune.bundle.engine.consent import list_factories
from ortune.bundle.engine.golden import TOLERANCE_DB
from ortune.bundle.engine.manifest import EVIDENCE, LICENCE, MANIFEST, MOST_PLANS, SBOM, PackedPlan
from ortune.bundle.members import build_sbom, write_file_member, write_text_member
from ortune.bundle.read import collect_evidence
from ortune.bundle.target import Replay, Source, Target, unpack_temporarily
from ortune.core import errors, wording
from ortune.core.atomic_write import open_draft, open_output_draft, report_write_errors
from ortune.core.backend import Backend
from ortune.core.judgement import choose_step
from ortune.core.outputs import check_output_file
from ortune.core.plugins import codec, spelling, stored
from ortune.core.study import Study
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Status, Trial
from ortune.search.experiment.ledger import read_study

_ANOTHER = "pack another trial"


def pack(
    study: Study | str | Path,
    path: str | Path,
    *,
    trial: str | None = None,
    with_: str | Sequence[str] = (),
    per_backend: bool = False,
    unconfirmed: bool = False,
    licence: str = "",
    sign: str | Path | None = None,
    preprocess: str | Path | None = None,
    compiled: bool = False,
    force: bool = False,
    custom_ops: bool = False,
    target: str | Target | None = None,
    original: bool = False,
) -> Path:
    """Pack the winner: model, original, settings, recipe, evidence, golden samples.

    Models are stored, not compressed. The file appears when it is whole. What a reader would
    refuse is not written.

    Args:
        study: The run, or its folder; with `target` also a bundle's path.
        path: Where it goes, by custom ``NAME.ortune``; with `target` a folder.
        trial: Start of the key of another trial than the best, also of a looser budget step.
        with_: Starts of the keys of further trials, whose plans are taken where those before them
            do not run.
        per_backend: The best confirmed plan of each backend as well, such as the CPU's beside
            OpenVINO's.
        unconfirmed: Pack also what no finalist's pairs have confirmed as faster and within the
            budget.
        licence: Licence of the model, as an SPDX expression such as Apache-2.0.
        sign: Private key, a PEM file: a signature is written beside, ``NAME.ortune.sig``.
        preprocess: ``preprocess.toml``, by which the engine takes pictures; without it the one
            that lay beside the run's images.
        compiled: Store what the providers compile for this device too: the bundle then opens at
            once here.
        force: Replace an existing file. Inputs of the run are never replaced.
        custom_ops: Run the code that the run names, where golden samples of a trial are not there
            yet.
        target: Write a package for another runtime in place of a bundle, such as
            ``triton(release=26.05)``: of the best confirmed plan that it can run.
        original: With `target`, take the model as it came where no faster plan can run there.

    Raises:
        NoPlanFits: No plan that the target can run is faster than the original.
        OrtuneError: A trial cannot be packed or is not confirmed, a part of the run is gone, its
            settings are none that a bundle may hold, the key cannot sign, or the path cannot be
            written.
    """
    if target is not None:
        refuse_bundle_options(with_, per_backend, sign, preprocess, compiled)
        with closing(build_candidates(study, trial, unconfirmed, licence, custom_ops)) as bundles:
            options = {"force": force, "custom_ops": custom_ops, "original": original}
            return package(bundles, path, target, **options).path
    _demand_target(original)
    study = study if isinstance(study, Study) else read_study(Path(study))
    study = study if trial is None else choose_step(study, trial)
    trials = select_trials(study, trial, with_, per_backend=per_backend, unconfirmed=unconfirmed)
    _demand_portable(*(candidate.plan.backend for candidate in trials))
    if not LICENCE.fullmatch(licence):
        raise errors.BadSettings(
            f"'{licence}' is not SPDX", fix="write an SPDX expression, such as Apache-2.0"
        )
    path = Path(path)
    signed = None if sign is None else make_signer(Path(sign))
    if sign is not None:
        check_output_file(signature_of(path), force, Path(sign))
    parts = collect_content(study, trials, licence=licence, custom_ops=custom_ops)
    texts = read_extras(study, parts.manifest.signatures, preprocess)
    with (
        compile_plans(study, trials) if compiled else nullcontext(PrecompiledFiles()) as ready,
        open_output_draft(path, force=force, sources=parts.files.values()) as draft,
    ):
        files = {**parts.files, **ready.files, **list_side_members(study)}
        _write_bundle(study, trials, draft, replace(parts, files=files), {**texts, **ready.texts})
    if signed is not None:
        signed(path, force)
    return path


def _write_bundle(
    study: Study, trials: Sequence[Trial], draft: Path, parts: Content, texts: Mapping[str, bytes]
) -> None:
    """Write the zip: settings, recipes and evidence, more texts, files, what tells of them."""
    records: dict[str, bytes] = {}
    for packed, backend, trial in zip(parts.manifest.plans, parts.settings, trials, strict=True):
        records[packed.settings] = json.dumps(codec.encode(backend), indent=1).encode()
        records[packed.recipe] = json.dumps(codec.encode(trial.plan.recipe), indent=1).encode()
    records[EVIDENCE] = json.dumps(codec.encode(collect_evidence(study, trials))).encode()
    with zipfile.ZipFile(draft, "w") as bundle:
        members = {
            name: write_text_member(bundle, name, data)
            for name, data in {**records, **texts}.items()
        }
        for name, source in parts.files.items():
            members[name] = write_file_member(bundle, name, source)
        manifest = replace(parts.manifest, members=members)
        members[SBOM] = write_text_member(bundle, SBOM, build_sbom(manifest, parts.plugins))
        write_text_member(bundle, MANIFEST, replace(manifest, members=members).write_json())
    with archive.open_bundle(draft):  # what a reader would refuse is not written
        pass


def build_candidates(
    study: Study | str | Path,
    trial: str | None = None,
    unconfirmed: bool = False,
    licence: str = "",
    custom_ops: bool = False,
) -> Generator[Path]:
    """Yield bundles to make a package of, the best first; each is gone when the next is asked for.

    That is a given bundle itself. Of a study, or of a run's folder, it is the trial asked for, or
    the winner, the other confirmed plans and the original. Raises OrtuneError: as `pack`; a bundle
    was given and something of a run is asked of it.
    """
    if not isinstance(study, Study) and Path(study).is_dir():
        study = read_study(Path(study))
    if not isinstance(study, Study):
        if trial is not None or unconfirmed or licence:
            raise errors.BadSettings(
                f"{study} is a bundle: its plans and its licence are chosen already",
                fix="leave --plan, --unconfirmed and --licence out, or give the run",
            )
        yield Path(study)
        return
    if trial is None:  # every confirmed one, the winner first and the original last
        fit = [trial for trial in study.final if study.is_confirmed(trial)]
        by_key = {trial.key: trial for trial in (study.best, *_rank_trials(study, fit))}
        by_key.setdefault(study.baseline.key, study.baseline)
        trials = list(by_key.values())
    else:
        trials = [find_trial(study, trial)]
    with open_temporary_folder() as folder:
        path = Path(folder) / f"{Path(study.root).name or 'run'}.ortune"
        for candidate in trials:
            yield pack(
                study,
                path,
                trial=candidate.key,
                unconfirmed=unconfirmed,
                licence=licence,
                force=True,
                custom_ops=custom_ops,
            )


def refuse_bundle_options(
    with_: str | Sequence[str],
    per_backend: bool,
    sign: str | Path | None,
    preprocess: str | Path | None,
    compiled: bool = False,
) -> None:
    """Raise BadSettings for what is about a bundle where a package is written."""
    options = {
        "--plan": with_,
        "--per-backend": per_backend,
        "--sign": sign,
        "--preprocess": preprocess,
        "--compiled": compiled,
    }
    if names := [name for name, value in options.items() if value]:
        raise errors.BadSettings(
            f"{', '.join(names)} applies to bundles only, not to packages (--for)",
            fix="leave it out; a package takes the best plan that its target can run",
        )


def _demand_target(original: bool) -> None:
    """Refuse what is about a package where a bundle is written: raise BadSettings."""
    if original:
        raise errors.BadSettings(
            "--original needs --for: a bundle always holds the original",
            fix="add --for TARGET, or leave it out",
        )


def _demand_portable(*backends: Backend) -> None:
    """Refuse settings that a reader of the bundle would refuse."""
    for backend in backends:
        stored.demand_safe_data(codec.encode(backend), "a bundle", fix=_ANOTHER)
        code = stored.list_code_names(codec.encode(backend))
        named = {*code} - {*backend.custom_ops, *list_factories(code)}
        if named:
            raise errors.BadSettings(
                f"a bundle cannot bring the code of {backend}: {', '.join(sorted(named))}",
                fix=_ANOTHER,
            )


def select_trials(
    study: Study,
    trial: str | None = None,
    other_keys: str | Sequence[str] = (),
    *,
    per_backend: bool = False,
    unconfirmed: bool = False,
) -> tuple[Trial, ...]:
    """Return the trials to pack, the winner first and the others in the order measured.

    Plans that are Python code come behind all others. `trial` and `other_keys`, by comma or in a
    sequence, are starts of keys; `unconfirmed` ones, which no finalist's pairs have confirmed,
    come last. Raises OrtuneError: a key names no trial or several, a trial failed or is not
    confirmed, or there are more than a bundle may hold.
    """
    first = study.best if trial is None else find_trial(study, trial)
    keys = other_keys.split(",") if isinstance(other_keys, str) else other_keys
    selected = [first, *(find_trial(study, key.strip()) for key in keys)]
    selected += list_best_by_backend(study) if per_backend else ()
    trials = list({candidate.key: candidate for candidate in selected}.values())
    doubtful = [candidate for candidate in trials if not study.is_confirmed(candidate)]
    if doubtful and not unconfirmed:
        raise errors.OrtuneError(
            f"trial {doubtful[0].key[:8]} ({doubtful[0].plan}) is not confirmed as faster and "
            "within the accuracy budget",
            fix="give --unconfirmed (unconfirmed=True) to pack it anyway",
        )
    if len(trials) > MOST_PLANS:
        raise errors.BadSettings(
            f"{wording.format_count(len(trials), 'plan')} are more than the {MOST_PLANS} that a "
            "bundle "
            "may hold",
            fix="name fewer",
        )
    certain = _rank_trials(study, [candidate for candidate in trials if candidate not in doubtful])
    # PyTorch comes last, however fast: its plan is Python code, which runs only where allowed.
    return tuple(
        sorted(
            (*certain, *doubtful),
            key=lambda candidate: bool(
                list_factories(stored.list_code_names(codec.encode(candidate.plan.backend)))
            ),
        )
    )


def list_best_by_backend(study: Study) -> list[Trial]:
    """Return the best confirmed trial of each backend; the original stands for its own."""
    fit = [trial for trial in (*study.final, study.baseline) if study.is_confirmed(trial)]
    best: dict[str, Trial] = {}
    for trial in _rank_trials(study, fit):
        best.setdefault(trial.plan.backend.name(), trial)
    return list(best.values())


def _has_failed(trial: Trial) -> bool:
    return bool(trial.error) or trial.status is Status.FAILED


def find_trial(study: Study, key: str) -> Trial:
    """Return the trial that a person means; OrtuneError: there is none, several, or it failed."""
    matches = {t.key: t for t in study.trials if key and t.key.startswith(key)}
    if len(matches) != 1:
        problem = "several trials begin" if matches else "no trial begins"
        keys = list(matches) or list({t.key: None for t in study.trials if not _has_failed(t)})
        raise errors.OrtuneError(
            f"{problem} with '{key}'",
            fix=f"use a whole key, such as {', '.join(candidate[:8] for candidate in keys[:12])}",
        )
    trial = next(iter(matches.values()))
    if _has_failed(trial):
        raise errors.OrtuneError(
            f"trial {trial.key[:8]} ({trial.plan}) failed: {trial.why or trial.error}",
            fix="pack one that ran",
        )
    return trial


def _rank_trials(study: Study, trials: Sequence[Trial]) -> list[Trial]:
    """Put the winner first; then what is wanted most, as the search judges its finalists."""
    best = [trial for trial in trials if trial.key == study.best.key]
    remaining_trials = [trial for trial in trials if trial.key != study.best.key]
    return best + [
        trial for near in study.job.wanted.group_trials(remaining_trials) for trial in near
    ]


CONTENTS = "package.json"
"""What a package says of itself; only a folder that has it is ever replaced."""
_RETIRED = {"oci": "write an image that serves it: docs/bundles.md has one"}
"""Target of an earlier release -> what to do instead; a row goes a release after it came."""


@dataclass(frozen=True)
class PassedOver:
    """A plan that the target cannot run, and why."""

    plan: str
    why: str


@dataclass(frozen=True)
class Packaged:
    """A package as it was written, and faster plans that the target cannot run.

    `replay`: what running it again has shown; None where that was not done. `unrun`: what was not
    run here.
    """

    path: Path
    target: str
    plan: PackedPlan
    passed_over: tuple[PassedOver, ...]
    lines: tuple[str, ...]
    replay: Replay | None
    unrun: str


def package(
    bundles: Iterable[Path],
    path: str | Path,
    target: str | Target,
    *,
    force: bool = False,
    custom_ops: bool = False,
    original: bool = False,
) -> Packaged:
    """Write the first plan that a target can run, run the package again, and compare.

    Bundles' plans are tried in their order; no more are asked for than needed. The folder appears
    when it is whole and answers as it should. `original`: the model as it came will do where no
    faster plan can run there. Raises NoPlanFits: the only plan that can run there is no faster
    than the original; OrtuneError: no plan can run there, the folder is taken, or the package does
    not do what the bundle does, and nothing is left then; BackendMissing: what writes or replays
    it is not installed.
    """
    word = str(target).partition("(")[0].strip()
    if word in _RETIRED:
        raise errors.OrtuneError(f"target `{word}` was removed", fix=_RETIRED[word])
    selected_target = (
        target if isinstance(target, Target) else spelling.parse_plugin(Target, target)
    )
    path = _require_writable(Path(path), force)
    if fix := selected_target.missing():
        raise errors.BackendMissing(
            f"a package for {selected_target.name()} cannot be made here", fix=fix
        )
    passed: list[PassedOver] = []
    for bundle in bundles:
        if bundle.resolve().is_relative_to(path.resolve()):
            raise errors.OrtuneError(f"{bundle} lies in {path}", fix="write the package elsewhere")
        with unpack_temporarily(bundle, custom_ops=custom_ops) as bundle_contents:
            for plan in bundle_contents.manifest.plans:
                try:
                    source = bundle_contents.read_source(plan)
                except errors.UnknownPlugin as error:
                    why = error.what
                else:
                    why = selected_target.refuses(source)
                if not why:
                    if passed and not original:
                        _require_gain(plan, passed, selected_target)
                    # Write, run again and judge; after a failure nothing is left.
                    with open_draft(path) as draft:
                        with report_write_errors(path):
                            draft.mkdir()
                            lines = tuple(selected_target.write(source, draft))
                            _write_contents(source, draft, selected_target)
                        replay = (
                            selected_target.replay(source, draft)
                            if selected_target.replayed
                            else None
                        )
                        if replay is not None:
                            _require_equivalence(replay, selected_target)
                    return Packaged(
                        path,
                        str(selected_target),
                        source.plan,
                        tuple(passed),
                        lines,
                        replay,
                        selected_target.unrun(replay),
                    )
                passed.append(PassedOver(plan.plan, why))
    reasons = "; ".join(f"{refusal.plan}: {refusal.why}" for refusal in passed[:3])
    raise errors.OrtuneError(
        f"no confirmed plan can run on {selected_target.name()}: {reasons or 'there is none'}",
        fix="choose another target, or optimize for what this one can run; of a run all "
        "confirmed plans are tried, of a bundle those that it holds",
    )


def _require_gain(plan: PackedPlan, passed: Sequence[PassedOver], target: Target) -> None:
    """Raise NoPlanFits where faster plans than the original were passed over for one no faster."""
    if plan.ratio is None or plan.ratio[0] >= 1:
        raise errors.NoPlanFits(
            f"{target.name()} cannot run {passed[0].plan}: {passed[0].why}; all that it can run "
            f"is {plan.plan}, which is no faster than the original",
            fix=f"search for what it can run, `ortune optimize MODEL --on {target.backend}`, and "
            "pack that run; or pack the original model, with --original (original=True)",
        )


def _require_writable(path: Path, force: bool) -> Path:
    """Return a folder that may be written."""
    if not path.absolute().parent.is_dir():
        raise errors.OrtuneError(
            f"there is no folder {path.absolute().parent}", fix="make it first, or write elsewhere"
        )
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return path
    if not force:
        raise errors.OrtuneError(
            f"{path} exists", fix="give another name, or --force (force=True) to replace it"
        )
    if not (path / CONTENTS).is_file():
        raise errors.OrtuneError(
            f"{path} was not written by pack, so it is not replaced",
            fix="give another name, or remove it yourself",
        )
    return path


def _require_equivalence(replay: Replay, target: Target) -> None:
    """Refuse a package that answers otherwise, or that is surely slower than its limit."""
    if not replay.difference_db >= TOLERANCE_DB:
        raise errors.BadModel(
            f"the package for {target.name()} gives other outputs under {replay.by}: "
            f"SNR {replay.difference_db:.0f} dB against the bundle's golden answers, "
            f"at least {TOLERANCE_DB:.0f} dB needed",
            fix="pack another trial (--plan KEY), or optimize with this runtime",
        )
    if replay.overhead is not None and replay.overhead[1] > 1 + target.limit:
        value, low, high = replay.overhead
        raise errors.OrtuneError(
            f"the package for {target.name()} takes {value:.2f} [{low:.2f}, {high:.2f}] times as "
            f"long under {replay.by} as the bundle does: more than its limit of "
            f"{1 + target.limit:.2f}",
            fix="pack another trial (--plan KEY), or allow more: "
            f"--for '{target.name()}(limit={value:.1f})'",
        )


def _write_contents(source: Source, folder: Path, target: Target) -> None:
    """Say in the package what it is; the same source and target, the same bytes."""
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(path for path in folder.rglob("*") if path.is_file())
    }
    unsaid: dict[str, Any] = {name: type(getattr(target, name))() for name in target.places}
    record = {
        "target": str(replace(target, **unsaid)),
        "plan": source.plan.plan,
        "key": source.plan.key,
        "backend": source.plan.backend,
        "ortune": source.manifest.ortune,
        "files": files,
    }
    text = json.dumps(codec.encode(record), indent=1) + "\n"
    (folder / CONTENTS).write_text(text, encoding="utf-8")
