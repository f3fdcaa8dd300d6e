"""What goes into a bundle: which file of the run becomes which member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ortune.bundle.arithmetic import arithmetic
from ortune.core.errors import BadModel, BadSettings, OrtuneError
from ortune.core.plugins import stored
from ortune.core.plugins.user_function import is_path
from ortune.core.study import Study
from ortune.core.trial import Trial
from ortune.core.version import __version__
from ortune.engine.archive import safe
from ortune.engine.consent import is_code
from ortune.engine.manifest import (
    FORMAT,
    LIBRARIES,
    RECIPE,
    SETTINGS,
    Golden,
    Manifest,
    PackedPlan,
    Signature,
)
from ortune.experiment import golden as samples
from ortune.experiment.keys import model_digest
from ortune.model.graph import spec
from ortune.model.io import file
from ortune.model.io.write import SOURCES


@dataclass(frozen=True)
class Content:
    """Files and what the manifest says of them.

    Attributes:
        files: Member -> file.
        manifest: All but the digests of the members.
        libraries: Library of custom operators -> its member; a Python module -> its name.
    """

    files: Mapping[str, Path]
    manifest: Manifest
    libraries: Mapping[str, str]


def content(study: Study, trial: Trial, *, custom_ops: bool = False) -> Content:
    """Find every file of a trial's bundle.

    Golden outputs that the run lacks are made by a worker.

    Args:
        custom_ops: Whether code that the run names may run for that.

    Raises:
        OrtuneError: A part of the run is gone, an original changed after the search, or code may
            not run.
    """
    originals = sources(study)
    files: dict[str, Path] = {}
    models: dict[str, str] = {}
    fallback: dict[str, str] = {}
    signatures: dict[str, Signature] = {}
    golden: dict[str, Golden] = {}
    samples.ensure(study, trial, custom_ops=custom_ops)
    for name, original in originals.items():
        label = name or original.stem
        signatures[name], parts = _read(original)
        fallback[name] = _add(files, "fallback", label, original, parts)
        built = _built(study, trial, original)
        if built == original:
            models[name] = fallback[name]
        else:
            models[name] = _add(files, "models", label, built, _read(built)[1])
        golden[name] = _golden(files, study, trial, name)
    named = (*trial.plan.backend.custom_ops, *study.job.baseline.custom_ops)
    libraries = {text: _library(files, text) for text in dict.fromkeys(named)}
    plan = PackedPlan(
        trial.key,
        str(trial.plan),
        str(trial.plan.backend),
        models,
        SETTINGS,
        RECIPE,
        golden,
        arithmetic=arithmetic(trial.plan, [files[m] for m in models.values()], study.job.machine),
        custom_ops=tuple(libraries[text] for text in trial.plan.backend.custom_ops),
    )
    manifest = Manifest(
        FORMAT,
        __version__,
        (plan,),
        fallback,
        signatures,
        study.job.versions,
        study.job.machine,
        members={},
        workload=str(study.job.workload),
        custom_ops=tuple(libraries.values()),
    )
    return Content(files, manifest, libraries)


def sources(study: Study) -> dict[str, Path]:
    """Return the originals by name; a run of one model names it "".

    Raises:
        OrtuneError: One is gone or is not the file that was measured.
    """
    found = {name: Path(path) for name, path in study.models.items()}
    for path in found.values():
        if not path.is_file():
            raise OrtuneError(
                f"the original '{path}' is gone, and a bundle carries it as the fall-back",
                fix="put it back, or run optimize where it is now",
            )
    if model_digest(found) != study.job.model_digest:
        raise OrtuneError(
            f"'{study.job.model}' is not the file that was measured: it changed since",
            fix="run optimize again",
        )
    return found


def _read(path: Path) -> tuple[Signature, dict[str, Path]]:
    """Return a model's signature and its external data, by location."""
    model = file.load(path)
    parts = {}
    for text in model.graph.meta[SOURCES]:
        place = Path(text)
        if place != path:
            parts[place.relative_to(path.parent).as_posix()] = place
    return Signature(spec.inputs(model), spec.outputs(model)), parts


def _built(study: Study, trial: Trial, original: Path) -> Path:
    """Return the plan's file of one model; a model that the recipe left alone has none."""
    path = samples.built_model(Path(study.root), trial, original)
    if path == original and trial.artefact and len(study.models) == 1:
        raise OrtuneError(
            f"the built model in '{Path(study.root) / trial.artefact}' is gone",
            fix="run optimize again",
        )
    return path


def _add(
    files: dict[str, Path], folder: str, label: str, path: Path, parts: Mapping[str, Path]
) -> str:
    """Add a model; one with external data gets a folder of its own, as locations may repeat."""
    home = f"{folder}/{label}" if parts else folder
    member = f"{home}/{label}.onnx"
    added = {member: path} | {f"{home}/{place}": data for place, data in parts.items()}
    for one, source in added.items():
        if not safe(one) or one in files:
            raise BadModel(f"'{source}' cannot be packed as '{one}'", fix="rename the file")
        files[one] = source
    return member


def _library(files: dict[str, Path], text: str) -> str:
    """Add a library of custom operators; what is installed as a module is only named.

    Raises:
        OrtuneError: It is gone, or no code: a run must not have any other file handed on.
    """
    if not is_path(text):
        return text
    path = Path(text)
    if not path.is_file():
        raise OrtuneError(
            f"the library of custom operators '{text}' is gone",
            fix="build it again where it was, or run optimize again",
        )
    if not is_code(path):
        raise BadSettings(
            f"'{text}' is neither a shared library nor a Python file", fix=stored.DISTRUST
        )
    member = f"{LIBRARIES}/{path.name}"
    if member in files:
        raise OrtuneError(f"two libraries are called '{path.name}'", fix="rename one of them")
    files[member] = path
    return member


def _golden(files: dict[str, Path], study: Study, trial: Trial, name: str) -> Golden:
    root = Path(study.root)
    home = f"golden/{name}" if name else "golden"
    found = Golden(f"{home}/inputs.stream", f"{home}/outputs.stream")
    files[found.inputs] = samples.inputs_path(root, name)
    files[found.outputs] = samples.outputs_path(root, name, trial)
    return found
