"""TensorRT by its own API: an engine built of the file, or one that was built before."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from ortune.backends.runtimes.tensorrt import build, library, profiles, run
from ortune.core.backend import Backend, Kind
from ortune.core.capabilities import State
from ortune.core.outputs import find_cache_folder
from ortune.core.plugins import stored
from ortune.core.plugins.bounds import Bounds
from ortune.core.session import Session


@dataclass(frozen=True)
class TensorrtEngine(Backend):
    """GPU execution by TensorRT 10 or newer, without onnxruntime. Never run on a GPU here.

    The network is strongly typed: the file's own types and Q/DQ pairs say what each layer computes
    in, so a faster precision is asked for by converting the file.

    Attributes:
        threads: Ignored: the GPU computes.
        device: Number of the CUDA device.
        profiles: Least, most and best shape of every input whose size is open, such as
            image:1x3x224x224..8x3x224x224..4x3x224x224; NAME=1,2..4,8 gives values of an input
            that decides shapes. The best is the most unless given.
        workspace: Most MB of device memory for a layer's intermediate results; 0 takes all.
        builder_level: How long the builder searches for kernels, 0 to 5.
        tf32: Let float32 products round their factors to 10 bits. Changes numbers.
        timing_cache: Keep kernels' times in the cache folder for the next build.
        plugins: Shared libraries with plug-ins, which are code. Nothing that is stored names one.
    """

    title: ClassVar[str] = "TensorRT engine"
    provider: ClassVar[str] = run.PROVIDER
    automatic: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("plugins",)
    runs_on: ClassVar[Kind] = "gpu"

    device: Annotated[int, Bounds(high=1024)] = 0
    profiles: Annotated[tuple[str, ...], stored.items(stored.NAME, 4096)] = ()
    workspace: Annotated[int, Bounds(high=2**24)] = 0
    builder_level: Annotated[int, Bounds(high=5)] = 3
    tf32: bool = False
    timing_cache: bool = True
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        profiles.parse_profiles(self.profiles)

    @property
    def lossy(self) -> bool:
        """TF32 changes numbers; everything else is in the file."""
        return self.tf32

    @property
    def arithmetic(self) -> frozenset[str]:
        """What a file may ask for by its types and Q/DQ pairs."""
        return frozenset({"int8", "fp16", "bf16", "fp8"})

    def missing(self) -> str | None:
        """Return what to install, or that there is no device."""
        return library.explain_missing_tensorrt()

    def state(self, missing: str | None) -> State:
        """Tell an absent package from an absent device."""
        no_device = missing is not None and missing.startswith("no CUDA device")
        return "no device" if no_device else super().state(missing)

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Read an engine (``.engine``, ``.plan``) back, or build one of an ONNX file."""
        return run.open_engine(path, self._make_build_options())

    def save(self, path: Path, out: Path) -> None:
        """Write the engine of an ONNX file, and beside it ``.layers.json`` with its layers."""
        options = self._make_build_options()
        plan = build.build_engine(path, options)
        out.write_bytes(plan)
        out.with_suffix(".layers.json").write_text(
            build.describe_layers(plan, options), encoding="utf-8"
        )

    def _make_build_options(self) -> build.BuildOptions:
        home = find_cache_folder() if self.timing_cache else None
        return build.BuildOptions(
            device=self.device,
            profiles=self.profiles,
            workspace_mb=self.workspace,
            level=self.builder_level,
            tf32=self.tf32,
            plugins=self.plugins,
            timing_cache=home / "tensorrt" if home else None,
        )
