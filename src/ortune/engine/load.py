"""Load a bundle or a plain model and call it like a function."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.errors import BadSettings
from ortune.core.plugins import spelling
from ortune.engine import archive, consent, plans
from ortune.engine.call import Call
from ortune.engine.manifest import PackedPlan, Signature
from ortune.engine.signing import verify_signature


class Engine:
    """One or several loaded models; a context manager.

    Attributes:
        backend: What really runs them.
        fallback: Why something else than a bundle's first plan runs, or than the plan that was
            asked for; empty when it does not.
        plan: The bundle's plan that runs; None for its original, for a backend that none of its
            plans was measured on, and for a plain model.
    """

    def __init__(
        self,
        calls: Mapping[str, Call],
        backend: Backend,
        resources: ExitStack,
        fallback: str = "",
        plan: PackedPlan | None = None,
    ) -> None:
        self.backend = backend
        self.fallback = fallback
        self.plan = plan
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
    require_signature: str | Path | None = None,
) -> Engine:
    """Open a bundle with exactly the settings it was measured with, or a plain model.

    Of several plans in a bundle the first that runs here is taken, in the order that they were
    measured in.

    Args:
        path: A bundle, or an ONNX model.
        on: Backend of a plain model, such as ``cpu(threads=2)``; the CPU's default without it. Of
            a bundle: the plan to take, by the name of its backend or by the full spelling. Where
            none was measured on it, the model runs there all the same, with a warning.
        custom_ops: Libraries of custom operators of a plain model. They are code: those that a
            bundle brings are loaded only when this is True.
        require_signature: Public key, a PEM file: a bundle that its owner did not sign is not
            opened.

    Raises:
        BadModel: The file is damaged, was changed after packing, no longer answers as packed, or
            has no signature by the key that is required.
        BadSettings: `on` is wrong; the bundle brings custom operators that are not allowed, or a
            library or the key cannot be used.
        BackendMissing: The backend of a plain model, or of the plan that `on` names, cannot run
            here.
    """
    path = Path(path)
    if not archive.is_bundle(path):
        if require_signature is not None:
            raise BadSettings(
                f"{path.name} is a plain model, and only bundles are signed",
                fix="give a bundle, or leave the key out",
            )
        return _plain(path, on, custom_ops)
    if require_signature is not None:
        verify_signature(path, require_signature)
    if not isinstance(custom_ops, bool):
        raise BadSettings(
            f"{path.name} brings its own libraries, so '{custom_ops}' does not apply",
            fix="say custom_ops=True (--allow-custom-ops) if you trust where it comes from",
        )
    wanted = None if on is None else _backend(on)
    with ExitStack() as stack:
        with archive.opened(path) as (file, manifest):
            consent.demand(path.name, manifest, custom_ops)
            found = plans.open_plan(stack, plans.Opened(path.name, file, manifest), wanted)
        return Engine(found.calls, found.backend, stack.pop_all(), found.fallback, found.plan)


def _plain(path: Path, on: str | Backend | None, given: bool | str | Sequence[str]) -> Engine:
    from ortune.model.graph import spec
    from ortune.model.io import file

    if given is True:
        raise BadSettings(f"{path.name} brings no libraries", fix="name one: custom_ops='lib.so'")
    backend = _backend(on or plans.PLAIN)
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


def _backend(on: str | Backend) -> Backend:
    return on if isinstance(on, Backend) else spelling.parse(Backend, on)


def _release(calls: tuple[Call, ...], resources: ExitStack) -> None:
    """Sessions first, then their files: a mapped file cannot be removed everywhere."""
    for call in calls:
        call.close()
    resources.close()
