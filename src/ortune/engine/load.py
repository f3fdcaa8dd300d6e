"""Load a bundle or a plain model and call it like a function."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings
from ortune.core.plugins import spelling
from ortune.engine import archive, consent
from ortune.engine.arithmetic import foreign
from ortune.engine.call import Call
from ortune.engine.engine import Engine
from ortune.engine.external import demand_inside
from ortune.engine.golden import TOLERANCE_DB, difference, first_sample
from ortune.engine.instances import Serving, serving
from ortune.engine.manifest import SETTINGS, Manifest, Signature
from ortune.engine.settings import at_hand, reason_of, stored_backend
from ortune.measurement.machine import machine

PLAIN = "cpu"
"""The backend of a plain model, and of a bundle's fall-back."""


def load(
    path: str | Path,
    *,
    on: str | Backend | None = None,
    device: str | None = None,
    instances: int | str = 1,
    custom_ops: bool | str | Sequence[str] = False,
    max_batch: int = 0,
    max_delay_us: int = 0,
) -> Engine:
    """Open a bundle with exactly the settings it was measured with, or a plain model.

    Args:
        path: A bundle, or an ONNX model.
        on: Backend of a plain model, such as ``cpu(threads=2)``; the CPU's default without it.
        device: Where sessions are opened; ``cpu``, which is what there is.
        instances: Sessions of every model, each on CPUs of its own; threads are divided among
            them. A number, or text such as ``2``.
        custom_ops: Libraries of custom operators of a plain model. They are code: those that a
            bundle brings are loaded only when this is True.
        max_batch: Rows that `batch` and `submit` compute together at most; 0 takes 8, 1 joins
            nothing.
        max_delay_us: Microseconds that a request of `submit` waits for others to be joined with.

    Raises:
        BadModel: The file is damaged, was changed after packing, or no longer answers as packed.
        BadSettings: `on` is given for a bundle, or is wrong; the bundle brings custom operators
            that are not allowed, or a library cannot be used; there are more instances than CPUs,
            or a device is named that sessions cannot be opened on.
        BackendMissing: A plain model's backend cannot run here.
    """
    path, how = Path(path), serving(instances, device, max_batch, max_delay_us)
    if not archive.is_bundle(path):
        return _plain(path, on, custom_ops, how)
    if on is not None:
        raise BadSettings(
            f"{path.name} carries its own settings, so on='{on}' does not apply",
            fix="leave it out, or pack another trial",
        )
    if not isinstance(custom_ops, bool):
        raise BadSettings(
            f"{path.name} brings its own libraries, so '{custom_ops}' does not apply",
            fix="say custom_ops=True (--allow-custom-ops) if you trust where it comes from",
        )
    return _bundle(path, custom_ops, how)


def _plain(
    path: Path, on: str | Backend | None, given: bool | str | Sequence[str], how: Serving
) -> Engine:
    from ortune.model.graph import spec
    from ortune.model.io import file

    if given is True:
        raise BadSettings(f"{path.name} brings no libraries", fix="name one: custom_ops='lib.so'")
    backend = on if isinstance(on, Backend) else spelling.parse(Backend, on or PLAIN)
    if given:
        if not isinstance(backend, Cpu):
            raise BadSettings(
                f"backend '{backend.name()}' takes no custom operators", fix="use on='cpu'"
            )
        backend = replace(backend, custom_ops=(given,) if isinstance(given, str) else tuple(given))
    model = file.load(path)
    found = Signature(spec.inputs(model), spec.outputs(model))
    del model
    backend = how.share(backend)
    with ExitStack() as stack:
        instances = how.open(stack, backend, path, path.name)
        call = Call(instances, found, how, compared=backend.compared)
        stack.callback(call.close)
        return Engine({"": call}, backend, stack.pop_all())


def _bundle(path: Path, allowed: bool, how: Serving) -> Engine:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(_temporary()))
        with archive.opened(path) as (file, manifest):
            consent.demand(path.name, manifest, allowed)
            golden = [m for g in manifest.golden.values() for m in (g.inputs, g.outputs)]
            keep = {SETTINGS, *manifest.models.values(), *golden, *manifest.custom_ops}
            archive.unpack(file, manifest, folder, keep)
        for member in manifest.models.values():
            demand_inside(folder, member, manifest.members)
        backend, reason = stored_backend(folder, manifest)
        if backend is not None:
            backend = how.share(at_hand(path.name, backend))
            try:
                calls = _open(stack, backend, folder, manifest, manifest.models, how)
            except Exception as error:  # whatever a plug-in provider raises, the original runs
                reason = reason_of(error)
            else:
                for text in foreign(manifest.arithmetic, machine.machine()):
                    warnings.warn(f"{path.name}: {text}", RuntimeWarning, stacklevel=3)
                _check(path, calls, folder, manifest)
                return Engine(calls, backend, stack.pop_all())
    return _fallback(path, reason, how)


def _fallback(path: Path, reason: str, how: Serving) -> Engine:
    """Open the plain original: slower, and right."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(_temporary()))
        with archive.opened(path) as (file, manifest):
            keep = {*manifest.fallback.values(), *manifest.custom_ops}
            archive.unpack(file, manifest, folder, keep)
        for member in manifest.fallback.values():
            demand_inside(folder, member, manifest.members)
        plain, calls = _original(stack, folder, manifest, how)
        warnings.warn(
            f"{path.name}: its tuned model cannot run on '{manifest.backend}' here ({reason}); "
            "the original runs on the CPU instead",
            RuntimeWarning,
            stacklevel=4,
        )
        return Engine(calls, plain, stack.pop_all(), reason)


def _original(
    stack: ExitStack, folder: Path, manifest: Manifest, how: Serving
) -> tuple[Backend, dict[str, Call]]:
    """Open the original; with the bundle's libraries only where it does not load without."""
    plain: Backend = how.share(spelling.parse(Backend, PLAIN))
    try:
        return plain, _open(stack, plain, folder, manifest, manifest.fallback, how)
    except BadModel:
        if not manifest.custom_ops:
            raise
    plain = how.share(Cpu(custom_ops=consent.libraries(manifest.custom_ops, manifest, folder)))
    return plain, _open(stack, plain, folder, manifest, manifest.fallback, how)


def _temporary() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True)


def _open(
    stack: ExitStack,
    backend: Backend,
    folder: Path,
    manifest: Manifest,
    members: Mapping[str, str],
    how: Serving,
) -> dict[str, Call]:
    """Open all models or none."""
    with ExitStack() as opened:
        found = {
            name: how.open(opened, backend, folder / member, name or Path(member).stem)
            for name, member in members.items()
        }
        stack.enter_context(opened.pop_all())
    calls = {}
    for name, instances in found.items():
        golden = manifest.golden.get(name)
        calls[name] = Call(
            instances,
            manifest.signatures[name],
            how,
            golden=folder / golden.inputs if golden else None,
            compared=backend.compared,
        )
        stack.callback(calls[name].close)
    return calls


def _check(path: Path, calls: Mapping[str, Call], folder: Path, manifest: Manifest) -> None:
    """Compare one golden sample a model: an error here, a warning on another kind of machine."""
    for name, golden in manifest.golden.items():
        found = first_sample(calls[name], folder / golden.inputs, folder / golden.outputs)
        if found >= TOLERANCE_DB:
            continue
        other = difference(
            manifest.machine, manifest.versions, machine.machine(), machine.versions()
        )
        answer = f"{path.name}: the golden sample's answer is {found:.0f} dB from the packed one"
        if not other:
            raise BadModel(f"{answer}, on the machine it was packed for", fix="pack the run again")
        warnings.warn(
            f"{answer} ({other}); check its accuracy here with `ortune verify`, or optimize here",
            RuntimeWarning,
            stacklevel=4,
        )
