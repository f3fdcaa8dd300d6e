"""Sessions of the reader: settings as stored, without the classes of backends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ortune.core import wording
from ortune.core.backend import graph_level
from ortune.core.errors import BackendMissing, BadSettings
from ortune.core.hardware.cpus import effective_cpus
from ortune.engine.reader.tables import BACKENDS, DEFAULTS
from ortune.runtimes.onnxruntime import checks, cpu_options, session
from ortune.runtimes.openvino import native, plugin, properties

PLAIN: Mapping[str, Any] = {"is": "backends/cpu"}
"""The settings of a bundle's fall-back."""
_INSTALL = "pip install ortune, and open it with ortune.load"


def completed(settings: Mapping[str, Any]) -> SimpleNamespace:
    """Return a backend's fields, those at their defaults too; `kind` is its name.

    Raises:
        BackendMissing: Only ortune runs this backend, or its custom operators.
        BadSettings: It has no such field.
    """
    kind = str(settings["is"]).partition("/")[2]
    if kind not in DEFAULTS:
        raise BackendMissing(f"'{kind}' is a backend that ortune alone runs", fix=_INSTALL)
    given = {name: value for name, value in settings.items() if name != "is"}
    if unknown := sorted(given.keys() - DEFAULTS[kind].keys()):
        raise BadSettings(f"{kind} has no field '{unknown[0]}'", fix=_INSTALL)
    fields = SimpleNamespace(**{**DEFAULTS[kind], **given, "kind": kind})
    if getattr(fields, "custom_ops", ()):
        raise BackendMissing("custom operators, which are code, are not loaded", fix=_INSTALL)
    return fields


def at_hand(fields: SimpleNamespace) -> tuple[SimpleNamespace, str]:
    """Return settings with no more threads than there are CPUs, and what to say of that."""
    cpus, rules = effective_cpus(), BACKENDS[fields.kind]
    counts = [name for name, rule in rules.items() if rule.get("cpus")]
    most = max(getattr(fields, name) for name in counts)
    if most <= cpus:
        return fields, ""
    lowered = {name: min(getattr(fields, name), cpus) for name in counts}
    if fields.threads > cpus and hasattr(fields, "affinity"):
        lowered["affinity"] = ""
    return SimpleNamespace(**{**vars(fields), **lowered}), (
        f"asks for {wording.count(most, 'thread')}, and {wording.count(cpus, 'CPU')} can be used "
        f"here: it runs with {cpus}"
    )


@contextmanager
def opened(path: Path, fields: SimpleNamespace) -> Iterator[Any]:
    """Open a session exactly as ortune's backend of this kind does.

    Raises:
        BackendMissing: OpenVINO's plug-in is not installed, or takes nothing of the model.
        BadModel: The runtime does not accept the model.
        BadSettings: Settings contradict each other, or the runtime does not know one.
    """
    default = SimpleNamespace(**DEFAULTS[fields.kind])
    if fields.kind == "openvino":
        made = properties.made(fields, default)
        device = fields.device.upper()
        plugged = _plugged(device)
        free = [name for name in made if name not in properties.ALWAYS]
        properties.demand(free, plugged=plugged, device=device)
        if plugged:
            way = plugin.session(path, fields.threads, made, verbose=False, device=device)
        else:
            way = native.session(path, made, device)
        with way as found:
            yield found
        return
    fields.level = graph_level(fields.level)
    made = cpu_options.made(fields, cpu_options.entries(fields, default))
    with session.session(path, made, disabled=fields.disable) as found:
        if fields.flush_denormals:
            checks.demand_flushed()
        yield found


def _plugged(device: str) -> bool:
    """Return whether OpenVINO's plug-in is the way to it, else its own runtime.

    Raises:
        BackendMissing: There is neither.
    """
    try:
        plugin.devices(device)
    except BackendMissing:
        if native.installed():
            return False
        raise
    return True


def rules(path: str) -> tuple[Mapping[str, Any], bool]:
    """Return the rules of a stored plugin's fields, and whether those without one are free."""
    folder, _, name = path.partition("/")
    return BACKENDS.get(name, {}) if folder == "backends" else {}, (
        folder == "backends" and name not in BACKENDS
    )


def register(options: Any, libraries: Sequence[str]) -> None:
    """Stand in the place of what loads libraries of custom operators: the reader loads none.

    Raises:
        BackendMissing: One is asked for.
    """
    if libraries:
        raise BackendMissing("custom operators, which are code, are not loaded", fix=_INSTALL)
