"""The plain ONNX file, with its tuned settings as programs in five languages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ortune.bundle.source import Source
from ortune.bundle.target import Replay, Target
from ortune.deployment import check_samples, model_files
from ortune.deployment.languages import programs
from ortune.deployment.languages.language import LANGUAGES, PYTHON
from ortune.deployment.languages.settings import settings


@dataclass(frozen=True)
class OnnxFile(Target):
    """The model as it was tuned, and a program in Python, C++, C#, Java and JavaScript.

    Each sets all that the plan sets, or says in a comment what its language cannot.

    Attributes:
        replayed: Run the golden samples by the Python program.
        limit: Not used: the same runtime runs the same file with the same settings.
    """

    def refuses(self, source: Source) -> str:
        """Other backends are set up in another way in each language."""
        return model_files.refusal(source) or check_samples.refusal(source)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write ``model/``, ``check/`` with the golden samples, and a folder for each language."""
        checks = model_files.homes(source, folder / "check")
        for name, home in model_files.homes(source, folder / "model").items():
            model_files.copy(source, name, home)
            check_samples.write_all(source, name, checks[name])
        programs.write(folder, LANGUAGES, settings(model_files.cpu(source)))
        listed = ", ".join(language.file for language in LANGUAGES)
        return (
            f"settings: {listed}",
            f"python {PYTHON.file} {model_files.first(source, 'model')}",
        )

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Run the Python program on every golden sample."""
        models = model_files.homes(source, folder / "model")
        return check_samples.replay(
            source,
            f"{PYTHON.file}, onnxruntime {version('onnxruntime')}",
            lambda name: [
                sys.executable,
                folder / PYTHON.file,
                models[name] / model_files.MODEL,
            ],
            where=folder,
        )

    def unrun(self, replay: Replay | None) -> str:
        """Only Python's is sure to be installed."""
        names = [one.name for one in LANGUAGES if one is not PYTHON or replay is None]
        return f"the programs in {', '.join(names)}"
