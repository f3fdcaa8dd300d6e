"""Fixes that name an option are followed: the situation is another then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortune.cli.main import main
from ortune.graph.io import file
from tests.unit.quantizing import model_of, normal
from tests.unit.test_fixes import OF_OTHER_PROGRAMS, OPTION, list_fixes

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[b, 32] x) => (float[b, 32] y) { m = MatMul(x, w) y = Relu(m) }"""

FOLLOWED = {
    "convert M D --reduce-range": "convert M D --reduce-range --precision int8",
    "convert M D --precision int8 --format qoperator": "convert M D --precision int8",
    "convert M D --precision int8 --dynamic-conv --data D": (
        "convert M D --precision int8 --dynamic-conv"
    ),
    "convert M D --precision fp8": "convert M D --precision fp8 --target gpu",
    "convert M D --precision fp8 --target gpu": (
        "convert M D --precision fp8 --target gpu --ranges-from X"
    ),
    "apply M int8-dynamic -o O --threshold 0.1": (
        "apply M int8-dynamic -o O --threshold 0.1 --exclude-from X"
    ),
    "apply M simplify -o D": "apply M simplify -o D --force",
    "bench F --batch 3": "bench F --shape x:1x7",
    "sensitivity M": "sensitivity M --data X",
    "optimize M --labels L": "optimize M --labels L --data X",
    "optimize M --max-latency 5ms": "optimize M --max-latency 5ms --batches 1,4 -o D",
    "optimize M --max-latency 5ms --batches 1,4 --workload throughput": (
        "optimize M --max-latency 5ms --batches 1,4 --workload latency -o D"
    ),
    "optimize M --batches 1,2 --evaluate x:y": "optimize M --batches 1,2 --data X -o D",
    "optimize M --state y:x --data D": "optimize M --state y:x --data X --sequence 2 -o D",
    "verify M M --bisect --evaluate x:y": "verify M M --bisect --data X",
    "serve X --no-http --no-grpc": "serve X --no-http",
}
"""A command that is refused -> what its fix says, on files of which some are wrong too.

Where the work behind it would be long the followed command ends at the next thing amiss: a file
that is there already (D), or is of no use (X).
"""

ELSEWHERE = {"--range", "--shape", "--unpack-limit"}
"""Options that `test_fixes` follows."""

LONG = {
    *("--allow-custom-ops", "--allow-fallback", "--baseline", "--budget", "--by", "--calibration"),
    *("--client", "--compare", "--compiled", "--connections", "--dynamic", "--environment"),
    *(
        "--fixed-shapes",
        "--fold-preprocess",
        "--for",
        "--grpc-port",
        "--help",
        "--ignore-output",
        "--input",
        "--json",
    ),
    *(
        "--levels",
        "--licence",
        "--list",
        "--memory-limit",
        "--model",
        "--name",
        "--on",
        "--opt-level",
    ),
    *("--original", "--portable", "--processes", "--plan", "--rate", "--step"),
    *("--simulate", "--state-dict-key", "--tensorrt-cache", "--threads", "--time"),
    *("--token-file", "--tolerance", "--unconfirmed", "--unsafe-pickle", "--watch"),
    *("--augment", "--end-to-end", "--executor", "--host", "--port", "--version"),
}
"""Options that no test follows: each needs a run, a server, a GPU or another package first."""


def prepare(folder: Path) -> dict[str, str]:
    """Write what the commands name; return word -> path."""
    x = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    model = file.save(model_of(MODEL, {"w": normal(32, 32)}), folder / "m.onnx")
    fixed = MODEL.replace("b, 32", "2, 8")
    file.save(model_of(fixed, {"w": normal(8, 8)}), folder / "f.onnx")
    np.savez(folder / "d.npz", x=x)
    (folder / "labels.csv").write_text("\n".join("01234567") + "\n")
    (folder / "x.json").write_text("{}")
    names = {"D": "d.npz", "F": "f.onnx", "L": "labels.csv", "O": "o.onnx"}
    return {"M": str(model), "X": str(folder / "x.json")} | {
        word: str(folder / name) for word, name in names.items()
    }


def list_changes(refused: str, followed: str) -> set[str]:
    """Return the options that only one of two commands has, or has with another value."""
    before, after = refused.split(" --"), followed.split(" --")
    return {f"--{part.split()[0]}" for part in {*before[1:]} ^ {*after[1:]}}


@pytest.mark.parametrize("refused", FOLLOWED)
def test_what_a_fix_says_changes_the_situation(
    refused: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = prepare(tmp_path)

    def run(words: str) -> tuple[int, str, str]:
        code = main([places.get(word, word) for word in words.split()])
        what, _, fix = capsys.readouterr().err.rpartition("  fix: ")
        return code, what.strip().rpartition("\n")[2], fix

    code, what, fix = run(refused)
    assert code == 2 and list_changes(refused, FOLLOWED[refused]) & set(OPTION.findall(fix)), fix
    code, otherwise, _ = run(FOLLOWED[refused])
    assert code == 0 or otherwise != what, otherwise


def test_an_option_that_a_fix_names_is_followed_or_listed() -> None:
    named = {option for fix in list_fixes() for option in OPTION.findall(fix.text)}
    shown = {option for pair in FOLLOWED.items() for option in OPTION.findall(" ".join(pair))}
    assert named - OF_OTHER_PROGRAMS == (shown & named) | ELSEWHERE | LONG
    assert not LONG & (shown | ELSEWHERE)
