"""What tuning a large decoder takes of memory: all processes together, and each at most.

    PYTHON -m benchmarks.search.memory [--time 5m] [--keep FOLDER] [COMMAND ...]

PYTHON is that of an environment which has ortune with its extras `transformers` and `text`. The
decoder has random weights of 1.5 GB in float32 and a tokenizer that is trained on news. Commands:
``export`` (from safetensors), ``apply`` (int4 weights), ``optimize`` (the default search, on the
CPU, a workload of `generate`); without names all three. Five times a second the proportional set
size (smaps_rollup: pages that processes share count once) of the command and of all that it has
started is added up, and apart from it what no file backs. Results: ``memory.json``, a row a
command; needs no quiet machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from tests.real.decoders import make_decoder, read_news

import ortune as ot
from benchmarks.result_files import result_file, write_results
from ortune.measurement.machine.machine import describe_machine, package_versions

SIZES = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 1024,
}
WORDS, TEXTS = 8000, 12
WORKLOAD = "generate(prompt=64, tokens=16)"
EVERY_S = 0.2


def main() -> None:
    """Make the decoder, run the commands and write what each took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="export, apply, optimize")
    parser.add_argument("--time", default="5m", help="of the search")
    parser.add_argument("--keep", type=Path, help="the decoder stays here")
    parser.add_argument("--small", action="store_true", help="a toy, to try the script")
    parser.add_argument("--out", type=Path, default=result_file("memory"))
    asked = parser.parse_args()
    with TemporaryDirectory() as name:
        root = asked.keep or Path(name)
        source, model = root / "decoder", root / "decoder" / "onnx" / "model.onnx"
        if not source.is_dir():
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
                other.submit(prepare, root, small=asked.small).result()
        rows = json.loads(asked.out.read_text())["rows"] if asked.out.is_file() else {}
        for title, words in list_commands(root, asked.time).items():
            if title in (asked.commands or (title,)):
                row = run_sampled(words, root)
                if title == "optimize":
                    row |= {"time": asked.time, "texts": TEXTS, "built": count_built(root / "run")}
                size = sum(one.stat().st_size for one in model.parent.iterdir())
                rows[title] = {**row, "file": size, "of_file": round(row["peak"] / size, 3)}
                print(f"{title}: {rows[title]['of_file']} of the file", flush=True)
                write_rows(asked.out, rows)


def prepare(root: Path, *, small: bool) -> None:
    """Write the decoder and its texts; what this takes lies in a process of its own."""
    make_decoder(root / "decoder", words=600 if small else WORDS, **{} if small else SIZES)
    (root / "texts.txt").write_text("\n".join(read_news()[:TEXTS]))


def write_rows(out: Path, rows: Mapping[str, Any]) -> None:
    """Write what has been measured."""
    about = {"machine": describe_machine(), "versions": package_versions()}
    write_results(out, {**about, "workload": WORKLOAD, "rows": rows})


def list_commands(root: Path, limit: str) -> Mapping[str, Sequence[str]]:
    """Return the words of every command."""
    source, out = root / "decoder", root / "decoder" / "onnx" / "model.onnx"
    data = ("--data", str(root / "texts.txt"))
    search = ("--workload", WORKLOAD, "--on", "cpu", "--time", limit, "-o", str(root / "run"))
    return {
        "export": ("export", str(source), "-o", str(out)),
        "apply": ("apply", str(source), "int4-weights", "-o", str(root / "int4.onnx")),
        "optimize": ("optimize", str(source), *data, *search),
    }


def run_sampled(words: Sequence[str], root: Path) -> dict[str, Any]:
    """Run a command of ortune; return the bytes of its processes at most, and its seconds."""
    began = time.monotonic()
    command = [str(Path(sys.executable).with_name("ortune")), *words]
    peaks: dict[int, dict[str, Any]] = {}
    most: dict[str, Any] = {"peak": 0}
    most_held = 0
    with (root / "log.txt").open("w") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log)
        process = psutil.Process(running.pid)
        while running.poll() is None:
            now = dict(read_sizes(process))
            for pid, one in now.items():
                known = peaks.setdefault(pid, {**one, "began_s": round(time.monotonic() - began)})
                for key in ("pss", "rss", "anonymous"):
                    known[key] = max(known[key], one[key])
            held = sum(one["anonymous"] for one in now.values())
            most_held = max(most_held, held)
            total = sum(one["pss"] for one in now.values())
            if total > most["peak"]:
                most = {
                    "peak": total,
                    "at_s": round(time.monotonic() - began),
                    "then": sorted(now.values(), key=lambda one: -int(one["pss"])),
                }
            time.sleep(EVERY_S)
    if running.returncode:
        raise SystemExit((root / "log.txt").read_text())
    each = sorted(peaks.values(), key=lambda one: -int(one["pss"]))
    return {
        **most,
        "held": most_held,
        "seconds": round(time.monotonic() - began),
        "processes": each[:12],
    }


def count_built(run: Path) -> int:
    """Return how many plans a search came to build: one that ended before tells little."""
    return sum(bool(trial.artefact and trial.size) for trial in ot.read_study(run).trials)


def read_sizes(process: psutil.Process) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield every process of a tree and its bytes now."""
    for one in (process, *process.children(recursive=True)):
        with suppress(OSError, psutil.Error, ValueError):
            lines = Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines()[1:]
            sizes = {
                key: int(rest.split()[0]) << 10 for key, rest in (x.split(":") for x in lines)
            }
            kind = "command" if one.pid == process.pid else name_process(one.cmdline())
            yield (
                one.pid,
                {
                    "process": kind,
                    "pss": sizes["Pss"],
                    "rss": sizes["Rss"],
                    "anonymous": sizes["Pss_Anon"],
                },
            )


def name_process(words: Sequence[str]) -> str:
    """Return what a process runs: its module, without the places of this machine."""
    module = next((b for a, b in pairwise(words) if a in ("-m", "-c")), "")
    return module.splitlines()[0][:80] if module else Path(next(iter(words), "")).name


if __name__ == "__main__":
    main()
