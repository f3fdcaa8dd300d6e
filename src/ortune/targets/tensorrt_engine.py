"""A TensorRT engine, built of the verified model by TensorRT's own API."""

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import onnx_ir as ir

from ortune.backends.runtimes.tensorrt import library, profiles
from ortune.backends.tensorrt_engine import TensorrtEngine
from ortune.bundle.target import Replay, Source, Target
from ortune.core.capabilities import HERE
from ortune.core.errors import BadModel
from ortune.core.plugins.bounds import Bounds
from ortune.graph.io import file
from ortune.graph.ir.edit import const_array, walk_nodes
from ortune.measurement.environment import list_environment_names
from ortune.measurement.process import optimize_in_worker, translate_failures
from ortune.targets.common.plain_session import copy_model
from ortune.targets.common.replay import ANOTHER, replay_in_workers

_PLUGINS = "plugins"
_BUILD_S = 7200
"""TensorRT times every kernel it may take: minutes, more at level 5."""
_STANDARD = ("", "ai.onnx")
_ELSEWHERE = ("bucketed", "torch", "simulated")
"""Backends that do more, or other, than run the file."""
_DYNAMIC = ("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger")
_FUSED = ("QLinearConv", "QLinearMatMul")
"""Operators of 8-bit integers without pairs, which NVIDIA's list for its ONNX parser lacks."""


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
        environment: Which of `ortune doctor env` has TensorRT; empty takes this one, or the only
            one whose name begins with tensorrt-engine.
    """

    places: ClassVar[tuple[str, ...]] = ("plugins", "environment")
    backend: ClassVar[str] = "tensorrt"

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
        profiles.parse_profiles(self.profiles)

    def missing(self) -> str | None:
        """An engine needs TensorRT and a device; the model alone is written anywhere."""
        if not self.built or self._find_environment() != HERE:
            return None
        fix = library.explain_missing_tensorrt()
        return fix and f"{fix}; or write what trtexec builds: --for '{self.name()}(built=false)'"

    def refuses(self, source: Source) -> str:
        """Operators that no plug-in is given for, and integers that TensorRT does not take."""
        # Say why TensorRT would not take a plan's files; empty where nothing is known against it.
        plugged = bool(self.plugins)
        if source.backend.name() in _ELSEWHERE:
            return f"'{source.backend.name()}' does more than run the model's file"
        if source.plan.custom_ops:
            return "it needs libraries of custom operators, which are onnxruntime's"
        for path in source.models.values():
            for node in walk_nodes(file.load(path)):
                if why := _explain_refusal(node, plugged):
                    return f"{node.op_type} '{node.name}': {why}"
        return ""

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write models and engines, and say how trtexec builds the same."""
        libraries = []
        for path in map(Path, self.plugins):
            if not path.is_file():
                raise BadModel(f"there is no plug-in library {path}", fix="give the path of one")
            (folder / _PLUGINS).mkdir(exist_ok=True)
            libraries.append(Path(shutil.copyfile(path, folder / _PLUGINS / path.name)))
        lines = []
        for name, label in source.labels.items():
            copy_model(source, name, folder, f"{label}.onnx")
            backend = self._make_backend(source, name, libraries)
            if self.built:
                with translate_failures("no engine", ANOTHER):
                    engine = folder / f"{label}.engine"
                    optimize_in_worker(
                        folder / f"{label}.onnx",
                        backend,
                        engine,
                        self._find_environment(),
                        _BUILD_S,
                    )
            inside = [path.relative_to(folder) for path in libraries]
            # The line that builds the same engine with NVIDIA's own program. Options were read in
            # NVIDIA's documentation for 10 and 11; the line was never run here.
            words = [
                "trtexec",
                f"--onnx={label}.onnx",
                f"--saveEngine={label}.engine",
                "--stronglyTyped",  # 11 is strongly typed with and without it
                *profiles.list_trtexec_options(profiles.parse_profiles(backend.profiles)),
                f"--builderOptimizationLevel={backend.builder_level}",
                "--profilingVerbosity=detailed",
                f"--exportLayerInfo={label}.layers.json",
                "--skipInference",
            ]
            if not backend.tf32:
                words.append("--noTF32")
            if backend.workspace:
                words.append(f"--memPoolSize=workspace:{backend.workspace}M")
            if backend.timing_cache:
                words.append("--timingCacheFile=timing.cache")
            words += [f"--dynamicPlugins={path.as_posix()}" for path in inside]
            lines.append(shlex.join(words))
            lines += [f"profile: {text}" for text in backend.profiles]
        if unverified := TensorrtEngine().unverified:
            lines.append(f"unverified: TensorRT's own API was {unverified}")
        return lines

    def replay(self, source: Source, folder: Path) -> Replay | None:
        if not self.built:
            return None
        files = {name: folder / f"{label}.engine" for name, label in source.labels.items()}
        libraries = sorted((folder / _PLUGINS).glob("*"))
        backend = self._make_backend(source, next(iter(files)), libraries)
        where = self._find_environment()
        by = "TensorRT" if where == HERE else f"TensorRT in {where}"
        return replay_in_workers(source, files, backend, by, environment=where)

    def unrun(self, replay: Replay | None) -> str:
        if replay:
            return "trtexec"
        return "the engine, trtexec" if self.built else "the engine, which is not built; trtexec"

    def _make_backend(
        self, source: Source, name: str, libraries: Sequence[Path]
    ) -> TensorrtEngine:
        inputs = source.manifest.signatures[name].inputs
        names = {spec.name for spec in inputs}
        inputs_by_text = {
            text: next(iter(profiles.parse_profiles((text,))[0])) for text in self.profiles
        }
        inputs_by_text = {text: name for text, name in inputs_by_text.items() if name in names}
        declared = {
            spec.name: spec.shape or ()
            for spec in inputs
            if spec.name not in inputs_by_text.values()
        }
        seen = [
            {key: array.shape for key, array in feed.items()} for feed, _ in source.feeds(name)
        ]
        ranges = (*inputs_by_text, *map(str, profiles.derive_ranges(seen, declared)))
        return TensorrtEngine(
            device=self.device,
            profiles=ranges,  # those spelled, else of the golden samples
            workspace=self.workspace,
            builder_level=self.builder_level,
            tf32=self.tf32,
            timing_cache=self.timing_cache,
            plugins=tuple(str(path.resolve()) for path in libraries),
        )

    def _find_environment(self) -> str:
        if self.environment or library.is_tensorrt_installed():
            return self.environment or HERE
        matches = [name for name in list_environment_names() if name.startswith("tensorrt-engine")]
        return matches[0] if len(matches) == 1 else HERE


def _explain_refusal(node: ir.Node, plugged: bool) -> str:
    if node.domain not in _STANDARD:
        return "" if plugged else f"an operator of {node.domain}, and no plug-in is given for it"
    if node.op_type in _DYNAMIC:
        return "TensorRT has no integers with ranges taken at run time; quantize statically"
    if node.op_type in _FUSED:
        return "TensorRT takes Q/DQ pairs; quantize with int8-static"
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or len(node.inputs) < 3:
        by_default = node.op_type == "QuantizeLinear" and "output_dtype" not in node.attributes
        if plugged or not by_default:
            return ""
        return "without a zero point it gives uint8; quantize with int8-static(target=tensorrt)"
    zero = const_array(node.inputs[2])
    if zero is None:
        return ""
    if zero.dtype == np.uint8 or np.any(zero.astype(np.float32)):
        return "TensorRT takes int8 with zero point 0; quantize with int8-static(target=tensorrt)"
    return ""
