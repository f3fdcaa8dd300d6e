"""Package targets: what writes a bundle's plan as somebody else's runtime takes it.

A `Source` is such a plan, unpacked.
"""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

from ortune.bundle.engine import archive, consent
from ortune.bundle.engine.archive import require_inside
from ortune.bundle.engine.manifest import Manifest, PackedPlan
from ortune.core.backend import Backend
from ortune.core.errors import BadModel
from ortune.core.plugins.bounds import Bounds
from ortune.core.plugins.plugin import Plugin
from ortune.core.session import Tensors
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data.stream import Stream

_LONGEST = 64
_WORD = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class Source:
    """A plan and its files, unpacked; they live as long as the bundle is open.

    Its `name` is a word of letters, digits and ``_``, safe as a folder's name; its backend names
    libraries of custom operators by their unpacked files.
    """

    name: str
    folder: Path
    manifest: Manifest
    plan: PackedPlan
    backend: Backend
    models: Mapping[str, Path]

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """Model name -> a word for it, each another; BadModel where two come to the same word."""
        if len(self.models) == 1:
            return dict.fromkeys(self.models, self.name)
        words = {name: make_word(name) for name in self.models}
        if len({label.casefold() for label in words.values()}) < len(words):
            raise BadModel(
                f"two of its models would get one name: {', '.join(words.values())}",
                fix="name them differently when optimizing",
            )
        return words

    def external(self, name: str = "") -> Mapping[str, Path]:
        """Return the files with weights of a tuned model: place beside the model -> file."""
        member = self.plan.models[name]
        home = member.rpartition("/")[0]
        if home.count("/") < 1:  # only a model with external data has a folder of its own
            return {}
        inside = [entry for entry in self.manifest.members if entry.startswith(f"{home}/")]
        return {entry[len(home) + 1 :]: self.folder / entry for entry in inside if entry != member}

    def streams(self, name: str = "") -> tuple[Path, Path]:
        """Return the files of golden inputs and answers; BadModel where the bundle has none."""
        if name not in self.plan.golden:
            raise BadModel("it has no golden samples to check a package by", fix="pack it again")
        golden = self.plan.golden[name]
        return self.folder / golden.inputs, self.folder / golden.outputs

    def feeds(self, name: str = "") -> Iterator[tuple[Tensors, Tensors]]:
        """Yield golden inputs and the plan's answers; BadData where they cannot be read."""
        inputs, outputs = map(Stream, self.streams(name))
        yield from zip(inputs, outputs, strict=True)


@dataclass(frozen=True)
class OpenBundle:
    """A bundle with all its plans, unpacked into a folder."""

    name: str
    folder: Path
    manifest: Manifest

    def read_source(self, plan: PackedPlan) -> Source:
        """Return one of its plans.

        Raises BadModel: its settings are none of a bundle; UnknownPlugin: its backend is not here.
        """
        content = (self.folder / plan.settings).read_bytes()
        backend: Backend = consent.decode_member(Backend, content, f"'{plan.settings}'")
        return Source(
            self.name,
            self.folder,
            self.manifest,
            plan,
            consent.place_libraries(backend, plan, self.manifest, self.folder),
            {name: self.folder / member for name, member in plan.models.items()},
        )


@contextmanager
def unpack_temporarily(path: Path, *, custom_ops: bool = False) -> Iterator[OpenBundle]:
    """Unpack a whole bundle into a folder that is gone when the block ends.

    Raises BadModel: it is no bundle, was changed after packing, or refers outside itself;
    BadSettings: it brings code that may not be handed on and run.
    """
    if not archive.is_bundle(path):
        raise BadModel(f"{path.name} is not a bundle", fix="give a run or a file made by pack")
    with open_temporary_folder() as temporary:
        folder = Path(temporary)
        manifest = unpack_bundle(path, folder, custom_ops=custom_ops)
        only = len(manifest.fallback) == 1
        stem = Path(next(iter(manifest.fallback.values()))).stem if only else path.stem
        yield OpenBundle(make_word(stem), folder, manifest)


def unpack_bundle(
    path: Path, folder: Path, plan: PackedPlan | None = None, *, custom_ops: bool
) -> Manifest:
    """Check a bundle and unpack a plan, or all, the original and the libraries into a folder.

    Raises BadModel: it is no bundle, was changed after packing, or refers outside itself;
    BadSettings: it brings code that may not be handed on and run.
    """
    with archive.open_bundle(path) as (file, manifest):
        consent.require_consent(path.name, manifest, custom_ops)
        plans = manifest.plans if plan is None else (plan,)
        models = {member for packed in plans for member in packed.models.values()}
        models |= {*manifest.fallback.values()}
        golden = {
            name
            for packed in plans
            for pair in packed.golden.values()
            for name in (pair.inputs, pair.outputs)
        }
        needed = {*models, *golden, *manifest.custom_ops}
        archive.unpack_members(
            file, manifest, folder, manifest.members if plan is None else needed
        )
    for member in models:
        require_inside(folder, member, manifest.members)
    return manifest


def make_word(text: str) -> str:
    """Return a text as a word of letters, digits and ``_``: a stranger's names become folders."""
    return _WORD.sub("_", text)[:_LONGEST].strip("_") or "model"


@dataclass(frozen=True)
class Replay:
    """What running a package again has shown."""

    by: str  # what ran it, such as ``onnxruntime 1.24.4``
    difference_db: float  # Signal-to-noise ratio of the worst output against the golden answers
    # Packaged time over the engine's, paired, with the ends of its interval; None where it was not
    # timed.
    overhead: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Target(Plugin):
    """Where a package goes; the fields are what a person may choose of it.

    Attributes:
        replayed: Open what was written and run the golden samples on it, where that can be done
            here; false only writes, and says so.
        limit: Share by which the package may be slower than the bundle before packing fails.
    """

    folder: ClassVar[str] = "targets"
    backend: ClassVar[str] = "cpu"
    """Backend whose plans it takes: what to search with where no plan that was found can run."""
    places: ClassVar[tuple[str, ...]] = ()
    """Fields that name a place on this machine: a package does not tell them."""

    replayed: bool = True
    limit: Annotated[float, Bounds(high=100)] = 0.1

    def missing(self) -> str | None:
        """Return what must be installed to write or replay it, as a fix; None when nothing."""
        return None

    def refuses(self, source: Source) -> str:
        """Return why a plan cannot run there as it was measured; empty when it can.

        Another confirmed plan is taken then, so that a setting which would be lost is a reason.
        """
        return ""

    @abstractmethod
    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write the package into an empty folder and return lines that say how to use it.

        The same source gives the same bytes: no dates, no machine's paths.

        Raises:
            OrtuneError: It cannot be written.
        """

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Open what `write` wrote and run the golden samples; None where nothing here can.

        What is compared and timed are the package's files, once they say what was tuned.

        Raises:
            OrtuneError: It does not open or does not run.
        """
        return None

    def unrun(self, replay: Replay | None) -> str:
        """Say what of the package was not run here; empty when nothing was left out."""
        return "" if replay else f"the package for {self.name()}"
