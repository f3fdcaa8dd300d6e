"""The plain ONNX file, with its tuned settings as data and programs that read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ortune.bundle.target import Replay, Source, Target
from ortune.targets.common import plain_session

PYTHON = "python/run.py"
_PROGRAMS = {
    PYTHON: "programs/run.py",
    "cpp/run.cc": "programs/run.cc",
    "cpp/ort_api.h": "programs/ort_api.h",
    "javascript/run.js": "programs/run.js",
}
"""File of the package -> the text that it is."""


@dataclass(frozen=True)
class OnnxFile(Target):
    """The model as it was tuned, ``settings.json``, and programs in Python, C++ and JavaScript.

    Attributes:
        replayed: Run the golden samples by the Python program.
        limit: Not used: the same runtime runs the same file with the same settings.
    """

    def refuses(self, source: Source) -> str:
        """Other backends are set up in another way in each language."""
        return plain_session.explain_cpu_refusal(source)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write ``model/``, ``check/`` with the golden samples, settings and programs."""
        models = plain_session.list_model_folders(source, folder / "model")
        model, check = plain_session.write_plain(source, folder, models)
        for file, template in _PROGRAMS.items():
            plain_session.write_text_file(folder / file, template)
        return (
            f"settings: {plain_session.SETTINGS}, read by {', '.join(_PROGRAMS)}",
            f"python {PYTHON} {model} {check} answers",
        )

    def replay(self, source: Source, folder: Path) -> Replay | None:
        homes = plain_session.list_model_folders(source, folder / "model").items()
        files = {name: home / plain_session.MODEL for name, home in homes}
        return plain_session.replay_python(source, folder, PYTHON, files)

    def unrun(self, replay: Replay | None) -> str:
        """Only Python's is sure to be installed."""
        return "the programs in C++ and JavaScript" if replay else "the programs"
