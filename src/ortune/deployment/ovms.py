"""OpenVINO Model Server's ``config.json``, checked as the server checks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ortune.core.errors import BadModel

_KEYS: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "base_path": (str,),
    "target_device": (str,),
    "plugin_config": (dict,),
    "nireq": (int,),
    "batch_size": (int, str),
    "shape": (dict, str),
    "layout": (dict, str),
    "model_version_policy": (dict,),
}
"""Keys of a model that are written or may be added by hand, and their types, as in the server's
schema (``src/schema.cpp``); the server refuses any other."""


def configuration(models: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the configuration of models, each ``LABEL -> keys``, in folders of that name."""
    listed = [
        {"config": {"name": label, "base_path": label, "target_device": "CPU", **held}}
        for label, held in models.items()
    ]
    return {"model_config_list": listed}


def models(held: Any) -> dict[str, dict[str, Any]]:
    """Return the models of a configuration, by name.

    Raises:
        BadModel: The server would refuse it.
    """
    if not isinstance(held, dict) or held.keys() != {"model_config_list"}:
        raise _wrong("it must have model_config_list and nothing else")
    found = {}
    for entry in held["model_config_list"]:
        if not isinstance(entry, dict) or entry.keys() != {"config"}:
            raise _wrong("an entry must have config and nothing else")
        one = entry["config"]
        if missing := {"name", "base_path"} - one.keys():
            raise _wrong(f"a model lacks {', '.join(sorted(missing))}")
        for key, value in one.items():
            if not isinstance(value, _KEYS.get(key, ())) or isinstance(value, bool):
                raise _wrong(f"'{key}' is no key of a model, or of another type")
        if one.get("nireq", 0) < 0:
            raise _wrong("nireq is negative")
        found[one["name"]] = one
    return found


def _wrong(why: str) -> BadModel:
    return BadModel(
        f"config.json is none that OpenVINO Model Server takes: {why}", fix="pack again"
    )
