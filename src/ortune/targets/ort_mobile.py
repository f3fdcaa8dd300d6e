"""onnxruntime's own format for phones (``.ort``), with the list of operators it needs."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from ortune.backends.cpu import Cpu
from ortune.bundle.target import Replay, Source, Target
from ortune.core import wording
from ortune.core.python_process import make_python_command
from ortune.core.temporary_folder import open_temporary_folder
from ortune.targets.common import plain_session
from ortune.targets.common.replay import replay_in_workers

CONFIG = "required_operators_and_types.config"
_PROGRAM = "python/run.py"
_SAVED = "session.enable_saved_runtime_optimizations"
_LARGEST = 2**31 - 1
_LEVEL = "ORT_CONVERT_ONNX_MODELS_TO_ORT_OPTIMIZATION_LEVEL"
_LIMIT_S = 900
_TOOL = "onnxruntime.tools.convert_onnx_models_to_ort"
_SAME_ADDRESSES = """
import ctypes, os, sys
ctypes.CDLL(None).personality(0x0040000)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""The converter at addresses that Linux does not draw anew (ADDR_NO_RANDOMIZE): the order in which
it writes operators follows from them, and one model should be one file."""


@dataclass(frozen=True)
class OrtMobile(Target):
    """Each model as ``NAME.ort``, and what a reduced build of onnxruntime must hold for it.

    Attributes:
        replayed: Run the golden samples from the file's bytes.
        limit: Share by which it may be slower than the bundle, asked where it was made for this
            kind of machine (platform=amd64 on x86).
        style: ``fixed`` rewrites the graph now; ``runtime`` saves rewrites, for what another
            provider (NNAPI, CoreML) leaves to the CPU.
        platform: What it is for: ``any``, ``arm`` (8-bit integers as they are) or ``amd64``
            (convolutions in blocks).
        types: List for each operator the types that it is used with.
    """

    style: Literal["fixed", "runtime"] = "fixed"
    platform: Literal["any", "arm", "amd64"] = "any"
    types: bool = True

    def refuses(self, source: Source) -> str:
        """The format holds all weights in one buffer of at most 2 GiB."""
        for name, model in source.models.items():
            files = [model, *source.external(name).values()]
            if sum(path.stat().st_size for path in files) > _LARGEST:
                return "the format holds at most 2 GiB"
        return plain_session.explain_cpu_refusal(source)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Convert, and write a program that opens the file with what the plan sets."""
        backend = self._make_backend(source)
        with open_temporary_folder() as temporary:
            models, out = Path(temporary, "models"), Path(temporary, "out")
            for name, label in source.labels.items():
                plain_session.copy_model(source, name, models / label, f"{label}.onnx")
            command = make_python_command("-m", _TOOL, models, "--output_dir", out)
            command += ["--optimization_style", self.style.capitalize()]
            command += ["--enable_type_reduction"] * self.types
            command += [] if self.platform == "any" else ["--target_platform", self.platform]
            if sys.platform == "linux":
                command = make_python_command("-c", _SAME_ADDRESSES, *command, isolated=True)
            plain_session.run_command(
                command,
                Path(temporary),
                title="onnxruntime's converter",
                limit_s=_LIMIT_S,
                env={**os.environ, _LEVEL: plain_session.read_cpu_settings(source).level},
            )
            for label in source.labels.values():
                (converted,) = (out / label).glob("*.ort")
                shutil.move(converted, folder / f"{label}.ort")
            (operators,) = out.glob("*.config")
            # Its comments name folders of this machine.
            text = operators.read_text(encoding="utf-8").splitlines()
            kept = [line for line in text if line and not line.startswith("#")]
            head = "# operators, and the types that they are used with"
            (folder / CONFIG).write_text("\n".join([head, *kept, ""]), encoding="utf-8")
        plain_session.write_sample_folders(source, folder / "check")
        plain_session.write_settings(folder, replace(backend, disable=()))
        plain_session.write_text_file(folder / _PROGRAM, "programs/run.py")
        label = next(iter(source.labels.values()))
        lines = [
            f"build onnxruntime with --include_ops_by_config {CONFIG}",
            f"python {_PROGRAM} {label}.ort check/0 answers",
        ]
        if self.style == "runtime":
            lines.append(f"saved rewrites are used only where {_SAVED}=1 is set, as here")
        if backend.disable:
            named = ", ".join(backend.disable)
            count = wording.format_count(len(backend.disable), "optimizer")
            lines.append(
                f"the converter leaves no optimizer out, so {count} may have run: {named}"
            )
        return lines

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Run the Python program, which loads from bytes; time it where it is for this machine."""
        by = f"onnxruntime {version('onnxruntime')} from .ort"
        files = {name: folder / f"{label}.ort" for name, label in source.labels.items()}
        answered = plain_session.replay_python(source, folder, _PROGRAM, files)
        if self.platform != "amd64":
            return replace(answered, by=by)
        timed = replay_in_workers(source, files, self._make_backend(source), by)
        return replace(timed, difference_db=min(answered.difference_db, timed.difference_db))

    def unrun(self, replay: Replay | None) -> str:
        """No phone is here, and onnxruntime's full build stands for a reduced one."""
        return "a reduced build, a phone" if replay else f"{_PROGRAM}, a reduced build, a phone"

    def _make_backend(self, source: Source) -> Cpu:
        backend = plain_session.read_cpu_settings(source)
        more = (f"{_SAVED}=1",) if self.style == "runtime" else ()
        return replace(backend, config=(*backend.config, *more))
