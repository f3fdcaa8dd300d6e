"""A decoder at int4: ours beside onnxruntime-genai's own builder, and both beside float32.

    PYTHON -m benchmarks.speed.generation [--rounds 7] [--prompt 64] [--tokens 64] [--threads 0]

PYTHON is that of an environment which has ortune with its extras `transformers` and `text`, and
onnxruntime-genai==0.18.0. The decoder has some 100 million parameters: random weights, a
tokenizer that is trained on news. Every folder is opened in fresh processes, in turns; each
writes one answer that does not count and then three, all after the same prompts. The figures are
medians over the rounds: first token, a later token, tokens a second, memory at most; what was
written stands beside. Results: ``generation.json``. Needs a machine that is idle otherwise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tests.real.decoders import make_decoder, read_news

import ortune as ot
from benchmarks.result_files import result_file, write_results
from ortune.backends.cpu import Cpu
from ortune.core import hub
from ortune.core.facts import TensorSpec
from ortune.core.hardware.memory import peak_rss
from ortune.data.sentences import list_cache_shapes, load_tokenizer
from ortune.data.sequences.generation import CachedDecoder, Generation
from ortune.data.stream import Stream
from ortune.data.synthetic import generate_feeds
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.machine.machine import describe_machine, package_versions

SIZES = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "max_position_embeddings": 1024,
}
WORDS = 8000
EXACT = ("raise-opset(to=23)", "simplify", "fuse-attention", "fuse-rms-norm", "fuse-silu")
"""Of what `optimize` does to such a decoder by itself."""
STEPS = {
    "float32": (),
    "int8": ("int8-weights(form=nbits)",),
    "int4": ("int4-weights(block=32)",),
}
"""Name of a row of ours -> the steps behind it."""
ANSWERS = 3


def main() -> None:
    """Make the folders, measure every row in turns and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0, help="of a session; 0: all CPUs")
    parser.add_argument("--out", type=Path, default=result_file("generation"))
    parser.add_argument("--small", action="store_true", help="a toy, to try the script")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        engine, folder = asked.row
        print(
            json.dumps(
                measure_row(engine, Path(folder), asked.prompt, asked.tokens, asked.threads)
            )
        )
        return
    with TemporaryDirectory() as name:
        rows = make_rows(Path(name), {} if asked.small else SIZES, 600 if asked.small else WORDS)
        runs: dict[str, list[Mapping[str, Any]]] = {title: [] for title, *_ in rows}
        settings = {key: getattr(asked, key) for key in ("prompt", "tokens", "threads")}
        words = [f"--{key}={value}" for key, value in settings.items()]
        for turn in range(asked.rounds):
            for title, engine, folder in rows if turn % 2 else reversed(rows):
                module = ("-m", "benchmarks.speed.generation", "--row", engine, str(folder))
                command = [sys.executable, *module, *words]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                runs[title].append(json.loads(done.stdout.splitlines()[-1]))
                print(f"{turn + 1}: {title}: {runs[title][-1]['token_ns'] / 1e6:.2f} ms a token")
    write_results(
        asked.out,
        {
            "machine": describe_machine(),
            "versions": package_versions(),
            "asked": {"rounds": asked.rounds, **settings},
            "rows": {title: summarize_runs(finished) for title, finished in runs.items()},
        },
    )


def make_rows(root: Path, sizes: Mapping[str, int], words: int) -> list[tuple[str, str, Path]]:
    """Return title, engine and folder of every row."""
    source = make_decoder(root / "decoder", words=words, **sizes)
    ot.export(str(source), out=source / "onnx" / "model.onnx")
    rows = []
    settings = hub.find_folder(source)
    assert settings is not None
    for name, steps in STEPS.items():
        folder = root / f"ours-{name}"
        hub.copy_side_files(settings, folder)
        ot.apply(source, steps=[*EXACT, *steps], out=folder / "model.onnx")
        rows.append((f"ortune {name}", "ortune", folder))
    for precision in ("fp32", "int4"):
        folder = root / f"builder-{precision}"
        words_of = ("-m", "onnxruntime_genai.models.builder", "-i", source, "-o", folder)
        more = ("-p", precision, "-e", "cpu", "-c", root / "cache")
        command = [sys.executable, *map(str, (*words_of, *more))]
        subprocess.run(command, check=True, capture_output=True)
        rows.append((f"builder {precision}, onnxruntime-genai", "genai", folder))
        rows.append((f"builder {precision}, ortune", "ortune", folder))
    return rows


def measure_row(
    engine: str, folder: Path, length: int, count: int, threads: int
) -> dict[str, Any]:
    """Write answers after the same prompts; return times in ns, tokens and memory in bytes."""
    settings = hub.find_folder(folder)
    assert settings is not None
    tokenizer = load_tokenizer(settings)
    texts = read_news()[: ANSWERS + 1]
    prompts = [np.array([(tokenizer.encode(text).ids * length)[:length]]) for text in texts]
    first, later, written = [], [], []
    with_engine = {"ortune": open_ours, "genai": open_genai}[engine]
    for at, tokens in enumerate(with_engine(folder, settings, prompts, count, threads)):
        start, times, answer = time.perf_counter_ns(), [], []
        for token in tokens:
            now = time.perf_counter_ns()
            times.append(now - start)
            answer.append(token)
            start = now
        if at:
            first.append(times[0])
            later += times[1:]
            written.append(answer)
    return {
        "first_token_ns": median(first),
        "token_ns": median(later),
        "tokens_per_s": 1e9 * len(later) / sum(later),
        "peak_rss": peak_rss(),
        "tokens": written,
    }


Answers = Iterator[Iterator[int]]


def open_ours(
    folder: Path, settings: hub.HubFolder, prompts: Sequence[Any], count: int, threads: int
) -> Answers:
    """Yield the tokens after each prompt, by our engine's session."""
    path = Path(hub.locate_model(folder))
    specs: Sequence[TensorSpec] = model_facts.read_facts(file.load(path), read=True).inputs
    with TemporaryDirectory() as name, Cpu(threads=threads).open(path) as session:
        shapes = list_cache_shapes(settings, specs)
        feeds = generate_feeds(specs, Path(name), shapes=shapes, ranges={}, count=1)
        decoder = CachedDecoder(session.run, Stream(feeds.stream)[0])
        for prompt in prompts:
            yield (int(token[0]) for token in islice(Generation(decoder, prompt), count))


def open_genai(
    folder: Path, settings: hub.HubFolder, prompts: Sequence[Any], count: int, threads: int
) -> Answers:
    """Yield the tokens after each prompt, by onnxruntime-genai."""
    import onnxruntime_genai as genai

    config = genai.Config(str(folder))
    if threads:
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
    model = genai.Model(config)

    def write(prompt: Any) -> Iterator[int]:
        parameters = genai.GeneratorParams(model)
        most = prompt.shape[1] + count
        parameters.set_search_options(max_length=most, min_length=most, do_sample=False)
        generator = genai.Generator(model, parameters)
        generator.append_tokens(prompt[0].tolist())
        for _ in range(count):
            generator.generate_next_token()
            yield int(generator.get_next_tokens()[0])

    yield from map(write, prompts)


def summarize_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians over the rounds, each round's figures and what was written."""
    names = ("first_token_ns", "token_ns", "tokens_per_s", "peak_rss")
    return {
        **{name: median(run[name] for run in runs) for name in names},
        "rounds": [{name: run[name] for name in names} for run in runs],
        "tokens": runs[0]["tokens"],
    }


if __name__ == "__main__":
    main()
