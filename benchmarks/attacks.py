"""Each promise of the threat model, and the attacks on it that are tried and survived.

    python -m benchmarks.attacks [NAME ...]

Runs the tests of each promise and counts them; a result that stands is kept for promises that are
not named. What is skipped here, for want of a program or a package, counts as not tried.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.result_files import RESULTS, write_results

UNIT, E2E = "tests/unit", "tests/e2e"


@dataclass(frozen=True)
class Promise:
    """What is promised, how it is attacked, and the tests that do, as pytest names them."""

    promise: str
    attack: str
    tests: tuple[str, ...]


PROMISES: Mapping[str, Promise] = {
    "models": Promise(
        "a model is refused in two lines or computed",
        "broken, lying, cyclic, huge and linked files",
        (f"{UNIT}/graph/io/test_check.py", f"{E2E}/test_bad_input.py"),
    ),
    "bundles": Promise(
        "a bundle writes, names and runs nothing of its own",
        "forged zips, manifests, settings, signatures",
        (
            f"{UNIT}/bundle/test_hostile.py",
            f"{UNIT}/bundle/test_hostile_plans.py",
            f"{UNIT}/bundle/test_code_plans.py",
            f"{UNIT}/bundle/engine/test_archive.py",
            f"{UNIT}/bundle/engine/test_signing.py",
        ),
    ),
    "runs": Promise(
        "a run's folder is data",
        "names that lead out, links, code, threads",
        (f"{UNIT}/search/experiment/test_hostile_run.py",),
    ),
    "settings": Promise(
        "settings of a file only compute",
        "keys that write, load code or start threads",
        (f"{UNIT}/core/plugins/test_stored.py",),
    ),
    "current-folder": Promise(
        "code of the current folder does not run",
        "files named like modules beside each verb and each function of the user",
        (f"{E2E}/test_current_folder.py", f"{UNIT}/core/plugins/test_user_function.py"),
    ),
    "formats": Promise(
        "a library reads its listed formats alone",
        "other formats behind each suffix, lying headers",
        (
            f"{UNIT}/data/test_images.py",
            f"{UNIT}/data/test_sounds.py",
            f"{UNIT}/data/test_tables.py",
        ),
    ),
    "special-files": Promise(
        "no pipe, device or endless file is read",
        "each in the place of every kind of file, and archives that unpack to more",
        (f"{UNIT}/core/test_regular_file.py",),
    ),
    "sizes": Promise(
        "sizes are known before memory is taken",
        "constants, headers and archives that ask for gigabytes",
        (
            f"{UNIT}/graph/ir/test_evaluate.py",
            f"{UNIT}/transforms/test_growth.py",
            f"{UNIT}/data/test_sizes.py",
        ),
    ),
    "integers": Promise(
        "integers have the model's width",
        "overflow in each type, beside onnxruntime",
        (f"{UNIT}/graph/shapes/test_infer.py", "-k", "wrap or smallest or beyond"),
    ),
    "endless": Promise(
        "a run can be told to end",
        "models that compute for ever, signals, deadlines",
        (
            f"{E2E}/test_endless.py",
            f"{E2E}/test_optimize.py",
            f"{UNIT}/bundle/engine/test_engine.py",
        ),
    ),
    "http": Promise(
        "an HTTP client has its own share alone",
        "floods, bombs, slow readers and writers, damaged requests",
        (f"{UNIT}/serving/server/http", "-k", "hostile or slow or sockets or bodies"),
    ),
    "grpc": Promise(
        "a gRPC client has its own share alone",
        "silent streams, unread answers, damaged messages",
        (f"{UNIT}/serving/server/grpc",),
    ),
    "pages": Promise(
        "a live page answers to its owner alone",
        "wrong tokens, pages of other origins, other names of this machine, plans that are none",
        (f"{UNIT}/reporting/test_live.py", "-k", "token or others or packed"),
    ),
    "declared": Promise(
        "the event loop moves bytes alone",
        "data of another type, shape or size than the model takes",
        (
            f"{UNIT}/serving/server/repository/test_served.py",
            f"{UNIT}/serving/protocol/test_check.py",
        ),
    ),
    "loadtest": Promise(
        "a server that is asked cannot hold its client",
        "endless answers, lost links",
        (f"{UNIT}/serving/load_testing/test_drive.py",),
    ),
    "telemetry": Promise(
        "nothing leaves the machine",
        "each kind of process under strace",
        (f"{E2E}/test_nothing_leaves.py",),
    ),
    "streams": Promise(
        "closed and full streams lose no work",
        "stdout and stderr closed, full or cut, a folder that moves",
        (f"{E2E}/test_closed_output.py", f"{UNIT}/cli/test_streams.py"),
    ),
    "names": Promise(
        "no name steers a terminal or a page",
        "control characters in names of models, files, runs",
        (f"{UNIT}/cli/test_hostile_files.py",),
    ),
    "left-behind": Promise(
        "nothing is left behind",
        "verbs that fail, processes that are killed",
        (f"{UNIT}/cli/test_left_behind.py", f"{UNIT}/core/test_temporary_folder.py"),
    ),
    "machine": Promise(
        "a failure of the machine is no finding",
        "a full disk, no memory, kills and a lost terminal at each stage",
        (
            f"{E2E}/test_cut_short.py",
            f"{UNIT}/measurement/test_outside.py",
            f"{UNIT}/core/test_errors.py",
        ),
    ),
}


def attack(promise: Promise) -> dict[str, int]:
    """Run the tests of a promise; return how many were tried and how many of them survived."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ("-q", "-m", "long or not long", "-p", "no:cacheprovider", "--tb=line")
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *promise.tests],
            check=False,
        )
        seconds = round(time.monotonic() - began)
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    count = {name: int(suite.attrib[name]) for name in ("tests", "skipped", "failures", "errors")}
    tried = count["tests"] - count["skipped"]
    survived = tried - count["failures"] - count["errors"]
    return {"tried": tried, "survived": survived, "seconds": seconds}


def main() -> None:
    """Attack, and write the results after each promise."""
    parser = argparse.ArgumentParser(prog="benchmarks.attacks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROMISES))
    asked = parser.parse_args().names
    if unknown := set(asked) - set(PROMISES):
        parser.error(f"no promise {', '.join(sorted(unknown))}")
    path = RESULTS / "attacks.json"
    results = json.loads(path.read_text()) if path.is_file() else {}
    for name in asked or PROMISES:
        results[name] = attack(PROMISES[name])
        counts = "{survived} of {tried} survived".format(**results[name])
        print(f"{name}, attacked by {PROMISES[name].attack}: {counts}")
        write_results(path, {key: results[key] for key in PROMISES if key in results})


if __name__ == "__main__":
    main()
