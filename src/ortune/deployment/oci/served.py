"""Start the program of an image from its layer, and ask it over HTTP."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import numpy as np

from ortune.core.errors import BadModel, gist
from ortune.core.session import Tensors
from ortune.deployment.oci import layout

_LIMIT_S = 120


@contextmanager
def serving(image: Path, folder: Path) -> Iterator[str]:
    """Start the program of the image's layer and give its address.

    Raises:
        BadModel: It does not start.
    """
    layout.extract(image, folder)
    command = [
        sys.executable,
        str(folder / "app" / "app.py"),
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    log = folder / "log"
    with log.open("wb") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert server.stdout is not None
        said = server.stdout.readline().decode(errors="replace")  # ends with it where it fails
        port = said.rpartition(" ")[2].strip()
        if not port.isdecimal():
            told = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
            raise BadModel(
                f"the image's program does not start: {gist(told[-1])}",
                fix="pack another trial (--trial KEY)",
            )
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


def ask(address: str, feeds: Tensors) -> Tensors:
    """Send inputs and return the answer.

    Raises:
        BadModel: The server refuses, or says nothing for two minutes.
    """
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as held:  # an array may be called as an argument of np.savez
        for name, array in feeds.items():
            with held.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    try:
        with urlopen(address, body.getvalue(), timeout=_LIMIT_S) as answer:
            made = np.load(io.BytesIO(answer.read()), allow_pickle=False)
    except (HTTPError, URLError, TimeoutError) as error:
        said = error.read().decode(errors="replace") if isinstance(error, HTTPError) else error
        raise BadModel(
            f"the image's program does not answer: {gist(str(said))}",
            fix="pack another trial (--trial KEY)",
        ) from None
    return {name: made[name] for name in made.files}
