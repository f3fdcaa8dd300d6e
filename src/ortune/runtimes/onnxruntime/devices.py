"""What the installed onnxruntime offers without a plug-in; empty where it is not installed."""

from __future__ import annotations

from contextlib import suppress


def providers() -> tuple[str, ...]:
    """Return its execution providers, the runtime's preferred one first."""
    with suppress(ImportError):
        import onnxruntime as ort

        return tuple(ort.get_available_providers())
    return ()


def devices() -> dict[str, tuple[str, ...]]:
    """Return provider -> kinds of its devices, such as ``CPU`` or ``GPU``."""
    found: dict[str, tuple[str, ...]] = {}
    with suppress(ImportError):
        import onnxruntime as ort

        for one in ort.get_ep_devices():
            found[one.ep_name] = (*found.get(one.ep_name, ()), one.device.type.name)
    return found
