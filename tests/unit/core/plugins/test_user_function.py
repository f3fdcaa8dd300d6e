"""Functions are asked for by what they are, before one is called."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ortune.core.budget import Budget
from ortune.core.errors import BadSettings
from ortune.core.facts import TensorSpec
from ortune.core.plugins import user_function
from ortune.data import feeds

KINDS = {
    "metric": user_function.METRIC,
    "evaluate": user_function.EVALUATE,
    "data": user_function.DATA,
}
CODE = """
import functools, os
from os import system
from subprocess import call
called = []
def right(*args): called.append(args)
def none(): called.append(())
def one(run): called.append(run)
def three(expected, actual, label): called.append(label)
def four(a, b, c, d): called.append(d)
def named(*, key): called.append(key)
hidden = functools.partial(os.system, "true")
number = 3
class Maker:
    def __init__(self, *args): called.append(args)
    def __call__(self, run): called.append(run)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "asked_for.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield "asked_for"
    sys.modules.pop("asked_for", None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "path", ["os:system", "builtins:eval", "subprocess:call", "shutil:rmtree", "antigravity:x"]
)
def test_what_is_pythons_own_is_neither_imported_nor_called(kind, path):
    module = path.partition(":")[0]
    before = module in sys.modules
    with pytest.raises(BadSettings) as refused:
        user_function.import_function(path, *KINDS[kind])
    assert refused.value.what == f"{path} is not a{'n' * (kind == 'evaluate')} {kind} function"
    assert "of your own" in refused.value.fix
    assert (module in sys.modules) == before


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("metric", ("right", "three"), ("none", "one", "four", "named")),
        ("evaluate", ("right", "one"), ("none", "three", "four", "named")),
        ("data", ("right", "none", "Maker"), ("one", "three", "four", "named")),
    ],
)
def test_the_signature_is_checked_before_a_call(module, kind, right, wrong):
    for name in right:
        assert user_function.import_function(f"{module}:{name}", *KINDS[kind])
    for name in (*wrong, "system", "call", "hidden", "number"):
        with pytest.raises(BadSettings, match=f"{module}:{name} is not a") as refused:
            user_function.import_function(f"{module}:{name}", *KINDS[kind])
        assert len(refused.value.fix.splitlines()) == 1
    assert not sys.modules[module].called


def test_what_is_not_there_is_named(module):
    with pytest.raises(BadSettings, match="has no function 'nothing'"):
        user_function.import_function(f"{module}:nothing", *user_function.DATA)
    with pytest.raises(BadSettings, match="cannot read 'x'"):
        user_function.import_function("x", *user_function.DATA)


def test_a_file_of_the_users_with_a_name_of_pythons_own_counts(tmp_path, monkeypatch):
    (tmp_path / "colorsys.py").write_text("def samples(): return [{'x': [1.0]}]")
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("colorsys", None)
    assert user_function.import_function("colorsys:samples", *user_function.DATA)
    sys.modules.pop("colorsys", None)


def test_a_function_is_named_by_its_file(tmp_path, monkeypatch):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "near.py").write_text("LIMIT = 2\n")
    (folder / "my-score.py").write_text(
        "import near\ndef score(expected, actual, label): return near.LIMIT\n"
    )
    monkeypatch.chdir(tmp_path)
    for path in ("code/my-score.py:score", f"{folder}/my-score.py:score"):
        assert str(Budget.parse(f"{path}>=1")) == f"{path}>=1"
        assert user_function.import_function(path, *user_function.METRIC)(1, 2, 3) == 2
        assert user_function.find_source(path).samefile(folder / "my-score.py")
    assert not user_function.is_factory("code/my-score.py:score"), "no file of results names one"
    with pytest.raises(BadSettings, match="no function 'scores'"):
        user_function.import_function("code/my-score.py:scores", *user_function.METRIC)


def test_a_budget_of_a_function_that_is_no_metric(module):
    with pytest.raises(BadSettings, match="os:system is not a metric function"):
        Budget.parse("os:system>=0.5")
    with pytest.raises(BadSettings, match="is not a metric function"):
        Budget.parse(f"{module}:one>=0.5")
    assert Budget.parse(f"{module}:three>=0.5").limit == 0.5


@pytest.mark.parametrize("source", ["os:getcwd", lambda run: [], np.array_equal])
def test_data_of_a_function_that_is_none(tmp_path, source):
    inputs = (TensorSpec("x", "float32", ("N", 4)),)
    with pytest.raises(BadSettings, match="is not a data function"):
        feeds.load_feeds(source, inputs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("limit", ["nan", "inf", "-inf", "1e999", "base-inf", "base+1e999"])
def test_a_budget_has_a_limit(limit):
    with pytest.raises(BadSettings, match="cannot read the limit"):
        Budget.parse(f"top1>={limit}")
