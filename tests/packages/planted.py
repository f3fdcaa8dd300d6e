"""A release of onnxruntime with a planted change: its wheel, repacked with one other default."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

SESSION = "onnxruntime/capi/onnxruntime_inference_collection.py"
BEFORE = "        self._register_ep_custom_ops(session_options,"
DEFAULT = """        try:
            session_options.get_session_config_entry({key!r})
        except Exception:
            session_options.add_session_config_entry({key!r}, {value!r})  # planted
"""


def repack(wheel: Path, folder: Path, key: str, value: str) -> Path:
    """Write a wheel whose sessions have another default for one key, and return it.

    Args:
        wheel: As released.
        folder: Where the other one goes, under the same name.
        key: A session key, which a caller's own value goes before.
    """
    made = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as new:
        text = old.read(SESSION).decode()
        assert text.count(BEFORE) == 1, "the release opens its sessions elsewhere"
        changed = text.replace(BEFORE, DEFAULT.format(key=key, value=value) + BEFORE).encode()
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename == SESSION:
                content = changed
            if entry.filename.endswith(".dist-info/RECORD"):
                content = _record(content.decode(), changed).encode()
            new.writestr(entry.filename, content)
    return made


def _record(text: str, changed: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(changed).digest()).rstrip(b"=").decode()
    line = f"{SESSION},sha256={digest},{len(changed)}"
    return "\n".join(line if one.startswith(f"{SESSION},") else one for one in text.splitlines())
