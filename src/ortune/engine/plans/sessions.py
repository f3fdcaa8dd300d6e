"""Models of a bundle's plan with their sessions, and how they answer its golden samples."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from ortune.core.backend import Backend
from ortune.engine import archive
from ortune.engine.call import Call
from ortune.engine.external import demand_inside
from ortune.engine.golden import first_sample
from ortune.engine.instances import Serving
from ortune.engine.manifest import Golden, Manifest, PackedPlan
from ortune.engine.plans.compiled import CompiledPlan


@dataclass(frozen=True)
class Opened:
    """A bundle whose table of contents was checked, and how its models are to be served.

    Attributes:
        compiled: Place of a plan -> its compiled models, of those that may be opened.
        code: Whether code that plans name may run.
    """

    name: str
    file: zipfile.ZipFile
    manifest: Manifest
    how: Serving
    compiled: Mapping[int, CompiledPlan] = field(default_factory=dict)
    code: bool = False

    def settings(self, folder: Path, plan: PackedPlan) -> None:
        """Unpack what says where a plan runs: its settings and the libraries they name.

        Raises:
            BadModel: One was changed.
        """
        libraries = [text for text in plan.custom_ops if text in self.manifest.members]
        for member in (plan.settings, *libraries):
            archive.take(self.file, self.manifest, member, folder)

    def unpack(self, folder: Path, models: Iterable[str], golden: Iterable[Golden] = ()) -> None:
        """Check every member; unpack models, golden samples and libraries.

        A library that is there stays as it is: it may be loaded already.

        Raises:
            BadModel: A member was changed, or a model keeps weights elsewhere.
            OrtuneError: There is no room.
        """
        models = set(models)
        samples = {member for one in golden for member in (one.inputs, one.outputs)}
        libraries = {text for text in self.manifest.custom_ops if not (folder / text).exists()}
        archive.unpack(self.file, self.manifest, folder, models | samples | libraries)
        for member in sorted(models):
            demand_inside(folder, member, self.manifest.members)


def temporary(stack: ExitStack) -> Path:
    made = TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True)
    return Path(stack.enter_context(made))


def open_models(
    stack: ExitStack,
    backend: Backend,
    folder: Path,
    opened: Opened,
    members: Mapping[str, str],
    golden: Mapping[str, Golden] = MappingProxyType({}),
) -> Mapping[str, Call]:
    """Open all models or none.

    Args:
        golden: Model name -> samples that it may be warmed up with.
    """
    with ExitStack() as held:
        found = {
            name: opened.how.open(held, backend, folder / member, name or Path(member).stem)
            for name, member in members.items()
        }
        stack.enter_context(held.pop_all())
    calls = {}
    for name, instances in found.items():
        calls[name] = Call(
            instances,
            opened.manifest.signatures[name],
            opened.how,
            golden=folder / golden[name].inputs if name in golden else None,
            backend=backend,
        )
        stack.callback(calls[name].close)
    return calls


def distances(calls: Mapping[str, Call], folder: Path, plan: PackedPlan) -> Iterator[float]:
    """Yield how far each model's first golden answer is from the packed one, in dB."""
    for name, golden in plan.golden.items():
        yield first_sample(calls[name], folder / golden.inputs, folder / golden.outputs)
