"""onnxruntime's own format for phones (``.ort``), with the list of operators it needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from ortune.backends.cpu import Cpu
from ortune.bundle.source import Source
from ortune.bundle.target import Replay, Target
from ortune.core import wording
from ortune.deployment import check_samples, model_files, ort_format
from ortune.deployment.languages import programs
from ortune.deployment.languages.language import JAVA, PYTHON
from ortune.deployment.languages.settings import SessionSettings, settings
from ortune.deployment.replay import by_worker

_REPLAYED = "session.enable_saved_runtime_optimizations"
_MOST = 2**31 - 1


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
        for name in source.models:
            if model_files.size(source, name) > _MOST:
                return "the format holds at most 2 GiB"
        return model_files.refusal(source) or check_samples.refusal(source)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Convert, and write programs that open the file with what the plan sets."""
        backend = model_files.cpu(source)
        ort_format.convert(
            source,
            folder,
            style=self.style,
            platform=self.platform,
            types=self.types,
            level=backend.level,
        )
        for name, home in model_files.homes(source, folder / "check").items():
            check_samples.write_all(source, name, home)
        chosen = self._settings(source)
        programs.write(folder, (PYTHON, JAVA), chosen, model=programs.FROM_BYTES)
        label = next(iter(source.labels.values()))
        lines = [
            f"build onnxruntime with --include_ops_by_config {ort_format.CONFIG}",
            f"python {PYTHON.file} {label}.ort check/0 answers",
        ]
        if self.style == "runtime":
            lines.append(f"saved rewrites are used only where {_REPLAYED}=1 is set, as here")
        if backend.disable:
            named = ", ".join(backend.disable)
            count = wording.count(len(backend.disable), "optimizer")
            lines.append(
                f"the converter leaves no optimizer out, so {count} may have run: {named}"
            )
        return lines

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Run the Python program, which loads from bytes; time it where it is for this machine."""
        by = f"onnxruntime {version('onnxruntime')} from .ort"
        files = {name: folder / f"{label}.ort" for name, label in source.labels.items()}
        found = check_samples.replay(
            source,
            by,
            lambda name: [sys.executable, folder / PYTHON.file, files[name]],
            where=folder,
        )
        if self.platform != "amd64":
            return found
        timed = by_worker(source, files, self._backend(source), by)
        worst = min(found.difference_db, timed.difference_db)
        return replace(timed, difference_db=worst)

    def unrun(self, replay: Replay | None) -> str:
        """No phone is here, and onnxruntime's full build stands for a reduced one."""
        what = f"{JAVA.file}, a reduced build, a phone"
        return what if replay else f"{PYTHON.file}, {what}"

    def _settings(self, source: Source) -> SessionSettings:
        return settings(replace(self._backend(source), disable=()))

    def _backend(self, source: Source) -> Cpu:
        backend = model_files.cpu(source)
        more = (f"{_REPLAYED}=1",) if self.style == "runtime" else ()
        return replace(backend, config=(*backend.config, *more))
