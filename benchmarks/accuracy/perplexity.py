"""What fewer bits cost a decoder that knows its language: perplexity on articles it has not seen.

    PYTHON -m benchmarks.accuracy.perplexity [--steps 400]

A small decoder is trained here on 250 news articles that gensim ships; 100 others judge it. Rows
are int8 and int4 by ours, and int4 by onnxruntime-genai's builder where PYTHON has the package.
Of each: perplexity, that of float32 on the same articles, and the change with its interval, which
holds it with 90 % (bootstrap over articles). Results: ``perplexity.json``.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.real.decoders import make_decoder, read_news, train_decoder

import ortune as ot
from benchmarks.result_files import result_file, write_results
from ortune.core.python_process import make_python_command
from ortune.measurement.machine.machine import describe_machine, package_versions

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}
WORDS, TRAINED_ON = 1000, 250
STEPS = {
    "int8": ["int8-weights(form=nbits)"],
    "int4": ["int4-weights(block=32)"],
    "int4, gptq": ["int4-weights(block=32,method=gptq)"],
}
"""Name of a row of ours -> the steps behind it."""


def main() -> None:
    """Train, quantize, judge and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="of training")
    parser.add_argument("--out", type=Path, default=result_file("perplexity"))
    asked = parser.parse_args()
    articles = read_news()
    with TemporaryDirectory() as name:
        root = Path(name)
        held_out, calibration = root / "held-out.txt", root / "calibration.txt"
        held_out.write_text("\n".join([*articles[TRAINED_ON:], *read_news("lee.cor")]))
        calibration.write_text("\n".join(articles[:64]))
        source = make_decoder(root / "decoder", words=WORDS, **SIZES)
        untrained = export_decoder(source, root / "untrained.onnx")
        train_decoder(source, articles[:TRAINED_ON], asked.steps)
        trained = export_decoder(source, source / "onnx" / "model.onnx")
        rows = {"untrained": judge_file(source, untrained, held_out)}
        for title, path in quantize_decoder(source, trained, calibration, root):
            rows[title] = judge_file(source, path, held_out)
            print(f"{title}: {rows[title]}")
    write_results(
        asked.out,
        {
            "machine": describe_machine(),
            "versions": package_versions(),
            "steps": asked.steps,
            "rows": rows,
        },
    )


def export_decoder(source: Path, out: Path) -> Path:
    """Export a folder's decoder."""
    out.parent.mkdir(exist_ok=True)
    return ot.export(str(source), out=out).path


def quantize_decoder(
    source: Path, trained: Path, calibration: Path, root: Path
) -> Iterator[tuple[str, Path]]:
    """Yield the title and the file of every row."""
    for title, steps in STEPS.items():
        out = root / f"{title.replace(', ', '-')}.onnx"
        ot.apply(trained, steps=["simplify", *steps], data=calibration, out=out)
        yield title, out
    if importlib.util.find_spec("onnxruntime_genai") is not None:
        folder = root / "builder"
        words = ("-m", "onnxruntime_genai.models.builder", "-i", source, "-o", folder)
        more = ("-p", "int4", "-e", "cpu", "-c", root / "cache")
        command = make_python_command(*words, *more, python=Path(sys.executable))
        subprocess.run(command, check=True, capture_output=True)
        yield "int4, onnxruntime-genai's builder", folder / "model.onnx"


def judge_file(source: Path, path: Path, texts: Path) -> dict[str, Any]:
    """Return perplexity of a file and of the folder's own, and the change with its interval."""
    compared = ot.verify(source, path, data=texts, budget="perplexity<=base+1")
    score = compared.scores[0]
    change = None if score.change is None else asdict(score.change)
    return {"perplexity": score.value, "float32": score.base, "change": change}


if __name__ == "__main__":
    main()
