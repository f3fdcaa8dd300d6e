"""Load a bundle or a plain model and call it like a function."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings
from ortune.core.plugins import spelling
from ortune.engine import archive, consent
from ortune.engine.arithmetic import foreign
from ortune.engine.call import Call
from ortune.engine.external import demand_inside
from ortune.engine.golden import TOLERANCE_DB, difference, first_sample
from ortune.engine.manifest import SETTINGS, Manifest, Signature
from ortune.engine.settings import at_hand, reason_of, stored_backend
from ortune.measurement.machine import machine

PLAIN = "cpu"
"""The backend of a plain model, and of a bundle's fall-back."""


class Engine:
    """One or several loaded models; a context manager.

    Attributes:
        backend: What really runs them.
        fallback: Why a bundle's original runs in place of the tuned model; empty when it does not.
    """

    def __init__(
        self,
        calls: Mapping[str, Call],
        backend: Backend,
        resources: ExitStack,
        fallback: str = "",
    ) -> None:
        self.backend = backend
        self.fallback = fallback
        self._calls = dict(calls)
        self._only = next(iter(self._calls.values())) if len(self._calls) == 1 else None
        self._release = weakref.finalize(self, _release, tuple(self._calls.values()), resources)

    @property
    def models(self) -> tuple[str, ...]:
        """Names for ``engine[name]``; one model alone is named ''."""
        return tuple(self._calls)

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the only model."""
        return self._single().signature

    def __getitem__(self, name: str) -> Call:
        """Return one of several models, to be called with its inputs."""
        try:
            return self._calls[name]
        except KeyError:
            held = ", ".join(f"'{one}'" for one in self._calls)
            raise BadSettings(f"the engine has no model '{name}'", fix=f"use {held}") from None

    def __call__(self, /, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Run the only model once and return every output by name.

        Raises:
            BadData: The inputs do not fit the model.
            BadSettings: There are several models.
        """
        return (self._only or self._single())(**inputs)

    def placement(self) -> Mapping[str, int]:
        """Return execution provider -> nodes over all models; empty if unknown."""
        total: dict[str, int] = {}
        for call in self._calls.values():
            for provider, nodes in call.placement().items():
                total[provider] = total.get(provider, 0) + nodes
        return total

    def close(self) -> None:
        """Close the sessions and remove the unpacked files; safe to call twice."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _single(self) -> Call:
        if self._only is None:
            names = ", ".join(self._calls)
            raise BadSettings(
                f"the engine holds {wording.count(len(self._calls), 'model')}: {names}",
                fix=f"call engine['{next(iter(self._calls))}'](...)",
            )
        return self._only


def load(
    path: str | Path,
    *,
    on: str | Backend | None = None,
    custom_ops: bool | str | Sequence[str] = False,
) -> Engine:
    """Open a bundle with exactly the settings it was measured with, or a plain model.

    Args:
        path: A bundle, or an ONNX model.
        on: Backend of a plain model, such as ``cpu(threads=2)``; the CPU's default without it.
        custom_ops: Libraries of custom operators of a plain model. They are code: those that a
            bundle brings are loaded only when this is True.

    Raises:
        BadModel: The file is damaged, was changed after packing, or no longer answers as packed.
        BadSettings: `on` is given for a bundle, or is wrong; the bundle brings custom operators
            that are not allowed, or a library cannot be used.
        BackendMissing: A plain model's backend cannot run here.
    """
    path = Path(path)
    if not archive.is_bundle(path):
        return _plain(path, on, custom_ops)
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
    return _bundle(path, custom_ops)


def _plain(path: Path, on: str | Backend | None, given: bool | str | Sequence[str]) -> Engine:
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
    with ExitStack() as stack:
        session = stack.enter_context(backend.open(path))
        return Engine({"": Call(path.name, session, found)}, backend, stack.pop_all())


def _bundle(path: Path, allowed: bool) -> Engine:
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
            backend = at_hand(path.name, backend)
            try:
                calls = _open(stack, backend, folder, manifest, manifest.models)
            except Exception as error:  # whatever a plug-in provider raises, the original runs
                reason = reason_of(error)
            else:
                for text in foreign(manifest.arithmetic, machine.machine()):
                    warnings.warn(f"{path.name}: {text}", RuntimeWarning, stacklevel=3)
                _check(path, calls, folder, manifest)
                return Engine(calls, backend, stack.pop_all())
    return _fallback(path, reason)


def _fallback(path: Path, reason: str) -> Engine:
    """Open the plain original: slower, and right."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(_temporary()))
        with archive.opened(path) as (file, manifest):
            keep = {*manifest.fallback.values(), *manifest.custom_ops}
            archive.unpack(file, manifest, folder, keep)
        for member in manifest.fallback.values():
            demand_inside(folder, member, manifest.members)
        plain, calls = _original(stack, folder, manifest)
        warnings.warn(
            f"{path.name}: its tuned model cannot run on '{manifest.backend}' here ({reason}); "
            "the original runs on the CPU instead",
            RuntimeWarning,
            stacklevel=4,
        )
        return Engine(calls, plain, stack.pop_all(), reason)


def _original(
    stack: ExitStack, folder: Path, manifest: Manifest
) -> tuple[Backend, dict[str, Call]]:
    """Open the original; with the bundle's libraries only where it does not load without."""
    plain: Backend = spelling.parse(Backend, PLAIN)
    try:
        return plain, _open(stack, plain, folder, manifest, manifest.fallback)
    except BadModel:
        if not manifest.custom_ops:
            raise
    plain = Cpu(custom_ops=consent.libraries(manifest.custom_ops, manifest, folder))
    return plain, _open(stack, plain, folder, manifest, manifest.fallback)


def _temporary() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True)


def _open(
    stack: ExitStack,
    backend: Backend,
    folder: Path,
    manifest: Manifest,
    members: Mapping[str, str],
) -> dict[str, Call]:
    """Open all models or none."""
    with ExitStack() as opened:
        calls = {
            name: Call(
                name or Path(member).stem,
                opened.enter_context(backend.open(folder / member)),
                manifest.signatures[name],
            )
            for name, member in members.items()
        }
        stack.enter_context(opened.pop_all())
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


def _release(calls: tuple[Call, ...], resources: ExitStack) -> None:
    """Sessions first, then their files: a mapped file cannot be removed everywhere."""
    for call in calls:
        call.close()
    resources.close()
