"""One plan of a bundle, unpacked: what is needed to run and time it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ortune.bundle.read import Bundle, BundledPlan, read
from ortune.bundle.source import unpack
from ortune.core.backend import Backend
from ortune.core.errors import BadData, BadModel, BadSettings, OrtuneError, gist, shortened
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec, stored
from ortune.core.study import Job
from ortune.core.trial import Interval, Trial
from ortune.data.stream import Stream
from ortune.engine import consent
from ortune.engine.manifest import Manifest
from ortune.engine.signing import verify_signature


@dataclass(frozen=True)
class UnpackedPlan:
    """A plan and the original below a folder; keys are the names of the models.

    Attributes:
        trial: What was measured of the plan; the final trial where there is one.
        job: What was measured, on which machine, with which versions.
        backend: The plan's, with the libraries where they were unpacked.
        baseline: The original's; None where a bundle cannot bring what it ran on.
        golden: Stream files of inputs and answers.
    """

    trial: Trial
    job: Job
    backend: Backend
    baseline: Backend | None
    models: Mapping[str, Path]
    originals: Mapping[str, Path]
    golden: Mapping[str, tuple[Path, Path]]

    @property
    def packed(self) -> Interval | None:
        """The plan's time over the original's."""
        return self.trial.ratio

    @property
    def predicted(self) -> Interval | None:
        """Where a new measurement of that falls."""
        return self.trial.predicted


def unpacked(
    path: Path,
    folder: Path,
    *,
    key: str,
    custom_ops: bool,
    require_signature: str | Path | None = None,
) -> UnpackedPlan:
    """Check a bundle and unpack one plan of it, with the original, into a folder.

    Threads above the CPUs at hand are lowered.

    Args:
        key: Start of the key of the plan's trial; the first plan if empty.
        custom_ops: Whether libraries that it brings may run.
        require_signature: Public key of who must have signed it.

    Raises:
        BadModel: It is no bundle, was changed, holds what a bundle may not, or no golden samples.
        BadSettings: It holds no such plan, or runs code that is not allowed.
    """
    if require_signature is not None:
        verify_signature(path, require_signature)
    bundle = read(path)
    trial, plan = _plan(bundle, key)
    manifest = unpack(path, folder, plan.packed, custom_ops=custom_ops)
    golden = {
        name: (folder / one.inputs, folder / one.outputs)
        for name, one in plan.packed.golden.items()
    }
    _demand_samples(path, golden)
    backend = consent.placed(plan.backend, plan.packed, manifest, folder)
    return UnpackedPlan(
        trial,
        bundle.evidence.job,
        stored.lowered(backend, effective_cpus())[0],
        _baseline(bundle.evidence.job.baseline, manifest, folder),
        {name: folder / member for name, member in plan.packed.models.items()},
        {name: folder / member for name, member in manifest.fallback.items()},
        golden,
    )


def _demand_samples(path: Path, golden: Mapping[str, tuple[Path, Path]]) -> None:
    """Refuse golden samples that cannot be read, or of which one has no answer.

    Raises:
        BadModel: They are so, or there are none.
    """
    why = "" if golden else "it has none"
    for inputs, outputs in golden.values():
        try:
            if not 0 < len(Stream(inputs)) == len(Stream(outputs)):
                why = "not every sample has an answer"
        except BadData as error:
            why = gist(error)
    if why:
        raise BadModel(
            f"{path.name}: its golden samples cannot be used: {why}", fix="pack the run again"
        )


def _plan(bundle: Bundle, key: str) -> tuple[Trial, BundledPlan]:
    """Return a plan and what was measured of it; bundles of format 1 do not name the key.

    Raises:
        BadSettings: The bundle holds none with such a key.
        OrtuneError: It has no evidence at all.
    """
    held = bundle.evidence.trials
    if not held:
        raise OrtuneError(f"{bundle.path} holds no evidence of its plan", fix="pack the run again")
    keys = [one.packed.key or held[-1].key for one in bundle.plans]
    found = next((place for place, one in enumerate(keys) if one.startswith(key)), None)
    if found is None:
        raise BadSettings(
            f"{bundle.path} holds no plan '{shortened(key, 40)}'",
            fix=f"use one of: {', '.join(one[:8] for one in keys)}",
        )
    trials = [trial for trial in held if trial.key == keys[found]]
    return trials[-1], bundle.plans[found]


def _baseline(stored_baseline: Backend, manifest: Manifest, folder: Path) -> Backend | None:
    """Return what the original ran on, none of it code that only the evidence names."""
    backend, _ = stored.lowered(stored_baseline, effective_cpus())
    libraries = backend.custom_ops
    if set(stored.code(codec.encode(backend))) - set(libraries):
        return None
    if not libraries:
        return backend
    brought = consent.libraries(manifest.custom_ops, manifest, folder)
    return replace(backend, custom_ops=brought)  # type: ignore[call-arg]
