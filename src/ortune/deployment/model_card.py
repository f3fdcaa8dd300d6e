"""A model card: what was measured, on what, and what its verdict on accuracy means."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from ortune.bundle.evidence import BundleEvidence
from ortune.bundle.source import Source
from ortune.core import wording
from ortune.core.errors import BadModel, OrtuneError
from ortune.core.plugins import codec, stored
from ortune.core.trial import Trial
from ortune.core.wording import NONE
from ortune.engine.manifest import EVIDENCE
from ortune.experiment.ledger import unimported

KNOWN = {
    *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "cc0-1.0"),
    *("cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0"),
    *("gpl-2.0", "gpl-3.0", "lgpl-2.1", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "epl-2.0", "isc"),
    *("artistic-2.0", "bsl-1.0", "unlicense", "wtfpl", "zlib", "openrail", "llama3.1", "gemma"),
}
"""Licences that the hub knows by name; any other is ``other`` with a name of its own."""
_MACHINE = ("cpu", "instruction sets", "effective cpus", "system")
_RUNTIMES = ("onnxruntime", "openvino", "onnxruntime-ep-openvino", "ortune")


def evidence_of(source: Source) -> BundleEvidence:
    """Return what the bundle says was measured.

    Raises:
        BadModel: It cannot be read, or sets what a bundle may not.
    """
    try:
        data = stored.loads((source.folder / EVIDENCE).read_bytes())
        stored.demand(data, f"'{EVIDENCE}'")
        found: BundleEvidence = codec.decode(BundleEvidence, data)
    except ValueError as error:
        raise BadModel(f"'{EVIDENCE}' cannot be read: {error}", fix="pack it again") from error
    except OrtuneError as error:
        raise BadModel(f"'{EVIDENCE}' cannot be used: {error.what}", fix=error.fix) from None
    unimported(found.job, found.trials)
    return found


def card(source: Source, held: BundleEvidence, *, licence: str, base_model: str, load: str) -> str:
    """Return the text of README.md.

    Args:
        source: What is packed.
        held: What was measured.
        licence: SPDX text; empty when nobody said one.
        base_model: Name of the original on the hub; empty when unknown.
        load: Code that loads it.
    """
    trial = _trial(source, held)
    ours = _one(source.manifest.ortune)
    made = (
        f"An ONNX model, optimized by ortune {ours} as `{_one(trial.plan)}` and "
        "measured against the original that it was made of."
    )
    return "\n".join(
        [
            *_front(source, licence, base_model),
            "",
            f"# {source.name}",
            "",
            made,
            "",
            *_speed(source, held, trial),
            *_accuracy(trial),
            *_machine(source, held),
            *_use(source, load),
        ]
    )


def _front(source: Source, licence: str, base_model: str) -> Iterator[str]:
    """Yield the YAML at the top; texts are quoted as JSON, which YAML reads."""
    name = licence.strip().lower()
    yield "---"
    yield "library_name: onnx"
    if name in KNOWN:
        yield f"license: {name}"
    elif name:
        yield "license: other"
        yield f"license_name: {json.dumps(licence.strip())}"
    if base_model:
        yield f"base_model: {json.dumps(base_model)}"
        if _integers(source):
            yield "base_model_relation: quantized"
    yield "tags:"
    yield "- onnx"
    yield "- onnxruntime"
    yield "- ortune"
    if _integers(source):
        yield "- int8"
    yield "---"


def _integers(source: Source) -> bool:
    return source.plan.arithmetic.integers > 0


def _trial(source: Source, held: BundleEvidence) -> Trial:
    """Return the plan's own trial, its final one where there is one.

    Raises:
        BadModel: The evidence holds none.
    """
    own = [one for one in held.trials if one.key == source.plan.key] or list(held.trials)
    if not own:
        raise BadModel(f"'{EVIDENCE}' holds no trial", fix="pack the run again")
    return own[-1]


def _speed(source: Source, held: BundleEvidence, trial: Trial) -> Iterator[str]:
    yield "## Speed"
    yield ""
    if trial.ratio is None:
        yield "It was not timed against the original."
    else:
        what = source.manifest.workload
        yield f"Time of this model over the original's, both in turns ({_one(what)}):"
        yield ""
        yield "| | ratio | interval | speed-up |"
        yield "|---|---|---|---|"
        ends = f"{trial.ratio.low:.3f} to {trial.ratio.high:.3f}" if trial.ratio.bounded else NONE
        faster = wording.times(trial.ratio.inverse())
        yield f"| {_one(trial.plan)} | {trial.ratio.value:.3f} | {ends} | {faster} |"
        yield ""
        yield "The interval is of the machine below and of no other; measure it on yours."
    yield ""
    if held.noise:
        yield "While it was measured:"
        yield ""
    for name, value in held.noise.items():
        yield f"- {_one(name)}: {_one(value)}"
    yield ""


def _accuracy(trial: Trial) -> Iterator[str]:
    yield "## Accuracy"
    yield ""
    score = trial.score
    if score is None or score.verdict is None:
        yield "It was not judged against a budget."
    else:
        value, base = wording.number(score.value), wording.number(score.base)
        counted = wording.count(score.samples, "sample")
        yield f"{_one(score.metric)} is {value} on {counted}, of the original {base}."
        yield ""
        means = _one(wording.means(score)).removeprefix(score.verdict)
        yield f"**{score.verdict}**{means}."
    for line in wording.fallen(trial.scores):
        yield f"- {_one(line)}"
    yield ""


def _machine(source: Source, held: BundleEvidence) -> Iterator[str]:
    yield "## Measured on"
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield from _rows(held.job.machine, _MACHINE)
    yield from _rows(held.job.versions, _RUNTIMES)
    for part, count in held.samples.items():
        yield f"| samples, {_one(part)} | {count} |"
    yield f"| settings | `{_one(source.plan.backend)}` |"
    yield ""


def _rows(values: Mapping[str, str], keys: tuple[str, ...]) -> Iterator[str]:
    for key in keys:
        if key in values:
            yield f"| {key} | {_one(values[key])} |"


def _use(source: Source, load: str) -> Iterator[str]:
    signature = next(iter(source.manifest.signatures.values()))
    yield "## Use"
    yield ""
    yield "| | name | type | shape |"
    yield "|---|---|---|---|"
    for what, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            shape = NONE if spec.shape is None else " x ".join(_dim(one) for one in spec.shape)
            yield f"| {what} | `{_one(spec.name)}` | {spec.dtype} | {shape} |"
    yield ""
    yield "`run.py` opens it with the settings that it was measured with:"
    yield ""
    yield "```"
    yield load
    yield "```"
    yield ""


def _dim(one: int | str | None) -> str:
    return "?" if one is None else _one(one)


def _one(value: object) -> str:
    """Write a stranger's text on one line, without what Markdown or HTML would act on."""
    text = " ".join(str(value).split())
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;")):
        text = text.replace(sign, safe)
    return text.replace("`", "'")
