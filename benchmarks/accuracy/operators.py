"""Every operator of onnxruntime's CPU provider as a small model, through the verbs that rewrite.

    python -m benchmarks.accuracy.operators [--jobs 2] [--only TEXT] [--out FILE]

A model is inspected, simplified, and converted to fp16 and to int8, with and without samples, by
the command line itself, in a process of its own. What a command writes is run again and compared
with the original at optimization level `disabled`. There are two good ends: the answers are right
within the precision, or the command refuses in two lines. Everything else is told by name.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from tests import zygote
from tests.backend_cases import Case

from benchmarks.accuracy.operator_cases import find_cases, make_case, run_model
from benchmarks.result_files import RESULTS, write_results
from ortune.quantizers.common.float16.overflow import FLOAT16, MASK
from ortune.search.recipe.compare import EXACT_DB, find_exact_db

Row = dict[str, Any]

COMMANDS: Mapping[str, Sequence[str]] = {
    "inspect": ("inspect", "MODEL"),
    "simplify": ("apply", "MODEL", "simplify", "-o", "OUT"),
    "fp16": ("convert", "MODEL", "OUT", "--precision", "fp16"),
    "apply fp16": ("apply", "MODEL", "fp16", "-o", "OUT"),
    "int8": ("convert", "MODEL", "OUT", "--precision", "int8", "--reduce-range"),
    "int8 with data": (
        *("convert", "MODEL", "OUT", "--precision", "int8", "--reduce-range"),
        *("--data", "DATA"),
    ),
}
RELATIVE = {
    "simplify": 0.0,
    "fp16": 2**-8,
    "apply fp16": 2**-8,
    "int8": 0.1,
    "int8 with data": 0.1,
}
"""Error of an output by its norm that a precision explains: 48 and 20 dB; 0 is what a rewrite may
change that is exact, by the types that the model computes in."""
ROUNDINGS = {
    "simplify": 0.0,
    "fp16": 2**-11,
    "apply fp16": 2**-11,
    "int8": 2**-8,
    "int8 with data": 2**-8,
}
"""Step of the precision's grid: to the value itself, for int8 to the largest of the tensor."""
_TIMES = 4
"""An error may be so many times what rounded inputs alone make of the original's answers."""
_TINY = 1e-12
"""Error that is none, of an output of zeros."""
_DEADLINE_S = 180.0
WARM = make_case(
    "warm", "(float[4, 32] x, float[32, 32] w) => (float[4, 32] y) { y = MatMul(x, w) }"
)
GOOD = ("right", "refused", "not judged")
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")


def main() -> None:
    """Examine the cases that are asked for and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="cases with this text in their name")
    parser.add_argument("--every", type=int, default=1, help="take one of so many cases")
    parser.add_argument("--out", type=Path, default=RESULTS / "operators.json")
    asked = parser.parse_args()
    found, missing = find_cases()
    chosen = [case for case in found if asked.only in case.name][:: asked.every]
    results = summarize_rows(examine_cases(chosen, asked.jobs))
    write_results(asked.out, {**results, "not built": missing})
    print(json.dumps(results["counts"], indent=1))


def summarize_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """Return how often what was the end, why commands refused, and each end that is not good."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    reasons: dict[str, Counter[str]] = {name: Counter() for name in COMMANDS}
    findings = []
    for row in rows:
        part = "onnx's cases" if row["name"].startswith("test_") else "operators"
        for name, end in row["ends"].items():
            word, _, reason = end.partition(": ")
            counter = counts.setdefault(part, {}).setdefault(name, Counter())
            counter[word if word in GOOD else "other"] += 1
            if word == "refused":
                reasons[name][re.sub(r"'[^']*'|\d+", "...", reason)[:100]] += 1
            if word not in GOOD:
                findings.append({"case": row["name"], "command": name, "end": end})
    common = {name: dict(counter.most_common(12)) for name, counter in reasons.items()}
    return {"counts": counts, "refusals": common, "findings": findings}


def examine_cases(cases: Sequence[Case], jobs: int = 1) -> list[Row]:
    """Return a row a case, in `jobs` processes at once; what kills its process is an end too."""
    if jobs == 1:
        return _examine_share(cases)
    shares = [list(cases[k::jobs]) for k in range(jobs)]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        rows = [row for part in pool.map(_examine_share, shares) for row in part]
    return sorted(rows, key=lambda row: str(row["name"]))


def _examine_share(cases: Sequence[Case]) -> list[Row]:
    from ortune.core.temporary_folder import open_temporary_folder

    rows = []
    with zygote.starting():
        with open_temporary_folder() as folder:
            _examine_case(WARM, Path(folder))  # what it imports, forks need not
        for at, case in enumerate(cases, 1):
            began = time.monotonic()
            with open_temporary_folder() as folder:
                row = _examine_apart(case, Path(folder))
            row["seconds"] = round(time.monotonic() - began, 2)
            rows.append(row)
            bad = {k: v for k, v in row["ends"].items() if not v.startswith(GOOD)}
            if bad or at % 50 == 0:
                print(f"{at} of {len(cases)}: {row['name']} {bad or ''}", flush=True)
    return rows


def _examine_apart(case: Case, folder: Path) -> Row:
    """Examine a case in a fork."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_examine_case, args=(case, folder))
    process.start()
    process.join(_DEADLINE_S)
    row: Row = {"name": case.name, "operator": _list_operators(case.model), "ends": {}}
    told = folder / "ends.jsonl"
    for line in told.read_text().splitlines() if told.exists() else ():
        row["ends"].update(json.loads(line))
    if process.exitcode != 0:
        process.kill()
        ended = "hangs" if process.exitcode is None else f"process ended by {process.exitcode}"
        left = [name for name in COMMANDS if name not in row["ends"]]
        row["ends"][left[0] if left else "inspect"] = f"crash: {ended}"
    return row


def _list_operators(model: onnx.ModelProto) -> str:
    versions = {entry.domain: entry.version for entry in model.opset_import}
    names = {
        f"{f'{node.domain}::' if node.domain else ''}{node.op_type}-{versions.get(node.domain)}"
        for node in model.graph.node
    }
    return ", ".join(sorted(names))


def _examine_case(case: Case, folder: Path) -> None:
    model = folder / "model.onnx"
    model.write_bytes(case.model.SerializeToString())
    reference, plain = _Reference(case), _write_samples(case, folder)
    with chdir(folder), (folder / "ends.jsonl").open("a") as told:
        for name, words in COMMANDS.items():
            if "DATA" in words and not plain:
                continue
            out = folder / f"{name}.onnx"
            places = {"MODEL": "model.onnx", "OUT": out.name, "DATA": "data"}
            code, text = _run_command([places.get(word, word) for word in words])
            end = _judge_end(code, text)
            if end == "right" and name in RELATIVE:
                end = reference.judge(out, name) or end
            told.write(json.dumps({name: end}) + "\n")
            told.flush()


def _write_samples(case: Case, folder: Path) -> bool:
    """Write the inputs as samples where NumPy has their types."""
    arrays = case.inputs.values()
    if not arrays or not all(isinstance(a, np.ndarray) and a.dtype.kind in "biuf" for a in arrays):
        return False
    (folder / "data").mkdir()
    np.savez(folder / "data" / "0.npz", **case.inputs)
    return True


def _run_command(words: Sequence[str]) -> tuple[int, str]:
    """Run a command line; return its exit code and what it wrote to stderr."""
    from ortune.cli.main import main as ortune

    path = Path("stderr.txt")
    kept = os.dup(1), os.dup(2)
    with path.open("w") as errors, Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        try:
            with redirect_stdout(nothing), redirect_stderr(errors):
                code = ortune(words)
        finally:
            for at, old in enumerate(kept, 1):
                os.dup2(old, at)
                os.close(old)
    return code, path.read_text(errors="replace")


def _judge_end(code: int, text: str) -> str:
    """Return how a command ended: right so far, refused with its reason, or what is odd."""
    lines = text.strip().splitlines()
    odd = next((line for line in lines if "Traceback" in line or "Warning:" in line), None)
    if odd is not None or " unexpected " in text:
        return f"unclean: {odd or ' / '.join(lines)}"[:500]
    if code == 0:
        return "right"
    two = lines[-2:]
    if code == 2 and len(two) == 2 and two[0].startswith("ortune ") and "fix: " in two[1]:
        return f"refused: {two[0].partition(': ')[2]}"[:300]
    return f"exit {code}: {' / '.join(lines[-3:])}"[:500]


class _Reference:
    """What a case's model answers by itself, and what moves its answers."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._problem = ""
        self._rounded: dict[float, list[Any]] = {}
        least_db = EXACT_DB
        with suppress(ir.serde.SerdeError):  # onnx_ir reads no maps
            least_db = find_exact_db(ir.serde.deserialize_model(case.model))
        self._exact = 10 ** (-least_db / 20)
        content = case.model.SerializeToString()
        try:
            self.expected = run_model(content, case.inputs, LEVELS[0])
            again = run_model(content, case.inputs, LEVELS[0])
        except Exception as error:  # whatever the runtime raises
            self._problem = f"not judged: the runtime does not run the model: {error}"[:200]
            return
        self._random = compare_outputs(self.expected, again, 0, []) is not None
        self._levels: tuple[str, ...] = LEVELS[:1]
        for level in LEVELS[1:]:
            try:
                answer = run_model(content, case.inputs, level)
            except Exception:
                continue
            if compare_outputs(self.expected, answer, 1e-4, []) is None:
                self._levels += (level,)

    def judge(self, path: Path, name: str) -> str | None:
        """Return what is wrong with the file that a command wrote, or None."""
        if self._problem:
            return self._problem
        content = path.read_bytes()
        for level in self._levels:
            try:
                answer = run_model(content, self._case.inputs, level)
            except Exception as error:
                return f"wrong: does not run at {level}: {' '.join(str(error).split())[:300]}"
            tolerance = np.inf if self._random else RELATIVE[name] or self._exact
            found = compare_outputs(self.expected, answer, tolerance, [])
            if found:  # only then are rounded inputs worth their time
                moved = self._move(ROUNDINGS[name])
                found = compare_outputs(self.expected, answer, tolerance, moved)
            if found:
                return f"wrong: at {level}: {found}"
        return None

    def _move(self, step: float) -> list[list[Any]]:
        """Return the original's answers to inputs off by a step of the precision, up and down."""
        if not step or self._random:
            return []
        if step not in self._rounded:
            rng, found = np.random.default_rng(0), []
            for _ in range(8):
                inputs = {k: _shake(a, step, rng) for k, a in self._case.inputs.items()}
                content = _shake_weights(self._case.model, step, rng).SerializeToString()
                try:
                    found.append(run_model(content, inputs, LEVELS[0]))
                except Exception:
                    continue
            self._rounded[step] = found
        return self._rounded[step]


def _shake_weights(
    model: onnx.ModelProto, step: float, rng: np.random.Generator
) -> onnx.ModelProto:
    shaken = onnx.ModelProto()
    shaken.CopyFrom(model)
    for tensor in shaken.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(_shake(array, step, rng), tensor.name))
    return shaken


def _shake(value: Any, step: float, rng: np.random.Generator) -> Any:
    if isinstance(value, list):
        return [_shake(one, step, rng) for one in value]
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.size:
        return value
    finite = np.where(np.isfinite(value), np.abs(value), 0)
    size = finite.max() if step > 2**-10 else finite
    sign = rng.choice([-1.0, 1.0], size=value.shape)
    return (value + step * size * sign).astype(value.dtype)


def compare_outputs(
    expected: Any, actual: Any, relative: float, moved: Sequence[Any]
) -> str | None:
    """Return how answers differ beyond what is explained, or None.

    Args:
        relative: Norm of the error over the norm of the output that is right in any case; where
            it is infinite, types and shapes alone are compared.
        moved: Answers of the original to rounded inputs: an error may be several times as large
            as theirs, and what is exact may differ where one of them does.
    """
    if isinstance(expected, dict) and isinstance(actual, dict):
        expected, actual = sorted(expected.items()), sorted(actual.items())
    if isinstance(expected, list | tuple):
        if not isinstance(actual, list | tuple) or len(actual) != len(expected):
            return "another number of values"
        alike = [m for m in moved if len(m) == len(expected)]
        for at, (one, other) in enumerate(zip(expected, actual, strict=True)):
            if text := compare_outputs(one, other, relative, [m[at] for m in alike]):
                return f"{at}: {text}"
        return None
    if expected is None or actual is None:
        return None if expected is actual else f"{expected} became {actual}"
    return _compare_arrays(
        np.asarray(expected), np.asarray(actual), relative, [np.asarray(m) for m in moved]
    )


def _compare_arrays(
    one: np.ndarray, other: np.ndarray, relative: float, moved: Sequence[np.ndarray]
) -> str | None:
    if one.dtype != other.dtype:
        return f"{one.dtype} became {other.dtype}"
    if relative == np.inf:
        return None if one.ndim == other.ndim else f"rank {one.ndim} became {other.ndim}"
    if one.shape != other.shape:
        explained = any(m.shape != one.shape for m in moved)
        return None if explained else f"shape {one.shape} became {other.shape}"
    alike = [m for m in moved if m.shape == one.shape]
    if one.dtype.kind == "f" or one.dtype.name == "bfloat16":
        floats = [m.astype(np.float64) for m in alike]
        return _compare_floats(one.astype(np.float64), other.astype(np.float64), relative, floats)
    if (one == other).all() or any((m != one).any() for m in alike):
        return None
    return f"{(one != other).sum()} of {one.size} values, {_show(one, other, one != other)}"


def _compare_floats(
    one: np.ndarray, other: np.ndarray, relative: float, moved: Sequence[np.ndarray]
) -> str | None:
    masked = (np.abs(one) >= MASK) & (np.abs(other) >= FLOAT16.largest)
    masked &= np.sign(one) == np.sign(other)
    one, other, *moved = (np.where(masked, 0.0, a) for a in (one, other, *moved))
    with np.errstate(invalid="ignore"):
        unlike = ~(np.isfinite(one) & np.isfinite(other) | np.isclose(one, other, equal_nan=True))
    for m in moved:
        unlike &= np.isfinite(m) == np.isfinite(one)
    if unlike.any():
        return f"{unlike.sum()} of {one.size} not finite alike, {_show(one, other, unlike)}"
    both = np.isfinite(one) & np.isfinite(other)
    error = float(np.linalg.norm(one[both] - other[both]))
    allowed = relative * float(np.linalg.norm(one[both]))
    for m in moved:
        shared = both & np.isfinite(m)
        allowed = max(allowed, _TIMES * float(np.linalg.norm(one[shared] - m[shared])))
    if error <= allowed + _TINY:
        return None
    return f"error {error:.3g} where {allowed:.3g} is explained, {_show(one, other, both)}"


def _show(one: np.ndarray, other: np.ndarray, where: np.ndarray) -> str:
    return f"such as {one[where][:3]} to {other[where][:3]}"


if __name__ == "__main__":
    main()
