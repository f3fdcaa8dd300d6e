"""Triton's perf_analyzer as the client: what it is asked, and what becomes of its profile."""

import json
import sys
from pathlib import Path

import pytest
from tests.unit.serving.load_testing.toy_servers import Script, over_http

import ortune as ot
from ortune.core.errors import BadSettings, OrtuneError

PROGRAM = """#!{python}
import json, pathlib, sys
pathlib.Path({asked!r}).write_text(json.dumps([sys.argv[1:], json.load(open("data.json"))]))
requests = [{{"timestamp": 10**18 + k * 10**6, "response_timestamps": [10**18 + (k + 2) * 10**6]}}
            for k in range(20)]
json.dump({{"experiments": [{{"requests": requests}}]}}, open("profile.json", "w"))
sys.exit({code})
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> Path:
    program, asked = folder / "perf_analyzer", folder / "asked.json"
    text = PROGRAM.format(python=sys.executable, asked=str(asked), code=code)
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return asked


@pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
def test_its_requests_are_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = install(tmp_path, monkeypatch)
    config = {"/v2/models/double/config": {"max_batch_size": 8}}
    how = {"client": "perf_analyzer", "warm_up": 0.0, "repeats": 1}
    with over_http(Script(told=config)) as url:
        found = ot.loadtest(url, concurrency="4", requests=20, batch=2, **how)  # type: ignore[arg-type]
    (row,) = found.rows
    assert (row["answered"], row["p50_ns"], row["failed"]) == (20, 2e6, 0)
    assert row["requests_per_s"] == pytest.approx(20 / 0.021)
    assert found.clock.startswith("from sending a request")
    words, data = json.loads(asked.read_text())
    for pair in ("-m double", "-i http", "-b 2", "--concurrency-range 4", "--request-count 20"):
        assert pair in " ".join(words)
    assert {tuple(step["x"]["shape"]) for step in data["data"]} == {(4,)}, "rows, which it joins"


def test_what_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSettings, match="--rate"):
        ot.loadtest("http://127.0.0.1:9", client="perf_analyzer", rate="5")
    monkeypatch.setenv("PATH", str(tmp_path))
    with over_http(Script()) as url:
        with pytest.raises(OrtuneError, match="not installed"):
            ot.loadtest(url, client="perf_analyzer", requests=5)
        if sys.platform != "win32":
            install(tmp_path, monkeypatch, code=1)
            with pytest.raises(OrtuneError, match="perf_analyzer failed"):
                ot.loadtest(url, client="perf_analyzer", requests=5)
