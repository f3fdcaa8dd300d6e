"""The bill of materials follows the official schema and names what is in the bundle."""

import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ortune_toys.backends.scripted import Scripted
from tests.unit import studies
from tests.unit.bundle import several

from ortune.backends.bucketed import Bucketed
from ortune.bundle.engine.archive import open_bundle
from ortune.bundle.engine.manifest import SBOM, Manifest
from ortune.bundle.members import build_sbom
from ortune.bundle.pack import pack
from ortune.core.study import Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return several.study(tmp_path)


@pytest.fixture
def bundle(study: Study, tmp_path: Path) -> Path:
    return pack(study, tmp_path / "x.ortune", per_backend=True, licence="MIT OR Apache-2.0")


def bill_of(bundle: Path) -> Any:
    with zipfile.ZipFile(bundle) as file:
        return json.loads(file.read(SBOM))


def held(bundle: Path) -> Manifest:
    with open_bundle(bundle) as (_, manifest):
        return manifest


def demand_valid(text: str) -> None:
    pytest.importorskip("cyclonedx")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_it_follows_the_schema(bundle: Path, study: Study, tmp_path: Path) -> None:
    for path in (bundle, pack(study, tmp_path / "plain.ortune")):
        with zipfile.ZipFile(path) as file:
            demand_valid(file.read(SBOM).decode())


def test_libraries_follow_it_too(bundle: Path) -> None:
    manifest = held(bundle)
    member = next(iter(manifest.members.values()))
    more = {**manifest.members, "custom_ops/own.so": member, "models/toy/weights.bin": member}
    text = build_sbom(replace(manifest, members=more), {"somebody.s_plugins": "1+local"}).decode()
    demand_valid(text)
    found = {one["bom-ref"]: one for one in json.loads(text)["components"]}
    assert found["custom_ops/own.so"]["type"] == "library"
    assert found["models/toy/weights.bin"]["type"] == "data"
    assert found["pkg:pypi/somebody-s-plugins@1%2Blocal"]["version"] == "1+local"


def test_every_member_is_in_it_with_its_digest(bundle: Path) -> None:
    manifest, bill = held(bundle), bill_of(bundle)
    found = {
        one["name"]: one["hashes"][0]["content"] for one in bill["components"] if "hashes" in one
    }
    told = {name: member.sha256 for name, member in manifest.members.items() if name != SBOM}
    assert found == told
    kinds = {one["name"]: one["type"] for one in bill["components"]}
    assert kinds["models/toy.onnx"] == kinds["fallback/toy.onnx"] == "machine-learning-model"
    assert kinds["evidence.json"] == "data"


def test_packages_and_plugins_are_in_it(bundle: Path, study: Study) -> None:
    bill = bill_of(bundle)
    packages = {one["name"]: one.get("purl") for one in bill["components"] if "version" in one}
    release = study.job.versions["onnxruntime"].replace("+", "%2B")
    assert packages["onnxruntime"] == f"pkg:pypi/onnxruntime@{release}"
    assert "ortune-toys" in packages, "the winner runs on its backend"
    assert packages["python"] is None
    assert bill["metadata"]["tools"]["components"][0]["name"] == "ortune"
    assert bill["metadata"]["component"]["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
    properties = {one["name"]: one["value"] for one in bill["metadata"]["properties"]}
    assert properties["ortune:data"] == study.job.data_digest
    assert properties["ortune:plan 2"] == "clean @ cpu(threads=1)"


def test_a_package_whose_plugin_is_inside_another_is_in_it(tmp_path: Path) -> None:
    inside = Bucketed(inner=Scripted(threads=1), mask="a")
    bill = bill_of(pack(studies.study(tmp_path, backend=inside), tmp_path / "x.ortune"))
    assert "ortune-toys" in {one["name"] for one in bill["components"]}


def test_a_tuned_model_depends_on_its_original(bundle: Path) -> None:
    links = {one["ref"]: one["dependsOn"] for one in bill_of(bundle)["dependencies"]}
    assert links["models/toy.onnx"] == ["fallback/toy.onnx"]
    assert "models/toy.onnx" in links["bundle"]


def test_nothing_in_it_differs_from_one_packing_to_the_next(bundle: Path) -> None:
    bill = bill_of(bundle)
    assert "serialNumber" not in bill and "timestamp" not in bill["metadata"]
    assert not re.search(r"/(tmp|home|root)/", json.dumps(bill))
