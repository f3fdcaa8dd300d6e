"""What goes into a bundle: which file of the run becomes which member."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path

from ortune.backends.runtimes.onnxruntime.engine_cache import CompilingBackend
from ortune.bundle.engine.archive import TEXTS, is_safe_member
from ortune.bundle.engine.call import read_pictures
from ortune.bundle.engine.consent import is_code, list_factories
from ortune.bundle.engine.golden import TOLERANCE_DB, snr_db
from ortune.bundle.engine.load import HOME, CompiledPlan
from ortune.bundle.engine.manifest import (
    COMPILED,
    EVIDENCE,
    FORMAT,
    HUB,
    LIBRARIES,
    PREPROCESS,
    RECIPE,
    SETTINGS,
    Arithmetic,
    Golden,
    Manifest,
    PackedPlan,
    Signature,
    name_plan_member,
)
from ortune.core import preprocess, regular_file
from ortune.core.backend import Backend
from ortune.core.errors import BadData, BadModel, BadSettings, OrtuneError
from ortune.core.plugins import codec, stored
from ortune.core.plugins.plugin import find_plugins
from ortune.core.plugins.user_function import is_path
from ortune.core.study import Study
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Plan, Trial
from ortune.core.version import __version__, read_commit
from ortune.data.stream import Stream
from ortune.graph.analysis.facts import read_facts
from ortune.graph.analysis.precision import list_saturable_layers
from ortune.graph.io import file
from ortune.graph.io.write import SOURCES
from ortune.graph.ir import edit
from ortune.measurement.process import Worker, keep_outputs, single_model_job, translate_failures
from ortune.search.experiment import golden as samples
from ortune.search.experiment.experiment import model_digest


@dataclass(frozen=True)
class Content:
    """Files by member, and what the manifest says of them, but for their digests.

    The plans' backends name libraries as in the bundle; `plugins` are versions of somebody else's
    packages.
    """

    files: Mapping[str, Path]
    manifest: Manifest
    settings: tuple[Backend, ...]
    plugins: Mapping[str, str]


def collect_content(
    study: Study, trials: Sequence[Trial], *, licence: str = "", custom_ops: bool = False
) -> Content:
    """Find every file of a bundle of trials, the one to run first; what plans share is in it once.

    Golden outputs that the run lacks are made by a worker; code that the run names runs for them
    only with `custom_ops`. Raises OrtuneError: a part of the run is gone, an original changed
    after the search, or code may not run.
    """
    originals, built = list_originals(study), read_commit()
    for trial in trials:
        samples.ensure_outputs(study, trial, custom_ops=custom_ops)
    files = _Files()
    fallback = {
        name: files.add_model("fallback", name or path.stem, path)
        for name, path in originals.items()
    }
    backends = [trial.plan.backend for trial in trials]
    named = [text for backend in (*backends, study.job.baseline) for text in backend.custom_ops]
    named += [
        text
        for backend in backends
        for text in list_factories(stored.list_code_names(codec.encode(backend)))
    ]
    libraries = {text: files.add_library(text) for text in dict.fromkeys(named)}
    # Settings name libraries as in the bundle.
    settings = tuple(
        replace(backend, custom_ops=tuple(libraries[text] for text in backend.custom_ops))  # type: ignore[call-arg]
        if backend.custom_ops
        else backend
        for backend in backends
    )
    models = {name: file.load(path) for name, path in originals.items()}
    manifest = Manifest(
        format=FORMAT,
        ortune=__version__,
        plans=tuple(
            _add_plan(files, study, trial, place, settings[place])
            for place, trial in enumerate(trials)
        ),
        fallback=fallback,
        signatures={
            name: Signature(edit.list_inputs(model), edit.list_outputs(model))
            for name, model in models.items()
        },
        versions=study.job.versions,
        machine=study.job.machine,
        members={},
        workload=str(study.job.workload),
        custom_ops=tuple(libraries.values()),
        licence=licence,
        provenance={
            "original": study.job.model_digest,
            "data": study.job.data_digest,
            "built by": f"ortune {__version__} ({built})" if built else f"ortune {__version__}",
            "measured": EVIDENCE,
        },
    )
    # The versions of the packages besides ortune that plans take a plugin of.
    used = (plugin for trial in trials for plugin in find_plugins(trial.plan))
    tops = {type(plugin).__module__.partition(".")[0] for plugin in used if not plugin.origin}
    owners = {point.value: point.dist for point in entry_points(group="ortune.plugins")}
    packages = (owners[top] for top in sorted(tops & owners.keys()))
    versions = {package.name: package.version for package in packages if package is not None}
    return Content(files.members, manifest, settings, versions)


def _add_plan(
    files: _Files, study: Study, trial: Trial, place: int, settings: Backend
) -> PackedPlan:
    """Add one plan's files; `settings`: its backend, with libraries named as in the bundle."""
    root = Path(study.root)
    models, golden = {}, {}
    for name, path in study.models.items():
        original = Path(path)
        built = samples.find_built_model(root, trial, original)
        if built == original and trial.artefact and len(study.models) == 1:
            raise OrtuneError(
                f"the built model in '{root / trial.artefact}' is gone", fix="run optimize again"
            )
        models[name] = files.add_model(
            name_plan_member(place, "models"), name or original.stem, built
        )
        home = f"golden/{name}" if name else "golden"
        outputs = samples.outputs_path(root, name, trial)
        golden[name] = Golden(
            files.add_file(f"{home}/inputs.stream", samples.inputs_path(root, name)),
            files.add_file(name_plan_member(place, f"{home}/outputs.stream"), outputs),
        )
    ratio = None
    if trial.key == study.baseline.key:
        ratio = (1.0, 1.0, 1.0)
    elif trial.ratio is not None and study.is_confirmed(trial):
        ratio = (trial.ratio.value, trial.ratio.low, trial.ratio.high)
    built_files = [files.members[member] for member in models.values()]
    return PackedPlan(
        key=trial.key,
        plan=str(trial.plan),
        backend=str(trial.plan.backend),
        models=models,
        settings=name_plan_member(place, SETTINGS),
        recipe=name_plan_member(place, RECIPE),
        golden=golden,
        ratio=ratio,
        arithmetic=read_arithmetic(trial.plan, built_files, study.job.machine),
        custom_ops=(
            *settings.custom_ops,
            *list_factories(stored.list_code_names(codec.encode(trial.plan.backend))),
        ),
    )


def list_originals(study: Study) -> dict[str, Path]:
    """Return originals by name, "" of one alone; OrtuneError where one is gone or changed."""
    originals = {name: Path(path) for name, path in study.models.items()}
    for path in originals.values():
        if not path.is_file():
            raise OrtuneError(
                f"the original '{path}' is gone, and a bundle carries it as the fall-back",
                fix="put it back, or run optimize where it is now",
            )
    if model_digest(originals) != study.job.model_digest:
        raise OrtuneError(
            f"'{study.job.model}' is not the file that was measured: it changed since",
            fix="run optimize again",
        )
    return originals


class _Files:
    """The members of a bundle and the files that they come from."""

    def __init__(self) -> None:
        self.members: dict[str, Path] = {}
        self._models: dict[tuple[str, str], str] = {}

    def add_file(self, member: str, path: Path) -> str:
        """Add a file; BadModel where its name is taken, or not every system can unpack it."""
        if not is_safe_member(member) or self.members.get(member, path) != path:
            raise BadModel(f"'{path}' cannot be packed as '{member}'", fix="rename the file")
        self.members[member] = path
        return member

    def add_model(self, folder: str, label: str, path: Path) -> str:
        """Add a model, in a folder with its external data, or return an equal member."""
        key = (label, file.compute_digest(path))
        if key not in self._models:
            places = [Path(text) for text in file.load(path).graph.meta[SOURCES]]
            parts = {
                part.relative_to(path.parent).as_posix(): part for part in places if part != path
            }
            home = f"{folder}/{label}" if parts else folder
            self._models[key] = self.add_file(f"{home}/{label}.onnx", path)
            for place, data in parts.items():
                self.add_file(f"{home}/{place}", data)
        return self._models[key]

    def add_library(self, text: str) -> str:
        """Add a library, or name a module; OrtuneError where it is gone or no code."""
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
        if member in self.members:
            raise OrtuneError(f"two libraries are called '{path.name}'", fix="rename one of them")
        return self.add_file(member, path)


_HALVES = ("float16", "bfloat16")
_HINTS = {"f16": "float16", "bf16": "bfloat16", "fp16": "float16"}


def read_arithmetic(plan: Plan, models: Iterable[Path], machine: Mapping[str, str]) -> Arithmetic:
    """Read it off a plan's models and backend's precision; `machine`: of the evidence."""
    integers = risky = 0
    halves = {_HINTS.get(str(getattr(plan.backend, "precision", "")), "")}
    for path in models:
        model = file.load(path)
        layers = list_saturable_layers(model)
        model_facts = read_facts(model)
        integers += len(layers) or int(model_facts.quantized)
        risky += sum(1 for layer in layers if layer.risky)
        halves |= set(_HALVES) & set(model_facts.precisions)
    return Arithmetic(
        integers,
        risky,
        tuple(sorted(halves - {""})),
        tuple(machine.get("instruction sets", "").split()),
        machine.get("system", ""),
    )


def read_extras(
    study: Study, signatures: Mapping[str, Signature], settings_file: str | Path | None = None
) -> dict[str, bytes]:
    """Return member -> content, by a ``preprocess.toml`` or the one beside the run's images.

    Raises BadData: the file cannot be read; BadModel: it fits no model, or is out of the bounds
    that a bundle has.
    """
    path = Path(study.root) / preprocess.SETTINGS if settings_file is None else Path(settings_file)
    if settings_file is None and not path.is_file():
        return {}
    try:
        content = regular_file.read_bytes(path, TEXTS[PREPROCESS])
    except OSError as error:
        raise BadData(
            f"cannot read {path}: {error.strerror or error}", fix="give a preprocess.toml"
        ) from error
    read_pictures(content, str(path), signatures)
    return {PREPROCESS: content}


def list_side_members(study: Study) -> dict[str, Path]:
    """Return member -> file of what lay beside the model in a hub's folder."""
    root = Path(study.root) / HUB
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root.parent).as_posix(): path for path in files}


_LIMIT_S = 3600.0
"""For one model: engines of large models take a quarter of an hour."""


@dataclass(frozen=True)
class PrecompiledFiles:
    """Members of compiled models, and the text that says what they are and what for."""

    files: Mapping[str, Path] = field(default_factory=dict)
    texts: Mapping[str, bytes] = field(default_factory=dict)


@contextmanager
def compile_plans(study: Study, trials: Sequence[Trial]) -> Iterator[PrecompiledFiles]:
    """Compile the models of every plan whose provider can, each in a process of its own.

    Each compiled model is opened again and must answer the golden samples as the plan did. The
    files are there within the block. Raises BadModel: a provider does not compile a model, or what
    it made does not open or answers otherwise; BadSettings: no plan's provider compiles.
    """
    plans: list[CompiledPlan] = []
    files: dict[str, Path] = {}
    with open_temporary_folder() as folder:
        for place, trial in enumerate(trials):
            if not isinstance(trial.plan.backend, CompilingBackend):
                continue
            members, targets = {}, []
            for name, source in study.models.items():
                model = samples.find_built_model(Path(study.root), trial, Path(source))
                out = Path(folder, f"{place}", f"{name}.onnx" if name else model.name)
                out.parent.mkdir(parents=True, exist_ok=True)
                targets.append(_compile_model(study, trial, name, model, out))
                members[name] = name_plan_member(place, f"{HOME}/{out.name}")
                files[members[name]] = out
            plans.append(CompiledPlan(place, members, targets[0]))
        if not plans:
            named = ", ".join(sorted({candidate.plan.backend.name() for candidate in trials}))
            raise BadSettings(
                f"{named} compiles no model ahead of time", fix="leave --compiled out"
            )
        text = json.dumps(codec.encode(plans), indent=1)
        yield PrecompiledFiles(files, {COMPILED: text.encode()})


def _compile_model(
    study: Study, trial: Trial, name: str, model: Path, out: Path
) -> Mapping[str, str]:
    """Compile one model and check it; return what it is for."""
    root, backend = Path(study.root), trial.plan.backend
    samples.ensure_outputs(study, trial)
    inputs = samples.inputs_path(root, name)
    expected = Stream(samples.outputs_path(root, name, trial))
    answers = out.with_suffix(".stream")
    compiling, checking = (
        single_model_job(
            path, backend, inputs, root, "compiled", environment=study.job.environment
        )
        for path in (model, out)
    )
    problem = f"{model.name} is not compiled for '{backend}'"
    with translate_failures(problem, fix="leave --compiled out"):
        with Worker(compiling, timeout_s=_LIMIT_S) as worker:
            made_for: Mapping[str, str] = worker.ask("precompile", out=str(out))["made_for"]
        with Worker(checking, timeout_s=_LIMIT_S) as worker:
            worker.ask("load")
            actual = keep_outputs(worker, range(len(expected)), answers)
    worst = min(map(snr_db, expected, actual), default=TOLERANCE_DB)
    if worst < TOLERANCE_DB:
        raise BadModel(
            f"{model.name} compiled for '{backend}' differs from the plan: SNR {worst:.0f} dB",
            fix="leave --compiled out",
        )
    return made_for
