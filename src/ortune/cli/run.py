"""Run a bundle or a model on inputs, and time it."""

from __future__ import annotations

import time
import warnings
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ortune.cli.terminal import output
from ortune.cli.terminal.command import make_command
from ortune.core import wording
from ortune.core.backend import GraphLevel
from ortune.core.custom_ops import CustomOpsRequest
from ortune.core.errors import BadSettings
from ortune.core.event import Progress
from ortune.core.fields import Model, Option, Out
from ortune.core.outputs import check_output_file
from ortune.core.request import UnpackRequest, request
from ortune.core.temporary_folder import open_temporary_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ortune.bundle.engine.engine import Engine
    from ortune.core.backend import Backend
    from ortune.core.hub import HubFolder
    from ortune.data.sources import Source

_SHOWN = 6
_FOR_P90 = 20
"""Fewer samples say nothing about the slowest tenth."""


@request
class _Options(CustomOpsRequest, UnpackRequest):
    """Run PATH, a bundle or a model, on INPUT: an image, a folder, .npz or .jsonl files, a text.

    A model's folder from the hub, and a bundle of one, take texts and answer with a class, words
    and their classes, a sentence vector, the answer to a question, or generated text. INPUT is run
    one by one and timed; --data is many rows, computed in batches into the parts of a folder: the
    same command goes on where it ended.

    Example:
        ortune run minilm "A man plays a guitar."
        ortune run nli "A man plays a guitar." --text-pair "Someone makes music."
        ortune run model.ortune photo.jpg
        ortune run model.onnx samples/ --on "cpu(threads=1)" -o outputs.npz
        ortune run model.ortune --data big/ -o outputs/ --executor ray

    Attributes:
        path: A bundle or a model.
        inputs: Images, folders, .npz or .jsonl files; for a hub's folder texts as they are.
        data: Many rows: a folder or a file as for INPUT, .parquet among them.
        executor: Where rows of --data are computed: local, ray, or ray://HOST:PORT.
        on: Where to run a plain model; of a bundle, take the plan of this backend.
        allow_custom_ops: Run the custom operators that a bundle brings.
        require_signature: Open no bundle that the owner of this public key did not sign.
        opt_level: How far the runtime may rewrite a plain model when it loads it.
        out: Outputs of INPUT: NAME.npz; of --data: a folder.
        force: Overwrite an existing output; of --data the parts that were made of other input.
        tokens: Most tokens that a generating model writes.
        text_pair: Second text of each INPUT, such as where the answer to a question is.
    """

    path: Model
    inputs: Annotated[Sequence[str], Option("[INPUT...]")] = ()
    _: KW_ONLY
    data: Annotated[str | Path | None, Option("SOURCE")] = None
    executor: Annotated[str, Option("WHERE")] = "local"
    on: Annotated[str | None, Option("BACKEND")] = None
    allow_custom_ops: bool = False
    require_signature: Annotated[str | Path | None, Option("PUBLIC.pem")] = None
    opt_level: Annotated[GraphLevel | None, Option(hidden=True)] = None
    out: Out = None
    force: bool = False
    tokens: Annotated[int, Option("N", low=1)] = 64
    text_pair: Annotated[str | None, Option("TEXT")] = None

    def keeps(self, path: Path) -> bool:
        """Finished parts stay."""
        return any(path.glob("part-*.npz"))


@make_command(_Options)
def command(options: _Options) -> None:
    """Show times and outputs, or how far a batch came."""
    if bool(options.inputs) == (options.data is not None):
        raise BadSettings(
            "INPUT and --data are both given" if options.inputs else "there is nothing to run on",
            fix="give INPUT, or --data SOURCE -o FOLDER",
        )
    if options.data is not None:
        if options.text_pair is not None:
            raise BadSettings(
                "--text-pair goes with INPUT",
                fix="leave --text-pair out, and give rows of --data a column text_pair",
            )
        return _run_batch(options)
    return _run_inputs(options)


def _run_inputs(options: _Options) -> None:
    import numpy as np

    from ortune.bundle.answers import find_main, find_settings
    from ortune.bundle.batch import join_outputs
    from ortune.bundle.engine.load import load_engine
    from ortune.data.arrays import write_npz
    from ortune.data.stream import Stream

    path, out = Path(options.path), None if options.out is None else Path(options.out)
    if options.executor != "local":
        raise BadSettings("--executor needs --data", fix="give --data SOURCE -o FOLDER")
    if out is not None and out.suffix != ".npz":
        raise BadSettings(
            f"{out} does not end in .npz",
            fix="name it NAME.npz; --data SOURCE writes into a folder",
        )
    if out is not None:
        check_output_file(out, options.force, path)
    backend = _parse_backend(options.on, options.opt_level)
    start = time.perf_counter_ns()
    with _report_warnings() as caught:
        engine = load_engine(
            path,
            on=backend,
            custom_ops=options.custom_ops or options.allow_custom_ops,
            require_signature=options.require_signature,
        )
    load_ns = time.perf_counter_ns() - start
    with engine, open_temporary_folder() as folder:
        outcome = _run_samples(engine, options, Path(folder), find_settings(path, Path(folder)))
        results = Stream(outcome.outputs)
        if out is not None:
            write_npz(out, join_outputs(results, find_main(engine).signature))
        latencies_ns = outcome.latencies_ns
        result = {
            "path": path,
            "backend": str(engine.backend),
            "plan": engine.plan.plan if engine.plan else None,
            "fallback": engine.fallback or None,
            "warnings": caught,
            "placement": engine.placement(),
            "samples": len(latencies_ns),
            "load_ns": load_ns,
            "latency_ns": latencies_ns,
            "mean_ns": float(np.mean(latencies_ns)),
            "p50_ns": float(np.percentile(latencies_ns, 50)),
            "p90_ns": float(np.percentile(latencies_ns, 90))
            if len(latencies_ns) >= _FOR_P90
            else None,
            "outputs": {name: list(array.shape) for name, array in outcome.first.items()},
            "written": out,
            "answers": outcome.answers,
        }
    output.print_result(result, lambda: _print_run(result, outcome.first))


@contextmanager
def _report_warnings() -> Iterator[list[str]]:
    """Tell the warnings of the block, each once, when it ends; give the list of them."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        yield texts
    texts += dict.fromkeys(str(warning.message) for warning in caught)
    for text in texts:
        output.write_remark(f"warning: {text}")


def _run_batch(options: _Options) -> None:
    from ortune.bundle.batch import BatchJob, run_batch

    if options.out is None or Path(options.out).suffix == ".npz":
        raise BadSettings("--data needs a folder for its outputs", fix="give -o FOLDER")
    batch = BatchJob(
        model=Path(options.path),
        data=Path(options.data or ""),
        out=Path(options.out),
        executor=options.executor,
        engine={
            "on": _parse_backend(options.on, options.opt_level),
            "custom_ops": options.custom_ops or options.allow_custom_ops,
            "require_signature": options.require_signature,
        },
        force=options.force,
    )
    with _report_warnings():
        outcome = run_batch(batch, options.sink)
    rate = outcome.computed_rows / outcome.seconds if outcome.computed_rows else None
    result = {
        "path": batch.model,
        "data": batch.data,
        "executor": batch.executor,
        **vars(outcome),
        "rows_per_s": rate,
        "written": batch.out,
    }

    def show() -> None:
        parts = wording.format_count(outcome.parts, "part")
        resumed = f", {outcome.resumed} of them there already" if outcome.resumed else ""
        rows = [
            *([("plan", outcome.plan)] if outcome.plan else []),
            *(("backend", backend) for backend in outcome.backends),
            ("rows", f"{outcome.rows} in {parts}{resumed}"),
        ]
        if rate is not None:
            rows.append(("rate", f"{rate:.1f} rows a second for {outcome.seconds:.1f} s"))
        output.print_table(("", str(batch.out)), rows)

    output.print_result(result, show)


def _parse_backend(on: str | None, level: str | None) -> Backend | None:
    from ortune.core.backend import Backend
    from ortune.core.plugins.codec import build_dataclass
    from ortune.core.plugins.spelling import parse_plugin

    if on is None and level is None:
        return None
    backend = parse_plugin(Backend, on or "cpu")
    if level is None:
        return backend
    settings = {field.name: getattr(backend, field.name) for field in fields(backend)}
    return build_dataclass(type(backend), settings | {"level": level})


@dataclass(frozen=True)
class _RunResult:
    """What the samples gave: nanoseconds of each run, and a stream file of all outputs to write.

    Answers say them in the words of the model's task; None of one without.
    """

    first: dict[str, NDArray[Any]]
    latencies_ns: Sequence[int]
    outputs: Path
    answers: Sequence[Mapping[str, Any] | None]


def _run_samples(
    engine: Engine, options: _Options, folder: Path, settings: HubFolder | None
) -> _RunResult:
    """Run every sample of every source once; one more run before the first is not timed."""
    from ortune.bundle.answers import Answerer, RunSample, find_main
    from ortune.data import feeds, sentences, stream

    answers: list[Mapping[str, Any] | None] = []
    main = find_main(engine)
    answerer = None if settings is None else Answerer(engine, settings)
    specs, shown = main.signature.inputs, main.pictures
    reader = sentences.open_sentences(settings, specs, lambda text: None, answers=True)
    task = None if reader is None or settings is None else settings.task
    first: dict[str, NDArray[Any]] = {}
    latencies_ns = array("q")
    with stream.open_writer(folder / "outputs.stream") as add:
        for index, source in enumerate(options.inputs):
            fed = feeds.load_feeds(
                _make_source(source, task, options.text_pair),
                specs,
                folder / str(index),
                pictures=None if shown is None else shown.keys,
                settings=settings,
                sentences=reader,
                sink=options.sink,
            )
            samples = stream.Stream(fed.stream)
            first = first or main.run(samples[0])
            parts: list[RunSample] = []
            for place in range(fed.count):
                options.sink(Progress("running samples", place, fed.count))
                tensors = samples[place]
                start = time.perf_counter_ns()
                outputs = main.run(tensors)
                latencies_ns.append(time.perf_counter_ns() - start)
                if options.out is not None:
                    add(outputs)
                if answerer is None:
                    continue
                texts = reader.kept.get(fed.places[place], [None]) if reader else [None]
                parts.append(RunSample(tensors, outputs, texts[len(parts)]))
                if len(parts) == len(texts):
                    answers.append(answerer.answer(parts, options.tokens))
                    parts = []
    return _RunResult(first, latencies_ns, folder / "outputs.stream", answers)


def _make_source(text: str, task: str | None, pair: str | None) -> Source:
    """Return samples by name, or the one text that an argument is, where it names no file.

    Raises BadSettings: a second text where none can be, or none where there must be one.
    """
    is_text = not (task is None or Path(text).exists() or text.startswith("hf:"))
    if is_text or pair is not None:
        from ortune.bundle.answers import TAKE_PAIRS
        from ortune.core import hub

        if pair is None:
            if task == hub.QUESTIONS:
                raise BadSettings(
                    "a question needs the text that has its answer",
                    fix="give it as --text-pair TEXT",
                )
        elif task is None:
            raise BadSettings(
                "--text-pair needs a model that takes texts",
                fix="give the model's folder with its tokenizer.json, or a bundle of it",
            )
        elif not is_text:
            raise BadSettings(
                f"--text-pair goes with a text, and {text} is none",
                fix="give the second texts in its column text_pair",
            )
        elif task not in TAKE_PAIRS:
            raise BadSettings(
                f"a model for {task} takes one text at a time",
                fix="give both as INPUT, without --text-pair",
            )
    if not is_text:
        return text
    row = {"text": text} if pair is None else {"text": text, "text_pair": pair}

    def yield_text() -> Iterator[Mapping[str, str]]:
        yield row

    return yield_text


def _print_run(result: dict[str, Any], first: Mapping[str, NDArray[Any]]) -> None:
    placed = ", ".join(
        f"{wording.format_count(n, 'node')} on {ep}" for ep, n in result["placement"].items()
    )
    rows = [
        *([("plan", result["plan"])] if result["plan"] else []),
        ("backend", f"{result['backend']}{f' ({placed})' if placed else ''}"),
        ("load", f"{output.format_ms(result['load_ns'])} ms"),
        ("samples", str(result["samples"])),
        ("mean", f"{output.format_ms(result['mean_ns'])} ms"),
        ("p50", f"{output.format_ms(result['p50_ns'])} ms"),
    ]
    if result["p90_ns"] is not None:
        rows.append(("p90", f"{output.format_ms(result['p90_ns'])} ms"))
    output.print_table(("", str(result["path"])), rows)
    output.print_table(
        ("output", "dtype", "shape", "first sample"),
        [(name, a.dtype, list(a.shape), summarize_array(a)) for name, a in first.items()],
    )
    for answer in filter(None, result["answers"]):
        _print_answer(answer)
    if result["written"]:
        output.print_text(f"outputs: {result['written']}")


def _print_answer(answer: Mapping[str, Any]) -> None:
    if vector := answer.get("vector"):
        shown = ", ".join(f"{x:.4f}" for x in vector[:_SHOWN])
        output.print_text(f"vector of {len(vector)}: {shown}, ...")
    elif "words" in answer:
        output.print_table(
            ("word", "label", "score", "characters"),
            [
                (word["word"], word["label"], word["score"], f"{word['start']}:{word['end']}")
                for word in answer["words"]
            ],
        )
    elif "text" in answer:
        output.print_text(answer["text"])
    elif "answer" in answer:
        place = f"characters {answer['start']}:{answer['end']}"
        output.print_text(f"{answer['answer']} ({answer['score']}, {place})")
    elif "masks" in answer:
        output.print_table(
            ("characters", "word", "score"),
            [
                (f"{mask['start']}:{mask['end']}", word["word"], word["score"])
                for mask in answer["masks"]
                for word in mask["words"]
            ],
        )
    elif "tokens" in answer:  # of a folder without a tokenizer
        output.print_text(" ".join(map(str, answer["tokens"])))
    else:
        best = [f"{entry['label']} {entry['score']}" for entry in answer["classes"][:_SHOWN]]
        output.print_text(", ".join(best))


def summarize_array(array: NDArray[Any]) -> str:
    """Say in a few words what is in an output."""
    import numpy as np

    if array.size <= 4 or array.dtype.kind not in "fiu":
        return " ".join(str(x) for x in array.ravel()[:4])
    text = f"{array.min():.4g} to {array.max():.4g}"
    rows = array.ndim == 2 and array.shape[0] == 1
    return f"{text}, largest at {int(np.argmax(array))}" if rows else text
