"""Our YAML is YAML, and read back as it was."""

from __future__ import annotations

from typing import Any

import pytest

from ortune.core.errors import BadModel
from ortune.deployment import yaml

HELD: dict[str, Any] = {
    "kind": "InferenceService",
    "metadata": {"name": "a-b", "odd": 'x: "y"\n- #z', "number": 3, "none": None, "truth": True},
    "spec": {"predictor": {"model": {"list": ["a", 1], "uri": "s3://b/c"}, "after": "1"}},
}


def test_there_and_back() -> None:
    assert yaml.read(yaml.write(HELD)) == HELD


def test_others_read_it_too() -> None:
    other = pytest.importorskip("yaml", reason="PyYAML comes with other packages only")
    assert other.safe_load(yaml.write(HELD)) == HELD


@pytest.mark.parametrize("text", ["a", "a:\n    b: 1", "a: {", "a: x"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadModel, match="YAML cannot be read"):
        yaml.read(text)
