"""A folder for the Hugging Face hub: model, settings and a card of what was measured.

A model that came from a folder of the hub gets its tokenizer and settings back, and lies under the
names by which sentence-transformers, optimum and transformers.js choose a precision as well.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ortune.bundle.engine.consent import decode_member
from ortune.bundle.engine.manifest import EVIDENCE, HUB, Arithmetic
from ortune.bundle.read import BundleEvidence
from ortune.bundle.target import Replay, Source, Target
from ortune.core import hub, wording
from ortune.core.errors import BadModel, escape_control_chars
from ortune.core.trial import Trial
from ortune.core.wording import NONE
from ortune.search.experiment.ledger import disable_imports
from ortune.targets.common import plain_session

_PROGRAM = "run.py"
KNOWN_LICENCES = {
    *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "cc0-1.0"),
    *("cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0"),
    *("gpl-2.0", "gpl-3.0", "lgpl-2.1", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "epl-2.0", "isc"),
    *("artistic-2.0", "bsl-1.0", "unlicense", "wtfpl", "zlib", "openrail", "llama3.1", "gemma"),
}
"""Licences that the hub knows by name; any other is ``other`` with a name of its own."""
_INT8_ANYWHERE = (
    *("model_qint8_avx512.onnx", "model_quint8_avx2.onnx", "model_qint8_arm64.onnx"),
    "model_quantized.onnx",
)
_MACHINE = ("cpu", "instruction sets", "effective cpus", "system")
_RUNTIMES = ("onnxruntime", "openvino", "onnxruntime-ep-openvino", "ortune")


@dataclass(frozen=True)
class HuggingFace(Target):
    """``onnx/model.onnx``, ``settings.json``, ``run.py`` and ``README.md``, the card.

    Beside it are the names of its precision, such as ``onnx/model_qint8_avx512_vnni.onnx``.

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
        return plain_session.explain_cpu_refusal(source)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        models = plain_session.list_model_folders(source, folder / "onnx")
        model, check = plain_session.write_plain(source, folder, models)
        plain_session.write_text_file(folder / _PROGRAM, "programs/run.py")
        settings = hub.find_folder(source.folder / HUB)
        if settings is not None:
            hub.copy_side_files(settings, folder)
            (folder / hub.GENAI).unlink(missing_ok=True)  # it names another file
        for home in models.values():
            for name in list_names(source.plan.arithmetic):
                try:
                    os.link(home / plain_session.MODEL, home / name)
                except OSError:  # the file system has no links
                    shutil.copyfile(home / plain_session.MODEL, home / name)
        load = f"python {_PROGRAM} {model} {check} answers"
        licence = self.licence or source.manifest.licence
        task = "" if settings is None else settings.task
        text = build_card(source, read_evidence(source), licence, self.base_model, load, task)
        (folder / "README.md").write_text(escape_control_chars(text), encoding="utf-8")
        lines = ["hf upload USER/NAME .", load]
        if not licence:
            lines.append("the card names no licence: give huggingface(licence=...)")
        return lines

    def replay(self, source: Source, folder: Path) -> Replay | None:
        homes = plain_session.list_model_folders(source, folder / "onnx").items()
        files = {name: home / plain_session.MODEL for name, home in homes}
        return plain_session.replay_python(source, folder, _PROGRAM, files)

    def unrun(self, replay: Replay | None) -> str:
        """Nothing is uploaded."""
        return "" if replay else _PROGRAM


def list_names(arithmetic: Arithmetic) -> tuple[str, ...]:
    """Return the names that libraries know a model of such arithmetic by.

    A file whose sums of 8-bit products may saturate has only that of the instruction set that adds
    them exactly.
    """
    if not arithmetic.integers:
        return ("model_fp16.onnx",) if "float16" in arithmetic.halves else ()
    exact = "model_qint8_avx512_vnni.onnx"
    return (exact,) if arithmetic.risky else (exact, *_INT8_ANYWHERE)


def read_evidence(source: Source) -> BundleEvidence:
    """Return what was measured; BadModel where it cannot be read, or sets what it may not."""
    content = (source.folder / EVIDENCE).read_bytes()
    evidence = decode_member(BundleEvidence, content, f"'{EVIDENCE}'")
    disable_imports(evidence.job, evidence.trials)
    return evidence


def build_card(
    source: Source,
    evidence: BundleEvidence,
    licence: str,
    base_model: str,
    load: str,
    task: str = "",
) -> str:
    """Return the text of README.md; texts are empty where nobody knows them.

    `licence` is SPDX, `load` the code that loads it, `task` in the hub's words. Raises BadModel:
    the evidence holds no trial.
    """
    trials = [
        candidate for candidate in evidence.trials if candidate.key == source.plan.key
    ] or list(evidence.trials)
    if not trials:
        raise BadModel(f"'{EVIDENCE}' holds no trial", fix="pack the run again")
    trial = trials[-1]  # the final one where there is one
    by = f"by ortune {_escape_line(source.manifest.ortune)} as `{_escape_line(trial.plan)}`"
    summary = f"An ONNX model, optimized {by} and measured against the original."
    if not trial.plan.recipe.steps and trial.plan.backend == evidence.job.baseline:
        summary = f"An ONNX model as it came, packed {by}. Nothing of it was optimized."
    lines = [
        *_front_matter(source, licence, base_model, task),
        *("", f"# {source.name}", "", summary, ""),
        *_list_speed(source, evidence, trial),
        *_list_accuracy(trial),
        *_list_machine(source, evidence),
        *_list_usage(source, load),
    ]
    return "\n".join(lines)


def _front_matter(source: Source, licence: str, base_model: str, task: str) -> Iterator[str]:
    """Yield the YAML at the top; texts are quoted as JSON, which YAML reads."""
    name = licence.strip().lower()
    integers = source.plan.arithmetic.integers > 0
    yield "---"
    library = "sentence-transformers" if task == hub.SIMILARITY else "onnx"
    yield f"library_name: {library}"
    if task:
        yield f"pipeline_tag: {task}"
    if name in KNOWN_LICENCES:
        yield f"license: {name}"
    elif name:
        yield "license: other"
        yield f"license_name: {json.dumps(licence.strip())}"
    if base_model:
        yield f"base_model: {json.dumps(base_model)}"
        if integers:
            yield "base_model_relation: quantized"
    yield from ("tags:", "- onnx", "- onnxruntime", "- ortune")
    if integers:
        yield "- int8"
    yield "---"


def _list_speed(source: Source, evidence: BundleEvidence, trial: Trial) -> Iterator[str]:
    yield from ("## Speed", "")
    if trial.ratio is None:
        yield "It was not timed against the original."
    else:
        workload = source.manifest.workload
        yield f"Time of this model over the original's, both in turns ({_escape_line(workload)}):"
        yield ""
        yield from ("| | ratio | interval | speed-up |", "|---|---|---|---|")
        ends = (
            f"{trial.ratio.low:.3f} to {trial.ratio.high:.3f}" if trial.ratio.is_bounded else NONE
        )
        faster = wording.format_speedup(trial.ratio.inverse())
        yield f"| {_escape_line(trial.plan)} | {trial.ratio.value:.3f} | {ends} | {faster} |"
        yield ""
        yield "The interval is of the machine below and of no other; measure it on yours."
    yield ""
    if evidence.noise:
        yield from ("While it was measured:", "")
    for name, value in evidence.noise.items():
        yield f"- {_escape_line(name)}: {_escape_line(value)}"
    yield ""


def _list_accuracy(trial: Trial) -> Iterator[str]:
    yield from ("## Accuracy", "")
    score = trial.score
    if score is None or score.verdict is None:
        yield "It was not judged against a budget."
    else:
        value = wording.format_score_value(score.value)
        base = wording.format_score_value(score.base)
        counted = wording.format_count(score.samples, "sample")
        name = _escape_line(wording.shorten_groups(score.metric))
        yield f"{name} is {value} on {counted}, of the original {base}."
        yield ""
        means = _escape_line(wording.explain_verdict(score)).removeprefix(score.verdict)
        yield f"**{score.verdict}**{means}."
    for line in wording.list_failed_outputs(trial.scores):
        yield f"- {_escape_line(line)}"
    yield ""


def _list_machine(source: Source, evidence: BundleEvidence) -> Iterator[str]:
    yield from ("## Measured on", "", "| | |", "|---|---|")
    for values, keys in ((evidence.job.machine, _MACHINE), (evidence.job.versions, _RUNTIMES)):
        yield from (f"| {key} | {_escape_line(values[key])} |" for key in keys if key in values)
    for part, count in evidence.samples.items():
        yield f"| samples, {_escape_line(part)} | {count} |"
    yield f"| settings | `{_escape_line(source.plan.backend)}` |"
    yield ""


def _list_usage(source: Source, load: str) -> Iterator[str]:
    signature = next(iter(source.manifest.signatures.values()))
    yield from ("## Use", "", "| | name | type | shape |", "|---|---|---|---|")
    for role, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            dims = ("?" if dim is None else _escape_line(dim) for dim in spec.shape or ())
            shape = NONE if spec.shape is None else " x ".join(dims)
            yield f"| {role} | `{_escape_line(spec.name)}` | {spec.dtype} | {shape} |"
    yield from ("", "`run.py` opens it with the settings that it was measured with:", "")
    yield from ("```", load, "```", "")


def _escape_line(value: object) -> str:
    """Write a stranger's text on one line, without what Markdown or HTML would act on."""
    text = " ".join(str(value).split())
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;")):
        text = text.replace(sign, safe)
    return text.replace("`", "'")
