"""The answers of another instruction set, computed here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar, Literal

from numpy.typing import NDArray

from ortune.core.backend import Backend
from ortune.core.plugins import stored
from ortune.core.session import Session, Tensors
from ortune.runtimes.in_process import InProcess
from ortune.runtimes.onnxruntime import session as sessions
from ortune.runtimes.simulated.kernels import LEFT, OPS, IntegerLayer
from ortune.runtimes.simulated.pieces import Compute, Pieces, plain

_DOMAINS = ("", "ai.onnx", "com.microsoft")


@dataclass(frozen=True)
class Simulated(Backend):
    """What onnxruntime's CPU kernels answer on an x86 CPU without VNNI. Slow; never for timing.

    The model is rewritten by onnxruntime as it would be there, then run in pieces: integer layers
    in NumPy with pairs of 8-bit products that saturate in 16 bits, all else by onnxruntime. Layers
    inside If, Loop and Scan bodies, DynamicQuantizeLSTM and QAttention are not simulated.

    Attributes:
        threads: Threads of onnxruntime between the simulated layers.
        isa: The instruction set; AVX-512 without VNNI computes as AVX2 does.
        custom_ops: Libraries of custom operators, as for ``cpu``.
        report: File that receives what saturated, as JSON, when the session closes.
    """

    automatic: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("custom_ops",)

    isa: Literal["avx2"] = "avx2"
    report: str = ""
    custom_ops: Annotated[tuple[str, ...], stored.CODE] = ()

    @property
    def lossy(self) -> bool:
        """Numbers are those of another machine."""
        return True

    def missing(self) -> str | None:
        return sessions.missing()

    @contextmanager
    def open(self, path: Path, *, verbose: bool = False) -> Iterator[Session]:
        import onnx

        with TemporaryDirectory(prefix="ortune-") as folder:
            saved = Path(folder) / "model.onnx"
            made = sessions.options(
                self.threads,
                "extended",
                verbose=verbose,
                save_to=saved,
                custom_ops=self.custom_ops,
            )
            with sessions.session(path, made):
                pass
            session = _Simulation(onnx.load(saved), self.threads, self.custom_ops)
        yield session
        if self.report:
            Path(self.report).write_text(json.dumps(session.report()), encoding="utf-8")


class _Simulation(InProcess):
    def __init__(self, model: Any, threads: int, custom_ops: tuple[str, ...]) -> None:
        self._layers: list[IntegerLayer] = []
        self._left = sum(1 for node in model.graph.node if node.op_type in LEFT)
        self._threads, self._custom_ops = threads, custom_ops
        self._pieces = Pieces(model, self._own, self._session)

    def _own(self, node: Any) -> Compute | None:
        if node.op_type not in OPS or node.domain not in _DOMAINS:
            return None
        layer = IntegerLayer(node.name or node.output[0], node.op_type, plain(node))
        self._layers.append(layer)
        return layer.run

    def _session(self, content: bytes) -> Any:
        import onnxruntime as ort

        made = sessions.options(
            self._threads, "disabled", verbose=False, custom_ops=self._custom_ops
        )
        return ort.InferenceSession(content, made, providers=["CPUExecutionProvider"])

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        return self._pieces.run(feeds)

    def report(self) -> dict[str, Any]:
        """Return what saturated, layer by layer, in the order of the graph."""
        layers = [
            {"name": layer.name, "op": layer.op, **asdict(layer.tally)} for layer in self._layers
        ]
        return {"layers": layers, "left": self._left}
