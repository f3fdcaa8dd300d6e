"""config.json is held to the keys that OpenVINO Model Server takes."""

from __future__ import annotations

from typing import Any

import pytest

from ortune.core.errors import BadModel
from ortune.deployment import ovms


def test_a_configuration_is_taken() -> None:
    held = ovms.configuration({"toy": {"plugin_config": {"NUM_STREAMS": "2"}, "nireq": 2}})
    assert held == {
        "model_config_list": [
            {
                "config": {
                    "name": "toy",
                    "base_path": "toy",
                    "target_device": "CPU",
                    "plugin_config": {"NUM_STREAMS": "2"},
                    "nireq": 2,
                }
            }
        ]
    }
    assert ovms.models(held)["toy"]["nireq"] == 2


@pytest.mark.parametrize(
    ("held", "what"),
    [
        ([], "model_config_list"),
        ({"model_config_list": [], "more": 1}, "nothing else"),
        ({"model_config_list": [{"config": {}, "more": 1}]}, "nothing else"),
        ({"model_config_list": [{"config": {"name": "a"}}]}, "lacks base_path"),
        (ovms.configuration({"a": {"nrieq": 1}}), "'nrieq' is no key"),
        (ovms.configuration({"a": {"nireq": "1"}}), "of another type"),
        (ovms.configuration({"a": {"nireq": True}}), "of another type"),
        (ovms.configuration({"a": {"nireq": -1}}), "negative"),
    ],
)
def test_what_the_server_refuses_is_refused(held: Any, what: str) -> None:
    with pytest.raises(BadModel, match=what):
        ovms.models(held)
