"""A scripted provider that "compiles": a node that holds the whole model, and runs on the CPU.

It imitates the shape of the files alone, no device: what it made is for what `TOY_DEVICE` says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing
from ortune.core.session import Session


@dataclass(frozen=True)
class Precompiled(Backend):
    """Compiles by wrapping a model into one node.

    Attributes:
        harm: How what it compiles is wrong: it answers otherwise, does not open, or keeps its
            bytes in another file.
    """

    automatic: ClassVar[bool] = False

    harm: str = ""

    def compile(self, path: Path, out: Path) -> None:
        import onnx

        model = onnx.load(path)
        held = onnx.ModelProto.FromString(model.SerializeToString())
        if self.harm == "wrong":
            for one in held.graph.initializer:
                one.CopyFrom(
                    onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(one), one.name)
                )
        node = onnx.helper.make_node(
            "EPContext",
            [one.name for one in model.graph.input],
            [one.name for one in model.graph.output],
            domain="com.microsoft",
            source="ToyExecutionProvider",
            embed_mode=0 if self.harm == "outside" else 1,
            ep_cache_context=b"../x.bin" if self.harm == "outside" else held.SerializeToString(),
        )
        del model.graph.node[:], model.graph.initializer[:]
        model.graph.node.append(node)
        out.write_bytes(model.SerializeToString())

    def compiled_for(self) -> Mapping[str, str]:
        if os.environ.get("TOY_DEVICE") == "none":
            raise BackendMissing("the toy has no device", fix="plug it in")
        return {
            "provider": "ToyExecutionProvider",
            "device": os.environ.get("TOY_DEVICE", "toy 1"),
        }

    @contextmanager
    def open(self, path: Path, *, verbose: bool = False) -> Iterator[Session]:
        import onnx

        model = onnx.load(path, load_external_data=False)
        nodes = [one for one in model.graph.node if one.op_type == "EPContext"]
        if not nodes:
            with Cpu(threads=1).open(path) as plain:
                yield plain
            return
        if self.harm == "closed":
            raise RuntimeError("[TOY] error 7: the engine is of another release")
        held = {one.name: one for one in nodes[0].attribute}
        with TemporaryDirectory() as folder:
            inner = Path(folder) / "inner.onnx"
            inner.write_bytes(held["ep_cache_context"].s)
            with Cpu(threads=1).open(inner) as opened:
                yield opened
