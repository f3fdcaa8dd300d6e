"""A folder for the Hugging Face hub: model, settings and a model card."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from ortune.bundle.source import Source
from ortune.bundle.target import Replay, Target
from ortune.core.plugins import codec
from ortune.deployment import check_samples, model_card, model_files
from ortune.deployment.languages import programs
from ortune.deployment.languages.language import PYTHON
from ortune.deployment.languages.settings import settings

_PROGRAM = replace(PYTHON, file="run.py")


@dataclass(frozen=True)
class HuggingFace(Target):
    """``onnx/model.onnx``, ``settings.json``, ``run.py`` and ``README.md``, the card.

    Attributes:
        replayed: Run the golden samples by ``run.py``.
        limit: Not used: the same runtime runs the same file with the same settings.
        licence: Of the model, as SPDX text; the bundle's own where it is left out.
        base_model: Name of the original on the hub.
    """

    licence: str = ""
    base_model: str = ""

    def refuses(self, source: Source) -> str:
        """``run.py`` opens onnxruntime's own CPU kernels alone."""
        return model_files.refusal(source) or check_samples.refusal(source)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write the model, how to open it, and what was measured."""
        chosen = settings(model_files.cpu(source))
        for name, home in model_files.homes(source, folder / "onnx").items():
            model_files.copy(source, name, home)
        programs.write(folder, [_PROGRAM], chosen)
        text = json.dumps(codec.encode(chosen), indent=1, sort_keys=True)
        (folder / "settings.json").write_text(f"{text}\n", encoding="utf-8")
        for name, home in model_files.homes(source, folder / "check").items():
            check_samples.write_all(source, name, home)
        licence = self.licence or getattr(source.manifest, "licence", "")
        first = next(iter(model_files.homes(source, Path("onnx")).values()))
        check = next(iter(model_files.homes(source, Path("check")).values()))
        load = (
            f"python run.py {(first / model_files.MODEL).as_posix()} {check.as_posix()}/0 answers"
        )
        card = model_card.card(
            source,
            model_card.evidence_of(source),
            licence=licence,
            base_model=self.base_model,
            load=load,
        )
        (folder / "README.md").write_text(card, encoding="utf-8")
        lines = ["huggingface-cli upload USER/NAME .", load]
        if not licence:
            lines.append("the card names no licence: give huggingface(licence=...)")
        return lines

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Run ``run.py`` on every golden sample."""
        models = model_files.homes(source, folder / "onnx")
        return check_samples.replay(
            source,
            f"run.py, onnxruntime {version('onnxruntime')}",
            lambda name: [sys.executable, folder / "run.py", models[name] / model_files.MODEL],
            where=folder,
        )

    def unrun(self, replay: Replay | None) -> str:
        """Nothing is uploaded."""
        return "" if replay else "run.py"
