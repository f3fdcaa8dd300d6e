"""A bundle from a stranger: forged with digests that agree, it still has no power here."""

import json
import re
import shutil
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.unit.alone import run_alone
from tests.unit.packaged import Members, forge, members_of

from ortune.backends.cpu import Cpu
from ortune.bundle.engine.load import load_engine
from ortune.bundle.engine.manifest import EVIDENCE, RECIPE, SETTINGS
from ortune.bundle.pack import pack
from ortune.bundle.read import read_bundle
from ortune.cli.main import main
from ortune.core.errors import BadModel, OrtuneError, UnknownPlugin
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec
from ortune.core.study import Study

X = np.array([[-5, 0, 1, 2]], np.float32)
Y = np.array([[0, 2, 4, 6]], np.float32)
pytestmark = pytest.mark.usefixtures("temporary")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every hostile bundle, as its test left it."""
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(autouse=True)
def kept(request: pytest.FixtureRequest, corpus: Path) -> Iterator[None]:
    """Keep the bundle of each test for the one that looks at the memory they take."""
    has = "bundle" in request.fixturenames
    bundle = request.getfixturevalue("bundle") if has else None
    yield
    if bundle is not None:
        shutil.copy(bundle, corpus / f"{len(list(corpus.iterdir()))}.ortune")


def settings(**changed: Any) -> Members:
    return {SETTINGS: json.dumps(codec.encode(Cpu(threads=1)) | changed).encode()}


def refused(path: Path, said: str, kind: type[OrtuneError] = BadModel) -> None:
    """Loading, reading and running say it in two lines and leave nothing."""
    for opened in (load_engine, read_bundle):
        with pytest.raises(kind, match=said) as caught:
            opened(path)
        assert len(str(caught.value).splitlines()) == 2, caught.value
    assert not list(Path(tempfile.gettempdir()).iterdir())


class TestSettings:
    @pytest.mark.parametrize(
        "key",
        [
            "session.collect_node_memory_stats_to_file",
            "session.optimized_model_filepath",
            "ep.context_file_path",
            "session.nothing_known",
        ],
    )
    def test_no_session_key_writes_a_file(self, bundle: Path, tmp_path: Path, key: str) -> None:
        out = tmp_path / "written"
        forge(bundle, settings(config=[f"{key}={out}"]))
        refused(bundle, f"'{key}' is a setting that a file must not change")
        assert not list(tmp_path.glob("written*"))

    def test_the_command_line_says_it_in_two_lines(
        self, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        forge(bundle, settings(config=["session.collect_node_memory_stats_to_file=x"]))
        np.savez(tmp_path / "x.npz", x=X)
        assert main(["run", str(bundle), str(tmp_path / "x.npz")]) == 2
        what, fix = capsys.readouterr().err.splitlines()
        assert "a setting that a file must not change" in what
        assert fix == "  fix: do not trust this file"

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            ({"is": "metrics/top1"}, "holds 'metrics/top1' where a backend belongs"),
            ({"is": "quantizers/fp16"}, "where a backend belongs"),
            ({"is": 3}, "where a backend belongs"),
            ([], "settings.json.*holds none"),
            ("cpu", "holds none"),
            ({"is": "backends/evil.py:X"}, "not an installed backend"),
            ({"is": "backends/simulated", "report": "/tmp/x"}, "must not be set by a file"),
            ({"is": "backends/torch", "source": "os:system"}, "its manifest does not"),
            ({"is": "backends/torch", "weights": "/tmp/w.pt"}, "its manifest does not"),
            ({"is": "backends/cpu", "custom_ops": ["/tmp/x.so"]}, "its manifest does not"),
            ({"is": "backends/openvino", "config": ["CACHE_DIR=/tmp/x"]}, "'CACHE_DIR'"),
            ({"is": "backends/cpu", "threads": "many"}, "is not an integer"),
            ({"is": "backends/bucketed", "inner": {"is": "metrics/top1"}}, "bucketed|backend"),
        ],
    )
    def test_what_is_no_harmless_backend(self, bundle: Path, data: Any, said: str) -> None:
        forge(bundle, {SETTINGS: json.dumps(data).encode()})
        if "bucketed" in said:  # a newer version may know more: the original runs instead
            with pytest.warns(RuntimeWarning, match="is not a backend"):
                load_engine(bundle).close()
            return
        refused(bundle, said)

    @pytest.mark.parametrize("field", ["threads", "inter_threads"])
    def test_threads_are_lowered_with_one_warning(self, bundle: Path, field: str) -> None:
        forge(bundle, settings(parallel=True, **{field: 5000}))
        cpus = effective_cpus()
        with pytest.warns(RuntimeWarning, match=f"5,000 threads.*runs with {cpus}") as caught:
            engine = load_engine(bundle)
        assert len(caught) == 1 and caught[0].filename == __file__
        with engine:
            assert getattr(engine.backend, field) == cpus
            assert not engine.fallback
            np.testing.assert_array_equal(engine(x=X)["y"], Y)

    @pytest.mark.parametrize("member", [SETTINGS, RECIPE, EVIDENCE])
    def test_nesting_without_end(self, bundle: Path, member: str) -> None:
        forge(bundle, {member: b"[" * 100_000 + b"]" * 100_000})
        with pytest.raises(BadModel, match="nested too deeply"):
            read_bundle(bundle)

    def test_evidence_of_a_setting_with_power_is_refused(self, bundle: Path) -> None:
        evidence = json.loads(members_of(bundle)[EVIDENCE])
        evidence["job"]["baseline"]["config"] = ["ep.context_enable=1"]
        forge(bundle, {EVIDENCE: json.dumps(evidence).encode()})
        with pytest.raises(BadModel, match=r"ep\.context_enable"):
            read_bundle(bundle)

    def test_evidence_imports_no_function(
        self, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "evilmetric.py").write_text("open('ran', 'w')\ndef fn(*_): return 1\n")
        monkeypatch.chdir(tmp_path)
        evidence = json.loads(members_of(bundle)[EVIDENCE])
        metric = {"is": "metrics/function", "path": "evilmetric:fn", "share": 0.0}
        evidence["job"]["budget"]["metric"] = metric
        forge(bundle, {EVIDENCE: json.dumps(evidence).encode()})
        assert str(read_bundle(bundle).evidence.job.budget) == "evilmetric:fn>=0.999"
        assert not (tmp_path / "ran").exists()


class TestManifest:
    def test_arithmetic_that_there_is_not(self, bundle: Path) -> None:
        """What is not known here changes nothing; signs and sizes of its figures neither."""

        def odd(manifest: dict[str, Any]) -> None:
            told: dict[str, Any] = {"halves": ["\\", "float4"], "integers": -1, "risky": 10**18}
            manifest["plans"][0]["arithmetic"] |= told | {
                "instructions": ["x"],
                "system": "Linux ?",
            }

        forge(bundle, {}, odd)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            load_engine(bundle).close()

    @pytest.mark.parametrize("field", ["models", "golden", "arithmetic", "custom_ops", "ratio"])
    @pytest.mark.parametrize("value", [3, "x", [[]], {"": None}, {"is": "backends/cpu"}])
    def test_fields_of_a_plan_of_another_form(self, bundle: Path, field: str, value: Any) -> None:
        forge(bundle, {}, lambda manifest: manifest["plans"][0].update({field: value}))
        refused(bundle, "manifest|is no ONNX model")

    @pytest.mark.parametrize("field", ["plans", "signatures", "members", "provenance", "licence"])
    @pytest.mark.parametrize("value", [None, 3, [[]], {"": None}, {"is": "backends/cpu"}])
    def test_fields_of_another_form(self, bundle: Path, field: str, value: Any) -> None:
        forge(bundle, {}, lambda manifest: manifest.update({field: value}))
        if field == "provenance" and value == {"is": "backends/cpu"}:
            return  # words of anybody's
        refused(bundle, "manifest|is no ONNX model")


class TestZip:
    """Nothing of it is unpacked before its table of contents is found to be that of a bundle."""

    def test_a_flipped_byte_anywhere(self, bundle: Path) -> None:
        """Headers, names, table of contents: two lines, or the same bundle, which may open."""
        content, said = bundle.read_bytes(), set()
        original = read_bundle(bundle)
        for place, at in enumerate(range(0, len(content), max(1, len(content) // 700))):
            turned = bytearray(content)
            turned[at] ^= 1 << (at % 8)
            bundle.write_bytes(turned)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if place % 12 == 0:
                        load_engine(bundle).close()
                    assert read_bundle(bundle).evidence == original.evidence
            except OrtuneError as error:
                assert len(str(error).splitlines()) == 2, error
                said.add(re.sub(r"'.*?'", "''", error.what))
        assert len(said) > 3

    def test_a_size_that_lies(self, bundle: Path) -> None:
        """The table of contents says less than there is, and the manifest agrees with it."""
        content = bytearray(bundle.read_bytes())
        at = content.rindex(b"models/toy.onnx") - 46
        (size,) = struct.unpack_from("<I", content, at + 24)
        struct.pack_into("<I", content, at + 24, size - 1)
        bundle.write_bytes(content)
        refused(bundle, "was changed|is damaged")

    def test_members_that_share_their_bytes(self, bundle: Path) -> None:
        """Entries of the table that point at the same place unpack a small file to any size."""
        forge(bundle, {"models/weights.bin": bytes(100_000)})
        whole = bundle.read_bytes()
        with zipfile.ZipFile(bundle) as file:
            start, count = file.start_dir, len(file.namelist())
        table, end = whole[start : whole.rindex(b"PK\5\6")], whole[whole.rindex(b"PK\5\6") :]
        at = table.rindex(b"models/weights.bin") - 46
        entry = table[at : at + 46 + len("models/weights.bin")]
        more = b"".join(entry.replace(b"weights.bin", b"weights%04d" % i) for i in range(50))
        sizes = struct.pack("<HHI", count + 50, count + 50, len(table) + len(more))
        bundle.write_bytes(whole[:start] + table + more + end[:8] + sizes + end[16:])
        refused(bundle, "share their bytes")


class TestModel:
    @pytest.mark.parametrize("which", ["models/toy.onnx", "fallback/toy.onnx"])
    @pytest.mark.parametrize(
        "place", ["/etc/passwd", "../toy.bin", "toy.onnx", "", "a/../../x", "..\\x", "none.bin"]
    )
    def test_weights_lie_beside_it_in_the_bundle(
        self, bundle: Path, which: str, place: str
    ) -> None:
        proto = onnx.ModelProto.FromString(members_of(bundle)[which])
        tensor = proto.graph.initializer[0]
        tensor.ClearField("float_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=place)
        changed = {which: proto.SerializeToString()}
        if which.startswith("fallback"):
            changed[SETTINGS] = b'{"is": "backends/quantum"}'
        forge(bundle, changed)
        with pytest.raises(BadModel, match="keeps weights outside the bundle") as caught:
            load_engine(bundle)
        assert len(str(caught.value).splitlines()) == 2

    @pytest.mark.parametrize("holder", ["attribute", "subgraph", "function", "sparse"])
    def test_wherever_the_tensor_is(self, bundle: Path, holder: str) -> None:
        proto = onnx.ModelProto.FromString(members_of(bundle)["models/toy.onnx"])
        far = onnx.TensorProto(name="far", data_type=1, dims=[4], data_location=1)
        far.external_data.add(key="location", value="/etc/passwd")
        node = onnx.helper.make_node("Constant", [], ["c"], value=far)
        if holder == "attribute":
            proto.graph.node.append(node)
        elif holder == "subgraph":
            inner = onnx.helper.make_graph([node], "g", [], [])
            proto.graph.node.append(onnx.helper.make_node("If", ["q"], [], then_branch=inner))
        elif holder == "function":
            proto.functions.add(name="f", domain="own").node.append(node)
        else:
            proto.graph.sparse_initializer.add().values.CopyFrom(far)
        forge(bundle, {"models/toy.onnx": proto.SerializeToString()})
        with pytest.raises(BadModel, match="keeps weights outside the bundle, in '/etc/passwd'"):
            load_engine(bundle)

    def test_bytes_that_are_no_model(self, bundle: Path) -> None:
        for content in (b"", b"location" + bytes(range(256)), b"\xff" * 40 + b"location"):
            forge(bundle, {"models/toy.onnx": content, "fallback/toy.onnx": content})
            with (
                warnings.catch_warnings(),
                pytest.raises(BadModel, match=r"no ONNX model|does not load") as caught,
            ):
                warnings.simplefilter("ignore")
                load_engine(bundle)
            assert len(str(caught.value).splitlines()) == 2


class TestGoldenSamples:
    @pytest.mark.parametrize(
        "index",
        [
            {},
            [],
            3,
            {"forms": [], "samples": []},
            {"forms": [], "samples": [[0, 0]]},
            {"forms": [["x", "O", [1, 4]]], "samples": [[0, 64]]},
            {"forms": [["x", "V0", [10**12]]], "samples": [[0, 64]]},
            {"forms": [["x", "S0", [10**9, 10**9]]], "samples": [[0, 64]]},
            {"forms": [["x", "<f4", [10**12]]], "samples": [[0, 64]]},
            {"forms": [["x", "<f4", [-1, 4]]], "samples": [[0, 64]]},
            {"forms": [["x", "<f4", [1, 4]]], "samples": [[0, -64]]},
            {"forms": [["x", "<f4", [1, 4]]], "samples": [[0, 10**18]]},
            {"forms": [["x", "<f4", [1, 4]]], "samples": [[7, 64]]},
            {"forms": [["x", "<f4", [1, 4]]], "samples": [["x", "y"]]},
            {"forms": [["x", "no_such_type", [1, 4]]], "samples": [[0, 64]]},
            {"forms": [["x", "__class__", [1, 4]]], "samples": [[0, 64]]},
            {"forms": [["x"]], "samples": [[0, 64]]},
            {"forms": [["other", "<f4", [1, 4]]], "samples": [[0, 64]]},
            {"forms": [["x", "<i8", [1, 4]]], "samples": [[0, 64]]},
        ],
    )
    @pytest.mark.parametrize("which", ["inputs", "outputs"])
    def test_a_forged_index(self, bundle: Path, index: Any, which: str) -> None:
        if which == "outputs" and "other" in json.dumps(index):
            return
        magic = b"ortune-stream-1\n"
        text = json.dumps(index).encode()
        body = magic.ljust(64, b"\0") + bytes(64)
        content = body + text + len(text).to_bytes(8, "little") + magic
        forge(bundle, {f"golden/{which}.stream": content})
        with pytest.raises(BadModel, match="golden sample") as caught:
            load_engine(bundle)
        assert len(str(caught.value).splitlines()) == 2


class TestWhole:
    def test_all_of_these_take_little_memory(
        self,
        study: Study,
        corpus: Path,
        tmp_path: Path,
        record_property: Callable[[str, object], None],
    ) -> None:
        """Under 64 MB beyond what opening a good one takes, in a process of its own."""
        found = sorted(corpus.glob("*.ortune"))
        if len(found) < 50:
            pytest.skip("the other tests of this file make the bundles")
        code = (
            "import re, warnings, ortune\n"
            "warnings.simplefilter('ignore')\n"
            "def told(name):\n"
            "    text = open('/proc/self/status').read()\n"
            "    return int(re.search(name + r':\\s+(\\d+)', text)[1]) // 1024\n"
            "ortune.load(sys.argv[1]).close()\n"
            "open('/proc/self/clear_refs', 'w').write('5')\n"  # the peak begins anew
            "base, opened = told('VmRSS'), 0\n"
            "for path in sys.argv[2:]:\n"
            "    try:\n        ortune.load(path).close(); opened += 1\n"
            "    except ortune.OrtuneError as error:\n"
            "        assert len(str(error).splitlines()) == 2, error\n"
            "print(told('VmHWM') - base, opened)"
        )
        good = pack(study, tmp_path / "good.ortune")
        done = run_alone(tmp_path, code, good, *found)
        assert done.returncode == 0, done.stderr
        held, opened = map(int, done.stdout.split())
        record_property("held", f"{held} MB over {len(found)} bundles, {opened} of them open")
        assert held < 64, f"{held} MB over {len(found)} bundles"
        assert opened < len(found) / 3


class TestEvidence:
    def test_a_plan_that_it_says_nothing_of_is_refused(self, bundle: Path) -> None:
        forge(bundle, {}, lambda manifest: manifest["plans"][0].update(key="dead"))
        with pytest.raises(BadModel, match="its evidence says nothing of '") as caught:
            read_bundle(bundle)
        assert caught.value.fix == "pack the run again"

    def test_a_backend_that_is_not_installed_is_named(self, bundle: Path) -> None:
        told = json.loads(members_of(bundle)[EVIDENCE])
        told["trials"][0]["plan"]["backend"] = {"is": "backends/tpu"}
        forge(bundle, {EVIDENCE: json.dumps(told).encode()})
        with pytest.raises(UnknownPlugin, match="tpu"):
            read_bundle(bundle)

    def test_a_recipe_of_another_form_is_refused(self, bundle: Path) -> None:
        forge(bundle, {RECIPE: b'{"name": 3, "steps": 4}'})
        with pytest.raises(BadModel, match=f"toy.ortune: '{RECIPE}' cannot be used: "):
            read_bundle(bundle)
