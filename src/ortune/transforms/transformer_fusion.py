"""onnxruntime's own transformer optimizer, as one more step."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Literal

import onnx
import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model.graph import edit
from ortune.model.io import file, names

Kind = Literal[
    "bart",
    "bert",
    "bert_keras",
    "bert_tf",
    "clip",
    "conformer",
    "gpt2",
    "gpt2_tf",
    "gpt_neox",
    "mmdit",
    "phi",
    "qwen3",
    "sam2",
    "swin",
    "t5",
    "tnlr",
    "unet",
    "vae",
    "vit",
]


@dataclass(frozen=True)
class TransformerFusion(Transform):
    """What ``onnxruntime.transformers.optimizer`` fuses for a kind of model.

    It knows the spellings of the exporters of its time: operators of com.microsoft (Attention,
    EmbedLayerNormalization, SkipLayerNormalization, BiasGelu) take the place of layers that match
    node for node. Of today's exports of BERT it fuses no attention: `fuse-attention` does. The
    note says how many of which it found; a model in which it finds nothing is left as it was.

    It runs in a process of its own, over files; that it fails is a note too, not an error.

    Attributes:
        model_type: Whose layers to look for, in the optimizer's words.
        num_heads: Heads of attention; 0 lets it find out, where it can.
        hidden_size: Width of a layer; 0 lets it find out.
        level: onnxruntime's own optimization before: 0, 1, 2 or 99; -1 leaves it to the optimizer.
    """

    stage: ClassVar[Stage] = Stage.FUSE
    automatic: ClassVar[bool] = False
    timeout_s: ClassVar[float] = 600
    """Seconds after which it is given up."""

    model_type: Kind = "bert"
    num_heads: int = 0
    hidden_size: int = 0
    level: Literal[-1, 0, 1, 2, 99] = -1

    def applies(self, facts: Facts) -> bool:
        """There are products, or a norm."""
        return facts.has("MatMul", "Gemm", "LayerNormalization", "ReduceMean")

    def suits(self, backend: Backend, capabilities: Capabilities) -> bool:
        """What it writes are onnxruntime's own operators."""
        return "com.microsoft" in backend.domains

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many operators were fused."""
        with TemporaryDirectory(prefix="ortune-") as folder:
            source, out = Path(folder) / "in" / "m.onnx", Path(folder) / "out" / "m.onnx"
            for path in (source, out):
                path.parent.mkdir()
            file.save(model, source)
            found = self._run(source, out)
            if isinstance(found, str):
                edit.note(model, f"onnxruntime's transformer optimizer failed: {found}")
                return 0
            fused = {name: number - _held(model, name) for name, number in found.items()}
            some = ", ".join(f"{name} {number}" for name, number in fused.items() if number > 0)
            heads = sum(fused.get(name, 0) for name in ("Attention", "MultiHeadAttention"))
            without = ", no attention" if some and heads <= 0 else ""
            edit.note(model, f"fused as {self.model_type}: {some or 'nothing'}{without}")
            if not some:
                return 0
            _take_over(model, ir.serde.deserialize_model(onnx.load(out)))
        return sum(number for number in fused.values() if number > 0)

    def _run(self, source: Path, out: Path) -> dict[str, int] | str:
        """Return the statistics, or what went wrong."""
        sizes = [str(number) for number in (self.num_heads, self.hidden_size, self.level)]
        module = [sys.executable, "-m", "ortune.runtimes.onnxruntime.transformer_optimizer"]
        command = [*module, str(source), str(out), self.model_type, *sizes]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=self.timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no answer in {self.timeout_s:g} s"
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            last = f": {lines[-1].strip()}" if lines else ""
            return f"it ended with code {done.returncode}{last}"
        found: dict[str, int] = json.loads(done.stdout.strip().splitlines()[-1])
        return found


def _held(model: ir.Model, operator: str) -> int:
    return sum(node.op_type == operator for node in edit.every_node(model))


def _take_over(model: ir.Model, other: ir.Model) -> None:
    """Let a model hold the graph of another one."""
    names.unique(other)
    model.graph = other.graph
    model.functions.clear()
    model.functions.update(other.functions)
    model.ir_version = other.ir_version
