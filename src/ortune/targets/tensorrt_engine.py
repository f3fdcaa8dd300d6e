"""A TensorRT engine, built of the verified model by TensorRT's own API."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from ortune.backends.tensorrt_engine import TensorrtEngine
from ortune.bundle.source import Source
from ortune.bundle.target import Replay, Target
from ortune.core.capabilities import HERE
from ortune.core.errors import BadModel
from ortune.core.plugins.bounds import Bounds
from ortune.deployment import model_files, tensorrt
from ortune.deployment.replay import by_worker
from ortune.measurement.environment import names
from ortune.runtimes.tensorrt import library, profiles

_PLUGINS = "plugins"


@dataclass(frozen=True)
class TensorrtPackage(Target):
    """Each model as ``NAME.onnx``, its ``NAME.engine`` and ``NAME.layers.json``.

    The graph says the precision. An engine runs on the TensorRT and the kind of GPU of its build.

    Attributes:
        replayed: Run the golden samples on the engine.
        limit: Share by which it may be slower than the bundle before packing fails.
        profiles: Least, most and best shape of inputs whose size is open, such as
            image:1x3x224x224..8x3x224x224..4x3x224x224; those not given are taken from the golden
            samples.
        device: Number of the CUDA device.
        workspace: Most MB of device memory for a layer's intermediate results; 0 takes all.
        builder_level: How long the builder searches for kernels, 0 to 5.
        tf32: Let float32 products round their factors to 10 bits. Changes numbers.
        timing_cache: Keep kernels' times in the cache folder for the next build.
        plugins: Shared libraries with plug-ins, which are code and run at once; copied into the
            package, as the engine needs them.
        built: Build the engine; false writes the model and the line for trtexec alone, where no
            GPU is.
        environment: Which of `ortune env` has TensorRT; empty takes this one, or the only one
            whose name begins with tensorrt.
    """

    places: ClassVar[tuple[str, ...]] = ("plugins", "environment")

    profiles: tuple[str, ...] = ()
    device: Annotated[int, Bounds(high=1024)] = 0
    workspace: Annotated[int, Bounds(high=2**24)] = 0
    builder_level: Annotated[int, Bounds(high=5)] = 3
    tf32: bool = False
    timing_cache: bool = True
    plugins: tuple[str, ...] = ()
    built: bool = True
    environment: str = ""

    def __post_init__(self) -> None:
        profiles.parse(self.profiles)

    def missing(self) -> str | None:
        """An engine needs TensorRT and a device; the model alone is written anywhere."""
        if not self.built or self._place() != HERE:
            return None
        found = library.missing()
        return (
            found and f"{found}; or write what trtexec builds: --for '{self.name()}(built=false)'"
        )

    def refuses(self, source: Source) -> str:
        """Operators that no plug-in is given for, and integers that TensorRT does not take."""
        return tensorrt.refusal(source, self.plugins)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write models and engines, and say how trtexec builds the same."""
        libraries = [self._copied(Path(path), folder) for path in self.plugins]
        lines = []
        for name, label in source.labels.items():
            model_files.copy(source, name, folder, f"{label}.onnx")
            backend = self._backend(source, name, libraries)
            if self.built:
                tensorrt.build(folder / f"{label}.onnx", backend, self._place())
            inside = [path.relative_to(folder) for path in libraries]
            lines.append(tensorrt.trtexec(backend, label, inside))
            lines += [f"profile: {text}" for text in backend.profiles]
        if unverified := TensorrtEngine().unverified:
            lines.append(f"unverified: TensorRT's own API was {unverified}")
        return lines

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Run the engines on the golden samples, beside the bundle's own plan."""
        if not self.built:
            return None
        files = {name: folder / f"{label}.engine" for name, label in source.labels.items()}
        libraries = sorted((folder / _PLUGINS).glob("*"))
        backend = self._backend(source, next(iter(files)), libraries)
        where = self._place()
        by = "TensorRT" if where == HERE else f"TensorRT in {where}"
        return by_worker(source, files, backend, by, environment=where)

    def unrun(self, replay: Replay | None) -> str:
        """Say what of it was not seen to run."""
        if replay:
            return "trtexec"
        return "the engine, trtexec" if self.built else "the engine, which is not built; trtexec"

    def _backend(self, source: Source, name: str, libraries: Sequence[Path]) -> TensorrtEngine:
        return TensorrtEngine(
            device=self.device,
            profiles=tensorrt.ranges(source, name, self.profiles),
            workspace=self.workspace,
            builder_level=self.builder_level,
            tf32=self.tf32,
            timing_cache=self.timing_cache,
            plugins=tuple(str(path.resolve()) for path in libraries),
        )

    def _copied(self, path: Path, folder: Path) -> Path:
        """Put a plug-in library into the package.

        Raises:
            BadModel: There is none.
        """
        if not path.is_file():
            raise BadModel(f"there is no plug-in library {path}", fix="give the path of one")
        (folder / _PLUGINS).mkdir(exist_ok=True)
        return Path(shutil.copyfile(path, folder / _PLUGINS / path.name))

    def _place(self) -> str:
        if self.environment or library.installed():
            return self.environment or HERE
        found = [name for name in names() if name.startswith("tensorrt")]
        return found[0] if len(found) == 1 else HERE
