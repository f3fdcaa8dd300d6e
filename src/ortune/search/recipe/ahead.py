"""Builds on the nodes of a Ray cluster, ahead of the trials that will need them.

While a plan is timed, nodes that time nothing build what is likely to be tried next. A build is
what it would be here, under the same key: what a search may find does not change, only how long it
waits. What fails on a node is built here, as is what calls code of the user's.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

from ortune.core.atomic_write import open_draft
from ortune.core.errors import OrtuneError, summarize_error
from ortune.core.event import Note, Sink
from ortune.core.plugins import codec, stored
from ortune.core.progress import time_limit
from ortune.core.step import Recipe
from ortune.core.temporary_folder import open_temporary_folder
from ortune.graph.io import file
from ortune.measurement.executors import KIND
from ortune.search.recipe.build import build_in, is_crossing
from ortune.search.recipe.built import Material, find_build, list_file_names, steps_key

_LOOK_S = 0.5  # between two looks at the clock while a build is waited for
WAIT_S, WAIT = 5.0, 2.0
"""How long a build is waited for before it is made here: so many times the longest so far."""


@dataclass(frozen=True)
class _Order:
    """What a node is told of a build.

    Attributes:
        recipes: What to build, and what may be built too, as `codec.encode` writes them.
        samples: Digest of the file of samples; empty without.
        digests: Name of each file of the model -> its digest.
    """

    recipes: Any
    source: str
    material: Material
    digests: Mapping[str, str]
    samples: str


@dataclass
class BuildsAhead:
    """Builds that nodes of the open cluster make, or have made.

    Attributes:
        kind: Of the nodes that time plans, and build none; empty where this machine times.
        sink: Is told what went wrong elsewhere.
        arrived: Builds that were not made here.
        longest_s: Seconds of the longest build so far, here or there.
    """

    models: Mapping[str, Path]
    materials: Mapping[str, Material]
    cache: Path
    kind: str
    sink: Sink
    arrived: int = 0
    longest_s: float = 0.0
    _warnings: set[str] = field(default_factory=set)
    _out: dict[Path, Any] = field(default_factory=dict)
    _sent: dict[Path, tuple[str, Any]] = field(default_factory=dict)

    def begin(self, recipes: Iterable[Recipe]) -> None:
        """Begin builds, in this order, while CPUs of other nodes are idle."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        timing, cpus = [], 0.0
        for node in ray.nodes():
            resources = node["Resources"]
            if f"{KIND}{self.kind}" in resources if self.kind else node["NodeID"] == here:
                timing.append(node["NodeID"])
            elif node["Alive"]:
                cpus += resources.get("CPU", 0.0)
        out = list(self._out.values())
        idle = cpus - (len(ray.wait(out, num_returns=len(out), timeout=0)[1]) if out else 0)
        where = {"ray.io/node-id": f"!in({','.join(timing)})"}
        build = ray.remote(_build_on_node).options(num_cpus=1, max_retries=3, label_selector=where)
        for name, recipe, folder in islice(self._list_lacking(recipes), max(0, int(idle))):
            order, files = self._pack(name, recipe)
            self._out[folder] = build.remote(order, files)

    def take(self, name: str, recipe: Recipe) -> None:
        """Wait for a build that was begun, and put it among those of the run.

        Not for much longer than builds take: a node may be busy with something else.

        Raises:
            OutOfTime: It takes too long.
        """
        import ray

        folder = self._find_folder(name, recipe)
        reference = self._out.pop(folder, None)
        if reference is None:
            return
        until = monotonic() + max(WAIT_S, WAIT * self.longest_s)
        while not ray.wait([reference], timeout=_LOOK_S)[0]:
            time_limit.check_time()
            if monotonic() > until:
                return
        try:
            files, seconds = ray.get(reference)
        except OrtuneError:
            return  # the build here says the same
        except ray.exceptions.RayError as error:
            text = f"built here, as it failed on a node of Ray: {summarize_error(error)}"
            if text not in self._warnings:
                self._warnings.add(text)
                self.sink(Note(text, warning=True))
            return
        self.arrived, self.longest_s = self.arrived + bool(files), max(self.longest_s, seconds)
        for file_name, content in files.items():
            with open_draft(folder / file_name, durable=False) as draft:
                draft.write_bytes(content)

    def _list_lacking(self, recipes: Iterable[Recipe]) -> Iterator[tuple[str, Recipe, Path]]:
        for whole in recipes:
            for name, material in self.materials.items():
                recipe = whole.select_for(name)
                folder = self._find_folder(name, recipe)
                stem, key = self.models[name].stem, material.compute_key(recipe.steps)
                if (
                    recipe.steps
                    and folder not in self._out
                    and not any(map(is_crossing, recipe.steps))
                    and not stored.list_code_names(codec.encode(recipe))
                    and find_build(self.cache, stem, recipe.steps, key) is None
                ):
                    yield name, recipe, folder

    def _find_folder(self, name: str, recipe: Recipe) -> Path:
        key = self.materials[name].compute_key(recipe.steps)
        return self.cache / steps_key(recipe.steps, key)

    def _pack(self, name: str, recipe: Recipe) -> tuple[_Order, dict[str, Any]]:
        """Return an order, and by digest references to what it needs: they travel once a node."""
        source, material = self.models[name], self.materials[name]
        files = file.list_model_files(source).items()
        sent = {
            source.name if path == source else location: self._send(path)
            for location, path in files
        }
        samples = self._send(material.feeds.stream) if material.feeds is not None else ("", None)
        order = _Order(
            codec.encode((recipe, *material.planned)),
            source.name,
            replace(material, planned=(), shared=None),
            {location: digest for location, (digest, _) in sent.items()},
            samples[0],
        )
        return order, {digest: [ref] for digest, ref in [*sent.values(), samples] if digest}

    def _send(self, path: Path) -> tuple[str, Any]:
        import ray

        if path not in self._sent:
            content = path.read_bytes()
            self._sent[path] = hashlib.sha256(content).hexdigest(), ray.put(content)
        return self._sent[path]


def _build_on_node(
    order: _Order, files: Mapping[str, list[Any]]
) -> tuple[dict[str, bytes], float]:
    """Build one model; return the files of the build by name, its record last, and seconds."""
    home, began = _open_folder(), monotonic()
    folder = home / "models" / hashlib.sha256(repr(order.digests).encode()).hexdigest()
    for name, digest in order.digests.items():
        _fetch_file(folder / name, files[digest])
    material = order.material
    if material.feeds is not None:
        stream = home / "samples" / order.samples
        _fetch_file(stream, files[order.samples])
        material = replace(material, feeds=replace(material.feeds, stream=stream))
    source, builds = folder / order.source, home / "builds"
    recipe, *planned = codec.decode(tuple[Recipe, ...], order.recipes)
    built = build_in(builds, source, recipe, replace(material, planned=tuple(planned)))
    seconds = monotonic() - began
    if not built.changed:
        return {}, seconds
    paths = (built.path.with_name(name) for name in list_file_names(source.stem))
    return {path.name: path.read_bytes() for path in paths if path.is_file()}, seconds


@cache
def _open_folder() -> Path:
    """Return the folder of this process, which whoever comes after it removes."""
    return _PROCESS.enter_context(open_temporary_folder())


_PROCESS = ExitStack()  # open until the process ends


def _fetch_file(path: Path, reference: list[Any]) -> None:
    import ray

    if not path.is_file():
        with open_draft(path, durable=False) as draft:
            draft.write_bytes(ray.get(reference[0]))
