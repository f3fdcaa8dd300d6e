"""onnx's own Python evaluator: slow, follows the standard's text, needs no runtime."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from ortune.core.backend import Backend
from ortune.core.errors import BadModel, summarize_error
from ortune.core.session import InProcess, Session, Tensors


@dataclass(frozen=True)
class Reference(Backend):
    """Defines what the right answer of a small model is.

    Attributes:
        threads: Ignored: it is plain Python.
    """

    title: ClassVar[str] = "reference"
    automatic: ClassVar[bool] = False

    @contextmanager
    def open(self, path: Path, *, verbose: bool = False) -> Iterator[Session]:
        yield _Evaluator(path)


class _Evaluator(InProcess):
    def __init__(self, path: Path) -> None:
        """Read the model with its weights inside: onnx's own reader takes no linked data.

        Raises:
            BadModel: It does not load; data is missing, or outside the model's folder.
        """
        import onnx
        from onnx.reference import ReferenceEvaluator

        from ortune.graph.io import external, protobuf

        try:
            proto = onnx.load(path, load_external_data=False)
            files = external.list_files(path, proto)
            for tensor in external.walk_tensors(proto):
                place = protobuf.read_location(tensor)
                if place is not None:
                    entries = {entry.key: entry.value for entry in tensor.external_data}
                    with files[place].open("rb") as stream:
                        stream.seek(int(entries.get("offset", 0)))
                        tensor.raw_data = stream.read(int(entries.get("length", -1)))
                    tensor.ClearField("external_data")
                    tensor.data_location = onnx.TensorProto.DEFAULT
            self._inner: Any = ReferenceEvaluator(proto)
        except Exception as error:
            raise BadModel(
                f"onnx's evaluator does not load {path.name}: {summarize_error(error)}",
                fix="use --on cpu",
            ) from error

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        names = self._inner.output_names
        return dict(zip(names, self._inner.run(None, dict(feeds)), strict=True))
