"""Open a bundle where ortune is not installed: NumPy and onnxruntime are enough.

    import reader

    model = reader.load("model.ortune")
    outputs = model(x=array)

or ``python reader.py model.ortune [inputs.npz [-o out.npz]]``. Plans for the CPU run as they were
measured, plans for OpenVINO where ``onnxruntime-ep-openvino`` or ``openvino`` is installed. All
others, and custom operators, need ortune: in their place the original runs on the CPU, with one
warning. No code of a bundle is ever run.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ortune.core.errors import BadModel, OrtuneError
from ortune.core.plugins import stored
from ortune.engine import archive
from ortune.engine.arithmetic import foreign
from ortune.engine.external import demand_inside
from ortune.engine.golden import drift, first_sample
from ortune.engine.reader import sessions
from ortune.engine.reader.models import ReadBundle, ReadModel
from ortune.engine.reader.tables import VERSION
from ortune.engine.settings import demand_settings, reason_of
from ortune.measurement.machine import machine


def load(path: str | Path) -> ReadBundle:
    """Open a bundle: the first of its plans that runs here, else the original on the CPU.

    Raises:
        BadModel: The file is damaged, was changed after packing, holds settings that a bundle may
            not make, or no longer answers as packed.
        OrtuneError: It cannot be unpacked.
    """
    path = Path(path)
    if not archive.is_bundle(path):
        raise BadModel(f"{path.name} is not a bundle", fix="give a file made by pack")
    reasons: list[str] = []
    for plan, fields in _plans(path):
        if isinstance(fields, str):
            reasons.append(fields)
            continue
        fit, said = sessions.at_hand(fields)
        try:
            found = _opened(path, plan, fit)
        except _Unusable as error:
            reasons.append(reason_of(error.cause))
            continue
        if reasons:
            _warn(
                f"{path.name}: its fastest plan cannot run here ({'; '.join(reasons)}); its plan "
                f"for '{plan.backend}' runs instead"
            )
        if said:
            _warn(f"{path.name}: {said}")
        return found
    return _original(path, reasons)


class _Unusable(Exception):
    """A session did not open, for whatever reason its runtime has."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _plans(path: Path) -> list[tuple[Any, Any]]:
    """Return each plan with its fields, or with why it cannot run here.

    Raises:
        BadModel: Its settings are none that a bundle may make, or name code.
    """
    found: list[tuple[Any, Any]] = []
    with _temporary() as folder, archive.opened(path) as (file, manifest):
        for plan in manifest.plans:
            archive.take(file, manifest, plan.settings, Path(folder))
            try:
                data = stored.loads((Path(folder) / plan.settings).read_bytes())
            except ValueError as error:
                found.append((plan, reason_of(error)))
                continue
            demand_settings(data, plan.settings)
            if strange := sorted(set(stored.code(data)) - set(plan.custom_ops)):
                raise BadModel(
                    f"its settings name '{strange[0]}', which its manifest does not",
                    fix=stored.DISTRUST,
                )
            try:
                found.append((plan, sessions.completed(data)))
            except OrtuneError as error:
                found.append((plan, reason_of(error)))
    return found


def _opened(path: Path, plan: Any, fields: Any) -> ReadBundle:
    """Unpack one plan, open its models and compare a golden sample.

    Raises:
        _Unusable: A session does not open.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(_temporary()))
        golden = [name for pair in plan.golden.values() for name in (pair.inputs, pair.outputs)]
        with archive.opened(path) as (file, manifest):
            archive.unpack(file, manifest, folder, {*plan.models.values(), *golden})
        for member in plan.models.values():
            demand_inside(folder, member, manifest.members)
        try:
            models = _sessions(stack, folder, plan.models, manifest, fields)
        except Exception as error:  # whatever a plug-in provider raises, the original runs
            raise _Unusable(error) from error
        for text in foreign(plan.arithmetic, machine.machine()):
            _warn(f"{path.name}: {text}")
        for name, pair in plan.golden.items():
            found = first_sample(models[name], folder / pair.inputs, folder / pair.outputs)
            if said := drift(path.name, found, manifest):
                _warn(f"{path.name}: {said}")
        return ReadBundle(models, plan.plan, "", stack.pop_all())


def _original(path: Path, reasons: Sequence[str]) -> ReadBundle:
    """Open the plain original: slower, and right."""
    reason = "; ".join(dict.fromkeys(reasons))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(_temporary()))
        with archive.opened(path) as (file, manifest):
            archive.unpack(file, manifest, folder, {*manifest.fallback.values()})
        for member in manifest.fallback.values():
            demand_inside(folder, member, manifest.members)
        fields = sessions.completed(sessions.PLAIN)
        models = _sessions(stack, folder, manifest.fallback, manifest, fields)
        _warn(
            f"{path.name}: its tuned model cannot run on '{manifest.plans[0].backend}' here "
            f"({reason}); the original runs on the CPU instead"
        )
        return ReadBundle(models, "the original on the CPU", reason, stack.pop_all())


def _sessions(
    stack: ExitStack, folder: Path, members: Mapping[str, str], manifest: Any, fields: Any
) -> dict[str, ReadModel]:
    """Open all models or none."""
    with ExitStack() as held:
        models = {
            name: ReadModel(
                name or Path(member).stem,
                held.enter_context(sessions.opened(folder / member, fields)),
                manifest.signatures[name],
            )
            for name, member in members.items()
        }
        stack.enter_context(held.pop_all())
    return models


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _temporary() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True)


def main(given: Sequence[str] | None = None) -> int:
    """Run a bundle on the arrays of a .npz; without one say what it takes."""
    asked = argparse.ArgumentParser(description="Run an ortune bundle without ortune.")
    asked.add_argument("--version", action="version", version=VERSION)
    asked.add_argument("bundle")
    asked.add_argument("inputs", nargs="?", help="arrays by the names of the inputs, .npz")
    asked.add_argument("-o", "--out", help="outputs, .npz")
    asked.add_argument("--model", default="", help="one of several models, by its name")
    args = asked.parse_args(given)
    try:
        with load(args.bundle) as bundle:
            _run(bundle, args)
    except (OrtuneError, OSError, ValueError) as error:
        print(f"reader: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _run(bundle: ReadBundle, args: argparse.Namespace) -> None:
    name = args.model or next(iter(bundle.models))
    model = bundle[name]
    lines = [f"plan: {bundle.plan}"]
    if args.inputs is None:
        for kind in ("inputs", "outputs"):
            specs = getattr(model.signature, kind)
            lines += [f"{kind[:-1]} {spec.name}: {spec.dtype} {spec.shape}" for spec in specs]
    else:
        with np.load(args.inputs, allow_pickle=False) as arrays:
            answer = model(**{key: arrays[key] for key in arrays.files})
        lines += [f"{key}: {one.dtype}{list(one.shape)}" for key, one in answer.items()]
        if args.out:
            np.savez(args.out, **answer)  # type: ignore[arg-type]
    print("\n".join(lines))  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
