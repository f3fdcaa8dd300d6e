"""Every plugin, found by listing its folder, keeps the contract. A new file is tested at once."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from ortune.core import catalog, codec, spelling
from ortune.core.plugin import Plugin

ENTRIES = [
    (folder, name) for folder in catalog.BASES for name in catalog.names(catalog.base_of(folder))
]
HEAVY = {"onnx_ir", "onnxscript", "onnxruntime", "torch", "onnx", "PIL", "openvino"}


def test_every_folder_has_entries() -> None:
    assert {folder for folder, _ in ENTRIES} == set(catalog.BASES)


@pytest.mark.parametrize(("folder", "name"), ENTRIES)
def test_contract(folder: str, name: str) -> None:
    base = catalog.base_of(folder)
    cls: type[Plugin] = catalog.load(base, name)
    assert cls.__dataclass_params__.frozen, "a plugin is frozen"  # type: ignore[attr-defined]
    assert (cls.__doc__ or "").strip(), "a plugin says what it does"
    fields = dataclasses.fields(cls)
    assert all(f.default is not dataclasses.MISSING for f in fields), "every field has a default"
    documented = "\n".join(c.__doc__ or "" for c in cls.__mro__)
    assert all(f"{f.name}:" in documented for f in fields), "Attributes: documents every field"
    made = cls()
    again = codec.decode(base, json.loads(json.dumps(codec.encode(made))))
    assert again == made
    assert hash(again) == hash(made)
    assert spelling.parse(base, str(made)) == made
    assert cls.name() == name


def test_backends_and_metrics_import_nothing_heavy() -> None:
    """The command line lists them, and workers import them."""
    code = (
        "import sys\n"
        "from ortune.core import catalog\n"
        "for folder in ('backends', 'metrics', 'observers'):\n"
        "    base = catalog.base_of(folder)\n"
        "    for name in catalog.names(base): catalog.load(base, name)\n"
        "print(','.join(sorted(m for m in sys.modules if '.' not in m)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.strip().split(","))


def test_the_worker_never_imports_onnx_ir() -> None:
    code = "import sys, ortune.measurement.worker; print('onnx_ir' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
