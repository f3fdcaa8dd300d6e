"""What the installed onnxruntime offers without a plug-in; empty where it is not installed."""

from __future__ import annotations


def providers() -> tuple[str, ...]:
    """Return its execution providers, the runtime's preferred one first."""
    try:
        import onnxruntime as ort
    except ImportError:
        return ()
    return tuple(ort.get_available_providers())


def devices() -> dict[str, tuple[str, ...]]:
    """Return provider -> kinds of its devices, such as ``CPU`` or ``GPU``."""
    try:
        import onnxruntime as ort
    except ImportError:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for one in ort.get_ep_devices():
        found[one.ep_name] = (*found.get(one.ep_name, ()), one.device.type.name)
    return found
