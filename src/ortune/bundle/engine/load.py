"""Load a bundle or a plain model and call it like a function.

Of a bundle it is the first plan that runs here, or the one that was asked for.
"""

import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.onnxruntime.engine_cache import CompilingBackend, list_compiled_nodes
from ortune.bundle.engine import archive, consent
from ortune.bundle.engine.archive import require_inside, verify_signature
from ortune.bundle.engine.call import Call, attach_pictures
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.golden import TOLERANCE_DB, describe_drift, list_cpu_differences, snr_db
from ortune.bundle.engine.instances import Serving, load_serving, read_serving
from ortune.bundle.engine.manifest import COMPILED, Golden, Manifest, PackedPlan, Signature
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadData, BadModel, BadSettings, summarize_error
from ortune.core.plugins import spelling, stored
from ortune.core.runtime_conflict import warn_of_runtime_conflict
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data.stream import Stream
from ortune.measurement.machine import machine


def load_engine(
    path: str | Path,
    *,
    on: str | Backend | None = None,
    device: str | None = None,
    instances: int | str = 0,
    custom_ops: bool | str | Sequence[str] = False,
    max_batch: int = 0,
    max_delay_us: int = 0,
    preferred: Sequence[int] = (),
    max_queue: int = 0,
    require_signature: str | Path | None = None,
    compiled: bool = True,
) -> Engine:
    """Open a bundle with exactly the settings it was measured with, or a plain model.

    Of several plans in a bundle the first that runs here is taken, in the order that they were
    measured in. It is served as a goal search wrote into it, but for what is given here.

    Args:
        path: A bundle, or an ONNX model.
        on: Backend of a plain model, such as ``cpu(threads=2)``; the CPU's default without it. Of
            a bundle: the plan to take, by the name of its backend or by the full spelling. Where
            none was measured on it, the model runs there all the same, with a warning.
        device: Of instances that name none, such as ``cpu`` or ``gpu0``.
        instances: Sessions of every model, each on CPUs of its own; threads are divided among
            them. A number, or text such as ``2@gpu0,2@gpu1``; 0 takes the bundle's, or 1.
        custom_ops: Libraries of custom operators of a plain model. They are code: those that a
            bundle brings are loaded only when this is True.
        max_batch: Rows that are computed together at most; 0 takes the bundle's, or 8. Of
            convolutions on CUDA, or 1: every batch is filled up to what is given.
        max_delay_us: Microseconds that a request waits for others; 0 takes the bundle's, or none.
        preferred: Rows that are enough for requests to wait no longer, such as ``(4, 8)``.
        max_queue: Requests of `submit` that wait at most; 0 takes 1024.
        require_signature: Public key, a PEM file: a bundle that its owner did not sign is not
            opened.
        compiled: Open what a provider compiled when a bundle was packed, where provider, versions
            and device are the same. Say False where you would not trust the file.

    Raises:
        BadModel: The file is damaged, was changed after packing, no longer answers as packed, or
            has no signature by the key that is required.
        BadSettings: `on` is wrong; the bundle brings custom operators that are not allowed, or a
            library or the key cannot be used; there are more instances than CPUs, or a device is
            named that the backend does not run on.
        BackendMissing: The backend of a plain model, or of the plan of `on`, cannot run here.
    """
    make_serving = partial(
        read_serving, instances, device, max_batch, max_delay_us, preferred, max_queue
    )
    path, how = Path(path), make_serving()
    warn_of_runtime_conflict()
    backend = on if on is None or isinstance(on, Backend) else spelling.parse_plugin(Backend, on)
    if not archive.is_bundle(path):
        if require_signature is not None:
            raise BadSettings(
                f"{path.name} is a plain model, and only bundles are signed",
                fix="give a bundle, or leave the key out",
            )
        return _open_plain(path, backend or Cpu(), custom_ops, how)
    if require_signature is not None:
        verify_signature(path, require_signature)
    if not isinstance(custom_ops, bool):
        raise BadSettings(
            f"{path.name} brings its own libraries, so '{custom_ops}' does not apply",
            fix="give custom_ops=True (--allow-custom-ops) if you trust where it comes from",
        )
    with ExitStack() as stack:
        with archive.open_bundle(path) as (file, manifest):
            consent.require_consent(path.name, manifest, custom_ops)
            how = make_serving(packed=load_serving(path.name, file, manifest))
            ready = load_compiled(path.name, file, manifest) if compiled else {}
            opened = BundleArchive(path.name, file, manifest, how, ready, custom_ops)
            running = open_plan(stack, opened, backend)
            attach_pictures(running.calls, path.name, file, manifest)
        parts = running.calls, running.backend, stack.pop_all(), running.fallback, running.plan
        return Engine(*parts, compiled=running.compiled)


def _open_plain(
    path: Path, backend: Backend, custom_ops: bool | str | Sequence[str], how: Serving
) -> Engine:
    """Open a plain model."""
    from ortune.graph.io import file
    from ortune.graph.ir import edit

    if custom_ops is True:
        raise BadSettings(f"{path.name} brings no libraries", fix="name one: custom_ops='lib.so'")
    refuse_missing_backend(backend)
    if custom_ops:
        if not isinstance(backend, Cpu):
            raise BadSettings(
                f"backend '{backend.name()}' takes no custom operators", fix="use on='cpu'"
            )
        backend = replace(
            backend, custom_ops=(custom_ops,) if isinstance(custom_ops, str) else tuple(custom_ops)
        )
    model = file.load(path)
    signature = Signature(edit.list_inputs(model), edit.list_outputs(model))
    del model
    backend = how.share_threads(backend)
    with ExitStack() as stack:
        instances = how.open_instances(stack, backend, path, path.name)
        how, fills = how.settle_batches(backend, path)
        call = Call(instances, signature, how, backend=backend, fills=fills)
        stack.callback(call.close)
        return Engine({"": call}, backend, stack.pop_all())


HOME = "compiled"
"""Folder of a plan's compiled models."""


@dataclass(frozen=True)
class CompiledPlan:
    """What the models of the plan at a place, from 0, were compiled to.

    `models` are name -> member; `made_for` is what must be the same where they are opened:
    provider, versions, device.
    """

    plan: int
    models: Mapping[str, str]
    made_for: Mapping[str, str]


def load_compiled(name: str, file: zipfile.ZipFile, manifest: Manifest) -> dict[int, CompiledPlan]:
    """Return place of a plan -> its compiled models; BadModel where they changed or do not fit."""
    if COMPILED not in manifest.members:
        return {}
    archive.extract_member(file, manifest, COMPILED, None)
    where = f"{name}: '{COMPILED}'"
    entries = consent.decode_member(tuple[CompiledPlan, ...], file.read(COMPILED), where)
    places = {entry.plan: entry for entry in entries}
    for place, entry in places.items():
        fits = place in range(len(manifest.plans)) and set(entry.models) == set(manifest.fallback)
        inside = all(
            member in manifest.members and member.endswith(".onnx")
            for member in entry.models.values()
        )
        if not fits or not inside or len(places) != len(entries):
            raise BadModel(
                f"{name}: '{COMPILED}' names models or plans that do not exist",
                fix=stored.DISTRUST,
            )
    return places


@dataclass(frozen=True)
class BundleArchive:
    """A bundle whose table of contents was checked, and how its models are to be served.

    `compiled`: place of a plan -> its compiled models, of those that may be opened; `code`: what
    plans name may run.
    """

    name: str
    file: zipfile.ZipFile
    manifest: Manifest
    how: Serving
    compiled: Mapping[int, CompiledPlan] = field(default_factory=dict)
    code: bool = False

    def unpack_models(
        self, folder: Path, models: Iterable[str], golden: Iterable[Golden] = ()
    ) -> None:
        """Check every member; unpack models, golden samples and libraries.

        A library that is there stays as it is: it may be loaded already. Raises BadModel: a member
        was changed, or a model keeps weights elsewhere; OrtuneError: there is no room.
        """
        models = set(models)
        samples = {member for pair in golden for member in (pair.inputs, pair.outputs)}
        libraries = {text for text in self.manifest.custom_ops if not (folder / text).exists()}
        archive.unpack_members(self.file, self.manifest, folder, models | samples | libraries)
        for member in sorted(models):
            require_inside(folder, member, self.manifest.members)


def make_temporary_folder(stack: ExitStack) -> Path:
    folder = open_temporary_folder()
    return Path(stack.enter_context(folder))


def open_models(
    stack: ExitStack,
    backend: Backend,
    folder: Path,
    opened: BundleArchive,
    members: Mapping[str, str],
    golden: Mapping[str, Golden] = MappingProxyType({}),
) -> Mapping[str, Call]:
    """Open all models or none; `golden`: model name -> samples to warm it up with."""
    with ExitStack() as session_stack:
        instances_by_name = {
            name: opened.how.open_instances(
                session_stack, backend, folder / member, name or Path(member).stem
            )
            for name, member in members.items()
        }
        stack.enter_context(session_stack.pop_all())
    calls = {}
    for name, instances in instances_by_name.items():
        how, fills = opened.how.settle_batches(backend, folder / members[name])
        calls[name] = Call(
            instances,
            opened.manifest.signatures[name],
            how,
            golden=folder / golden[name].inputs if name in golden else None,
            backend=backend,
            fills=fills,
        )
        stack.callback(calls[name].close)
    return calls


def _measure_distances(
    calls: Mapping[str, Call], folder: Path, plan: PackedPlan
) -> Iterator[float]:
    """Yield how far each model's first golden answer is from the packed one, in dB."""
    for name, golden in plan.golden.items():
        try:
            feeds = {
                name: np.array(array) for name, array in Stream(folder / golden.inputs)[0].items()
            }
            far = snr_db(Stream(folder / golden.outputs)[0], calls[name](**feeds))
        except (BadData, IndexError) as error:
            raise BadModel(
                f"its golden samples cannot be used: {summarize_error(error)}",
                fix="pack the run again",
            ) from error
        yield far


@dataclass(frozen=True)
class Running:
    """Models of a bundle with their sessions.

    `fallback`: why it is not the first plan, or not the one that was asked for. No plan stands for
    the original, and for a backend that none was measured on. `compiled`: the models run as they
    were compiled when the bundle was packed.
    """

    calls: Mapping[str, Call]
    backend: Backend
    fallback: str = ""
    plan: PackedPlan | None = None
    compiled: bool = False


def open_plan(stack: ExitStack, opened: BundleArchive, backend: Backend | None) -> Running:
    """Open a bundle's first plan that runs here, or that of a backend; warn where another runs.

    Raises BadModel: a member was changed, or the bundle no longer answers as packed;
    BackendMissing: the plan or the backend that was asked for cannot run here.
    """
    if backend is None:
        return _open_first(stack, opened)
    plans, text = opened.manifest.plans, str(backend)
    exact = [plan for plan in plans if plan.backend == text]
    named = [plan for plan in plans if plan.backend.partition("(")[0] == text]
    plan = next(iter(exact + named), None)
    if plan is None:
        # Open the first plan's models on that backend, the original where they do not fit.
        refuse_missing_backend(backend)
        manifest = opened.manifest
        first = manifest.plans[0]
        reason = f"none of its plans was measured on '{backend}'"
        folder = make_temporary_folder(stack)
        models = {*first.models.values(), *manifest.fallback.values()}
        opened.unpack_models(folder, models, first.golden.values())
        if isinstance(backend, Cpu) and not backend.custom_ops:
            libraries = consent.locate_libraries(manifest.custom_ops, manifest, folder)
            backend = replace(backend, custom_ops=libraries)
        backend = opened.how.share_threads(backend)
        calls = _open_alike(stack, backend, folder, opened, first.models, first)
        description = f"the model of '{first.plan}'"
        if isinstance(calls, str):
            description = "the original"
            calls = open_models(stack, backend, folder, opened, manifest.fallback)
        _warn_caller(f"{opened.name}: {reason}; {description} runs there")
        return Running(calls, backend, reason)
    result = _open_measured(stack, opened, plan, ())
    if isinstance(result, Running):
        return result
    raise BackendMissing(
        f"{opened.name}: its plan for '{plan.backend}' cannot run here: {result}",
        fix="leave on= (--on) out: the first plan that runs here is taken",
    )


def refuse_missing_backend(backend: Backend) -> None:
    """Raise BackendMissing, saying what to install, where it cannot run here."""
    if fix := backend.missing():
        raise BackendMissing(f"backend '{backend.name()}' cannot run here", fix=fix)


def _open_first(stack: ExitStack, opened: BundleArchive) -> Running:
    """Open the first plan that runs here, or the plain original: slower, and right."""
    manifest = opened.manifest
    reasons: list[str] = []
    for plan in manifest.plans:
        result = _open_measured(stack, opened, plan, reasons)
        if isinstance(result, Running):
            return result
        reasons.append(result)
    folder = make_temporary_folder(stack)
    opened.unpack_models(folder, manifest.fallback.values())
    plain = opened.how.share_threads(Cpu())
    try:
        calls = open_models(stack, plain, folder, opened, manifest.fallback)
    except BadModel:
        if not consent.list_operator_libraries(manifest.custom_ops):
            raise
        # With the bundle's libraries only where it does not load without.
        libraries = consent.locate_libraries(manifest.custom_ops, manifest, folder)
        plain = opened.how.share_threads(Cpu(custom_ops=libraries))
        calls = open_models(stack, plain, folder, opened, manifest.fallback)
    why = _join_reasons(manifest, reasons)
    problem = f"its tuned model cannot run on '{manifest.backend}' here"
    if len(reasons) > 1:
        problem = f"none of its {wording.format_count(len(reasons), 'plan')} can run here"
    _warn_caller(f"{opened.name}: {problem} ({why}); the original runs on the CPU instead")
    return Running(calls, plain, why)


def _open_measured(
    stack: ExitStack, opened: BundleArchive, plan: PackedPlan, reasons: Sequence[str]
) -> Running | str:
    """Open one plan as it was measured, or say why not, with `reasons` of the plans before it."""
    name, manifest = opened.name, opened.manifest
    if (code := consent.list_factories(plan.custom_ops)) and not opened.code:
        return (
            f"it is Python code, {', '.join(code)}; fix: if you trust that: "
            "load(path, custom_ops=True), or --allow-custom-ops"
        )
    with ExitStack() as tried:
        folder = make_temporary_folder(tried)
        # Unpack what says where a plan runs: its settings and the libraries they name.
        libraries = [text for text in plan.custom_ops if text in opened.manifest.members]
        for member in (plan.settings, *libraries):
            archive.extract_member(opened.file, opened.manifest, member, folder)
        backend, reason = consent.load_backend(folder, manifest, plan)
        if backend is None:
            return reason
        measured = backend
        backend, fewer = consent.fit_threads(backend)
        backend = opened.how.share_threads(backend)
        calls, slow = _open_compiled(tried, backend, folder, opened, plan, backend == measured)
        if calls is None:
            opened.unpack_models(folder, plan.models.values(), plan.golden.values())
            try:
                calls = open_models(tried, backend, folder, opened, plan.models, plan.golden)
            except Exception as error:  # whatever a plug-in provider raises, something else runs
                return consent.reason_of(error)
            if slow:
                _warn_caller(
                    f"{name}: what '{plan.backend}' compiled does not run here ({slow}); it "
                    "compiles the plain model"
                )
        compiled = not slow and opened.manifest.plans.index(plan) in opened.compiled
        why = _join_reasons(manifest, reasons)
        if why:
            _warn_caller(
                f"{name}: its fastest plan cannot run on '{manifest.backend}' here ({why}); "
                f"its plan for '{plan.backend}' runs instead"
            )
        differ = [
            describe_drift(name, far, manifest) for far in _measure_distances(calls, folder, plan)
        ]
        for text in (
            fewer,
            *list_cpu_differences(plan.arithmetic, machine.describe_machine()),
            *differ,
        ):
            if text:
                _warn_caller(f"{name}: {text}")
        stack.enter_context(tried.pop_all())
    return Running(calls, backend, why, plan, compiled)


def _open_compiled(
    stack: ExitStack,
    backend: Backend,
    folder: Path,
    opened: BundleArchive,
    plan: PackedPlan,
    same: bool,
) -> tuple[Mapping[str, Call] | None, str]:
    """Open a plan's compiled models, made with the `same` settings; else None and the reason."""
    compiled = opened.compiled.get(opened.manifest.plans.index(plan))
    if compiled is None:
        return None, ""
    if not same:
        return None, "its settings are lowered to this machine"
    try:
        if not isinstance(backend, CompilingBackend):
            return None, f"'{backend.name()}' opens no compiled models"
        here = backend.compiled_for()
        why = "; ".join(
            f"{name}: {compiled.made_for.get(name, 'none')} then, {here.get(name, 'none')} now"
            for name in sorted({*compiled.made_for, *here})
            if compiled.made_for.get(name) != here.get(name)
        )
    except Exception as error:  # a plug-in that does not load may raise anything
        why = consent.reason_of(error)
    if why:
        return None, why
    opened.unpack_models(folder, compiled.models.values(), plan.golden.values())
    for member in compiled.models.values():
        parts = list_compiled_nodes(folder / member)
        if not parts or not all(part.embedded for part in parts):
            problem = "names a file outside itself" if parts else "holds no compiled model"
            raise BadModel(f"'{member}' {problem}", fix=stored.DISTRUST)
    calls = _open_alike(stack, backend, folder, opened, compiled.models, plan)
    return (None, calls) if isinstance(calls, str) else (calls, "")


def _open_alike(
    stack: ExitStack,
    backend: Backend,
    folder: Path,
    opened: BundleArchive,
    members: Mapping[str, str],
    plan: PackedPlan,
) -> Mapping[str, Call] | str:
    """Open unpacked models that must answer as a plan does, or say why they are not opened."""
    with ExitStack() as tried:
        try:
            calls = open_models(tried, backend, folder, opened, members, plan.golden)
            worst_db = min(_measure_distances(calls, folder, plan), default=TOLERANCE_DB)
        except Exception as error:  # whatever a provider raises, another model is next
            return consent.reason_of(error)
        if worst_db < TOLERANCE_DB:
            return f"its outputs differ from the packed ones: SNR {worst_db:.0f} dB"
        stack.enter_context(tried.pop_all())
    return calls


def _join_reasons(manifest: Manifest, reasons: Sequence[str]) -> str:
    """Name the backend with each reason where there are several."""
    if len(reasons) < 2:
        return "".join(reasons)
    pairs = zip(manifest.plans, reasons, strict=False)
    return "; ".join(f"{plan.backend}: {reason}" for plan, reason in pairs)


def _warn_caller(text: str) -> None:
    """Warn at the first line outside of this package, however many calls lie between."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ortune."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)
