"""Write a bundle as a package for another runtime, and run that package again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ortune.bundle.engine.golden import TOLERANCE_DB
from ortune.bundle.engine.manifest import PackedPlan
from ortune.bundle.source import Source, unpack_temporarily
from ortune.bundle.target import Replay, Target
from ortune.core.atomic_write import open_draft, report_write_errors
from ortune.core.errors import BackendMissing, BadModel, NoPlanFits, OrtuneError, UnknownPlugin
from ortune.core.plugins import codec, spelling

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
    """A package as it was written.

    Attributes:
        passed_over: Faster plans that the target cannot run.
        replay: What running it again has shown; None where that was not done.
        unrun: What was not run here; empty when nothing was left out.
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
        raise OrtuneError(f"target `{word}` was removed", fix=_RETIRED[word])
    selected_target = (
        target if isinstance(target, Target) else spelling.parse_plugin(Target, target)
    )
    path = _require_writable(Path(path), force)
    if fix := selected_target.missing():
        raise BackendMissing(
            f"a package for {selected_target.name()} cannot be made here", fix=fix
        )
    passed: list[PassedOver] = []
    for bundle in bundles:
        if bundle.resolve().is_relative_to(path.resolve()):
            raise OrtuneError(f"{bundle} lies in {path}", fix="write the package elsewhere")
        with unpack_temporarily(bundle, custom_ops=custom_ops) as bundle_contents:
            for plan in bundle_contents.manifest.plans:
                try:
                    source = bundle_contents.read_source(plan)
                except UnknownPlugin as error:
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
    raise OrtuneError(
        f"no confirmed plan can run on {selected_target.name()}: {reasons or 'there is none'}",
        fix="choose another target, or optimize for what this one can run; of a run all "
        "confirmed plans are tried, of a bundle those that it holds",
    )


def _require_gain(plan: PackedPlan, passed: Sequence[PassedOver], target: Target) -> None:
    """Raise NoPlanFits where faster plans than the original were passed over for one no faster."""
    if plan.ratio is None or plan.ratio[0] >= 1:
        raise NoPlanFits(
            f"{target.name()} cannot run {passed[0].plan}: {passed[0].why}; all that it can run "
            f"is {plan.plan}, which is no faster than the original",
            fix=f"search for what it can run, `ortune optimize MODEL --on {target.backend}`, and "
            "pack that run; or pack the original model, with --original (original=True)",
        )


def _require_writable(path: Path, force: bool) -> Path:
    """Return a folder that may be written."""
    if not path.absolute().parent.is_dir():
        raise OrtuneError(
            f"there is no folder {path.absolute().parent}", fix="make it first, or write elsewhere"
        )
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return path
    if not force:
        raise OrtuneError(
            f"{path} exists", fix="give another name, or --force (force=True) to replace it"
        )
    if not (path / CONTENTS).is_file():
        raise OrtuneError(
            f"{path} was not written by pack, so it is not replaced",
            fix="give another name, or remove it yourself",
        )
    return path


def _require_equivalence(replay: Replay, target: Target) -> None:
    """Refuse a package that answers otherwise, or that is surely slower than its limit."""
    if not replay.difference_db >= TOLERANCE_DB:
        raise BadModel(
            f"the package for {target.name()} gives other outputs under {replay.by}: "
            f"SNR {replay.difference_db:.0f} dB against the bundle's golden answers, "
            f"at least {TOLERANCE_DB:.0f} dB needed",
            fix="pack another trial (--plan KEY), or optimize with this runtime",
        )
    if replay.overhead is not None and replay.overhead[1] > 1 + target.limit:
        value, low, high = replay.overhead
        raise OrtuneError(
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
