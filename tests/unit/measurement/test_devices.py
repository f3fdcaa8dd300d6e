"""Workers on a device: an ``ssh`` that runs its command on this machine stands for the network."""

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from tests.unit.alone import run_alone

from ortune.backends.cpu import Cpu
from ortune.cli.main import main
from ortune.core.errors import BadSettings, Interruption, OrtuneError
from ortune.core.settings import read_settings
from ortune.data import stream
from ortune.measurement import devices
from ortune.measurement.devices import LEASES, Device, LinkLost, find_lease, open_device
from ortune.measurement.executors import RayDevice, open_devices, open_executor
from ortune.measurement.process import (
    Worker,
    WorkerFailed,
    compute_outputs,
    query_capabilities,
    single_model_job,
)
from ortune.search.optimize import run
from ortune.search.request import Optimize

ARRIVAL = Path(devices.__file__).parent / "worker" / "arrival.py"
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
[ -e "{down}" ] && exit 255
exec 9<&0
sh -c "$3" <&9 & child=$!
while kill -0 $child 2>/dev/null; do
    [ -e "{down}" ] && kill -9 $child && {{ wait $child; exit 255; }}
    sleep 0.05
done
wait $child
"""


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Return a device; while there is a file ``down`` beside it, it is not reached."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH.format(down=tmp_path / "down"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    yield Device("pi5", "pi@pi5", sys.executable, str(tmp_path / "there"))


def write_model(folder: Path) -> Path:
    """Write a model whose weights lie beside it."""
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[2,4] x) => (float[2,4] y) {
        y = MatMul(x, w)
    }"""
    model = parser.parse_model(text)
    weights = np.arange(16, dtype=np.float32).reshape(4, 4)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def write_samples(folder: Path) -> Path:
    path = folder / "samples.stream"
    stream.write_stream(path, ({"x": np.full((2, 4), k, np.float32)} for k in range(3)))
    return path


def test_a_model_answers_there_as_here_and_travels_once(device: Device, tmp_path: Path) -> None:
    model, samples = write_model(tmp_path), write_samples(tmp_path)
    with open_device(device) as place:
        for label in ("first", "second"):
            job = single_model_job(
                model, Cpu(threads=1), samples, tmp_path, label, environment=place
            )
            answers = compute_outputs(job, range(3), tmp_path / f"{label}.stream")
            assert (
                answers[2]["y"].tolist()
                == (np.full((2, 4), 2.0) @ np.arange(16).reshape(4, 4)).tolist()
            )
            trace = json.loads((job.out / "device.json").read_text())
            assert trace["device"] == "pi5" and trace["free_bytes"] > 0
            assert trace["began"] < trace["ended"]
    there = Path(device.folder)
    names = sorted(path.name for path in there.glob("files/*/*"))
    assert names == ["model.onnx", "samples.stream", "w.bin"]
    assert not list(there.rglob("*.part"))
    assert query_capabilities(Cpu()).missing is None, "this machine is itself again"


def test_a_broken_connection_says_nothing_of_the_plan(device: Device, tmp_path: Path) -> None:
    job = single_model_job(
        write_model(tmp_path), Cpu(), write_samples(tmp_path), tmp_path, "cut", environment="pi5"
    )
    down = tmp_path / "down"
    with open_device(device), Worker(job) as worker:
        worker.ask("load")
        down.touch()
        while worker.alive:
            time.sleep(0.05)
        for _ in range(2):  # in the middle, and from the beginning
            with pytest.raises(WorkerFailed, match="connection to the device is lost") as lost:
                worker.ask("first")
            assert lost.value.interruption is Interruption.LINK
        with (
            Worker(job) as second,
            pytest.raises(WorkerFailed, match="connection to the device is lost"),
        ):
            second.ask("load")
        down.unlink()
        with Worker(job) as third:
            third.ask("load")


def order(folder: Path, **fields: Any) -> bytes:
    asked = {"folder": str(folder), "cool_below": None, "files": [], **fields}
    return json.dumps(asked).encode() + b"\n"


def arrive(content: bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-I", str(ARRIVAL)]
    return subprocess.run(command, input=content, capture_output=True, check=False)


def test_bytes_that_are_not_those_that_were_sent_are_refused(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    put = order(tmp_path, do="put", files=[("files/k/model.onnx", 5, digest)])
    for sent, why in ((b"wrong", b"did not arrive as it was sent"), (b"rig", b"on its way")):
        done = arrive(put + sent)
        assert done.returncode == 1 and why in done.stderr
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert arrive(put + b"right").returncode == 0
    assert (tmp_path / "files" / "k" / "model.onnx").read_bytes() == b"right"


def test_a_device_is_held_by_one_search(device: Device) -> None:
    with open_device(device) as place:
        query_capabilities(Cpu(threads=3), place)
        held = order(Path(device.folder), do="hold", session="other", wait_s=0)
        assert b"another search" in arrive(held).stderr
        work = order(Path(device.folder), do="work", session="other")
        assert b"another search" in arrive(work).stderr, "nor beside it"
    assert b"held" in arrive(held).stdout


def test_what_a_worker_imports_is_numpy_and_onnxruntime_alone(tmp_path: Path) -> None:
    sent = devices.pack_source().content
    assert isinstance(sent, bytes) and len(sent) < 2e6
    (tmp_path / "source.zip").write_bytes(sent)
    code = """
import sys, zipfile
from pathlib import Path
here = Path(sys.argv[1])
zipfile.ZipFile(here / "source.zip").extractall(here / "unpacked")
sys.path.insert(0, str(here / "unpacked"))
from ortune.backends.cpu import Cpu
from ortune.measurement.job import WorkerJob
from ortune.measurement.worker.tasks import TASKS
from ortune.measurement.worker.workbench import Workbench
assert str(here) in sys.modules["ortune"].__file__
from contextlib import ExitStack
bench = Workbench(WorkerJob({}, Cpu(), {}, here), ExitStack())
print(TASKS["capabilities"](bench)["missing"])
"""
    done = run_alone(tmp_path, code, tmp_path)
    assert done.stdout.strip() == "None", done.stderr


def test_an_inventory_stands_for_all_its_devices(tmp_path: Path) -> None:
    path = tmp_path / "devices.toml"
    path.write_text('[a]\nhost = "a"\n[b]\nhost = "b"')
    with open_executor(f"ssh:{path}") as place:
        assert [lease.device.name for lease in LEASES.get()] == ["a", "b"]
        assert find_lease(place) is LEASES.get()[0] and find_lease("b") is None
    assert not LEASES.get()
    with open_executor(f"ssh:{path}#b") as place:
        assert place == "b" and [lease.device.host for lease in LEASES.get()] == ["b"]


def test_a_device_that_was_released_starts_nothing(device: Device) -> None:
    with open_device(device) as place:
        (lease,) = LEASES.get()
        lease.hold()
        lease.release()
        with pytest.raises(LinkLost, match="was released"):
            lease.ask({"do": "put"})
        with pytest.raises(LinkLost, match="was released"):
            query_capabilities(Cpu(threads=7), place)


@pytest.mark.parametrize(
    ("alive", "names", "nodes"),
    [((True, False), ["box"], [""]), ((True, True), ["box.1", "box.2"], ["n0", "n1"])],
)
def test_every_node_of_a_kind_is_a_device(
    monkeypatch: pytest.MonkeyPatch, alive: tuple[bool, ...], names: list[str], nodes: list[str]
) -> None:
    rows = [
        {"NodeID": f"n{place}", "Alive": lives, "NodeManagerAddress": "", "Resources": kinds}
        for place, (lives, kinds) in enumerate(
            zip((*alive, True), ({"target:box": 1}, {"target:box": 1}, {"CPU": 1}), strict=True)
        )
    ]
    ray = SimpleNamespace(nodes=lambda: rows, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with open_executor("ray#box") as place:
        found = [lease.device for lease in LEASES.get()]
    assert place == "box"
    assert [entry.name for entry in found] == names
    assert [entry.node for entry in found if isinstance(entry, RayDevice)] == nodes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no device"),
        ("[pi5]\n", "has no host"),
        ('[pi5]\nhost = "-oProxyCommand=touch x"', "cannot be a device"),
        ('[here]\nhost = "pi"', "cannot be a device"),
        ('[pi5]\nhost = "pi"\npasword = "x"', "has no 'pasword'"),
        ('[pi5]\nhost = "pi"\ncool_below = "60"', "wrong type"),
        ("[pi5", "cannot be read"),
    ],
)
def test_an_inventory_that_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "devices.toml"
    path.write_text(text)
    with pytest.raises(BadSettings, match=why), open_executor(f"ssh:{path}"):
        pass


def test_what_names_no_executor_and_what_may_not(tmp_path: Path) -> None:
    for executor in ("rays", "ssh:", "ssh"):
        with pytest.raises(BadSettings, match="no executor"), open_executor(executor):
            pass
    for executor in ("ray", "ray#rpi5", "ray://host:10001"):
        with pytest.raises(BadSettings, match="needs the package ray"), open_executor(executor):
            pass
    path = tmp_path / "devices.toml"
    path.write_text('[a]\nhost = "a"\n[b]\nhost = "b"')
    with open_devices(f"ssh:{path}#b") as chosen:
        assert [device.host for device in chosen] == ["b"]
    settings = tmp_path / "ortune.toml"
    settings.write_text(f'executor = "ssh:{path}#b"')
    with pytest.raises(OrtuneError, match="connects to machines"):
        read_settings(settings, ["executor"])
    settings.write_text(f'devices = "ssh:{path}"')
    with pytest.raises(OrtuneError, match="connects to machines"):
        read_settings(settings, ["devices"])


@pytest.mark.parametrize("option", ["executor", "devices"])
def test_code_of_the_users_does_not_go_to_a_device(
    device: Device, tmp_path: Path, option: str
) -> None:
    path = tmp_path / "devices.toml"
    path.write_text(f'[pi5]\nhost = "pi"\npython = "{device.python}"\nfolder = "{device.folder}"')
    (tmp_path / "mine.py").write_text("def score(run):\n    return [1.0]\n")
    function = f"{tmp_path / 'mine.py'}:score"
    with pytest.raises(BadSettings, match="does not run on a device"):
        run(
            Optimize(
                write_model(tmp_path),
                evaluate=function,
                on="cpu",
                out=tmp_path / "run",
                **{option: f"ssh:{path}"},
            )
        )


def test_a_wrong_name_among_devices_is_told_before_the_search(tmp_path: Path) -> None:
    (tmp_path / "devices.toml").write_text('[pi5]\nhost = "pi"')
    for devices_option, why in (("#pi6", "no device 'pi6'"), ("x", "cannot be read")):
        place = f"ssh:{tmp_path / 'devices.toml'}{devices_option}"
        with pytest.raises(BadSettings, match=why):
            run(Optimize(tmp_path / "none.onnx", devices=place, out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_doctor_says_what_devices_offer(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "devices.toml"
    path.write_text(
        f'[pi5]\nhost = "pi"\npython = "{device.python}"\nfolder = "{device.folder}"\n'
        f'[gone]\nhost = "pi"\npython = "/no/python"\nfolder = "{device.folder}"'
    )
    assert main(["doctor", "--executor", f"ssh:{path}", "--json"]) == 1
    fine, gone = json.loads(capsys.readouterr().out)["devices"]
    assert fine["offers"]["cpu"]["missing"] is None and fine["readings"]["free_bytes"]
    assert "/no/python" in gone["problem"] and "ssh" in gone["fix"]
