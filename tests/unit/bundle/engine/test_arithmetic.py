"""A bundle says so where the CPU differs in what its plan rests on, and only there."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.bundle.content import read_arithmetic
from ortune.bundle.engine.golden import list_cpu_differences
from ortune.bundle.engine.load import load_engine
from ortune.bundle.engine.manifest import MANIFEST, Arithmetic
from ortune.bundle.pack import pack
from ortune.core.hardware import cpus
from ortune.core.plugins import codec
from ortune.core.step import Recipe
from ortune.core.trial import Plan
from ortune.measurement.machine import machine

INT8 = Arithmetic(5, 3, (), ("avx2", "avx512f", "avx512_vnni"), "Linux x86_64")


def _forget() -> None:
    """Drop what was read of the CPU: another test reads this machine's own."""
    cpus.instruction_sets.cache_clear()
    cpus.cpu_model.cache_clear()


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Write a CPU's flags where Linux would."""

    def fake(flags: str, key: str = "flags") -> dict[str, str]:
        path = tmp_path / "cpuinfo"
        path.write_text(f"processor\t: 0\nmodel name\t: Made up\n{key}\t\t: fpu {flags}\n")
        monkeypatch.setattr(cpus, "CPUINFO", path)
        _forget()
        return machine.describe_machine() | {"system": "Linux x86_64"}

    yield fake
    _forget()


@pytest.mark.parametrize(
    ("verified", "flags", "words"),
    [
        (INT8, "avx2 avx512f avx512_vnni", None),
        (INT8, "avx2 avx_vnni", None),
        (INT8, "avx2 amx_int8", None),
        (INT8, "avx2", "3 of 5 integer layers can saturate"),
        (INT8, "avx2 avx512f", "3 of 5 integer layers can saturate"),
        (replace(INT8, risky=0), "avx2", "slower here: this CPU has no VNNI"),
        (replace(INT8, integers=0, risky=0), "avx2", None),
        (replace(INT8, instructions=("avx2",)), "avx2 avx512_vnni", "for the better"),
        (replace(INT8, instructions=("avx2",)), "avx2", None),
        (replace(INT8, instructions=("avx2",), risky=0), "avx2 avx_vnni", None),
        (replace(INT8, instructions=("unknown",)), "avx2", None),
        (Arithmetic(), "avx2", None),
        (Arithmetic(0, 0, ("bfloat16",), ("avx512_bf16",)), "avx2", "computes in bfloat16"),
        (Arithmetic(0, 0, ("bfloat16",), ("avx512_bf16",)), "amx_bf16", None),
        (Arithmetic(0, 0, ("float16",), ("avx2",)), "avx2", None),
        (Arithmetic(0, 0, ("float16",), ("avx512_fp16",)), "avx2", "computes in float16"),
        (replace(INT8, system="Linux aarch64", instructions=("asimddp",)), "avx2", "aarch64"),
    ],
)
def test_what_is_said(verified: Arithmetic, flags: str, words: str | None, cpu) -> None:  # type: ignore[no-untyped-def]
    said = list(list_cpu_differences(verified, cpu(flags)))
    assert (len(said), words is None or words in said[0]) == (words is not None, True), said


def test_a_cpu_that_tells_nothing_is_not_judged(cpu) -> None:  # type: ignore[no-untyped-def]
    assert not list(list_cpu_differences(INT8, cpu("")))


def test_arm_without_dot_products(cpu) -> None:  # type: ignore[no-untyped-def]
    verified = Arithmetic(5, 0, (), ("asimddp",), "Linux aarch64")
    here = cpu("bf16", "Features") | {"system": "Linux aarch64"}
    assert "no dot product" in next(list_cpu_differences(verified, here))


def test_manifests_without_the_record_are_read() -> None:
    assert codec.decode(Arithmetic, {}) == Arithmetic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not list(list_cpu_differences(Arithmetic(), {"instruction sets": "avx2"}))


QDQ = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1,4] x) => (float[1,2] y)
<float s = {0.1}, uint8 z = {0}, float ws = {0.01}, int8 wz = {0},
 int8[4,2] w = {127, 1, 127, 1, 1, 1, 1, 1}> {
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  v = DequantizeLinear(w, ws, wz)
  y = MatMul(d, v)
}
"""


def test_what_a_bundle_records(tmp_path: Path) -> None:
    path = studies.write_model(tmp_path / "int8.onnx", QDQ)
    plan = Plan(Recipe("int8", ()), Cpu())
    here = {"instruction sets": "avx2 avx_vnni", "system": "Linux x86_64"}
    found = read_arithmetic(plan, [path], here)
    assert found == Arithmetic(1, 1, (), ("avx2", "avx_vnni"), "Linux x86_64")
    small = QDQ.replace("127", "63")
    assert read_arithmetic(plan, [studies.write_model(path, small)], here).risky == 0
    hint = Plan(Recipe("bf16", ()), Openvino(precision="bf16"))
    assert read_arithmetic(hint, [], here).halves == ("bfloat16",)


def test_a_bundle_warns_on_another_cpu_and_an_old_one_does_not(tmp_path: Path, cpu) -> None:  # type: ignore[no-untyped-def]
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")
    with zipfile.ZipFile(bundle) as old:
        members = {name: old.read(name) for name in old.namelist()}
    manifest = json.loads(members[MANIFEST])

    def load_with(arithmetic: Arithmetic | None) -> list[str]:
        (plan,) = manifest["plans"]
        plan.pop("arithmetic", None)
        if arithmetic is not None:
            plan["arithmetic"] = codec.encode(arithmetic)
        with zipfile.ZipFile(bundle, "w") as new:
            for name, content in (members | {MANIFEST: json.dumps(manifest).encode()}).items():
                new.writestr(name, content)
        cpu("avx2")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load_engine(bundle).close()
        return [str(one.message) for one in caught if one.category is RuntimeWarning]

    system = machine.describe_machine()["system"]
    assert "can saturate" in load_with(replace(INT8, system=system))[0]
    assert load_with(None) == []
