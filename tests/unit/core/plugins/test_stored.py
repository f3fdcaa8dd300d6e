"""What a file from elsewhere may set: everything that computes, nothing that reaches out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from ortune.backends import openvino
from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.backends.runtimes.onnxruntime import checks
from ortune.backends.simulated import Simulated
from ortune.backends.torch import Torch
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings
from ortune.core.plugins import catalog, codec, stored
from ortune.core.plugins.bounds import Bounds
from ortune.measurement.environment import find_interpreter
from ortune.metrics.function import Function

OWN = [
    name
    for name in catalog.list_plugins(Backend)
    if catalog.map_modules("backends")[name][:7] == "ortune."
]
REACHES = re.compile(
    r"file|path|folder|dir\b|cache|context|save|load|profil|log|stats|settings|embed|bytes_dir"
    r"|_bytes_|weightless|debug|compile|format|limit",
    re.IGNORECASE,
)
"""Words in the names of settings that write, read or name a file, or lift a limit."""
POWER = [
    "session.collect_node_memory_stats_to_file",
    "session.optimized_model_filepath",
    "session.optimized_model_external_initializers_file_name",
    "session.optimized_model_external_initializers_min_size_in_bytes",
    "session.model_external_initializers_file_folder_path",
    "session.save_model_format",
    "session.save_external_prepacked_constant_initializers",
    "session.load_model_format",
    "session.use_ort_model_bytes_directly",
    "session.use_ort_model_bytes_for_initializers",
    "session.use_memory_mapped_ort_model",
    "session.moe_expert_counter_state_file",
    "session.node_partition_config_file",
    "session.debug_layout_transformation",
    "session.enable_profiling",
    "session.profile_file_prefix",
    "session.function_expansion_byte_limit",
    "session.function_expansion_node_limit",
    "session.log_severity_level",
    "session.custom_ops_library",
    "ep.context_enable",
    "ep.context_file_path",
    "ep.context_embed_mode",
    "ep.context_model_external_initializers_file_name",
    "ep.enable_weightless",
    "optimization.minimal_build_optimizations",
    "session.nobody_has_heard_of",
]
OPENVINO_POWER = [
    "CACHE_DIR",
    "CACHE_MODE",
    "WEIGHTS_PATH",
    "ENABLE_WEIGHTLESS",
    "LOG_LEVEL",
    "PERF_COUNT",
    "DEVICE_ID",
    "load_config",
    "cache_dir",
    "device_type",
    "CONFIG_FILE",
]


def refused(data: Any, said: str = ".") -> BadSettings:
    with pytest.raises(BadSettings, match=said) as caught:
        stored.demand_safe_data(data, "settings.json")
    assert caught.value.what.startswith("settings.json: ") or "nested" in caught.value.what
    assert len(str(caught.value).splitlines()) == 2
    return caught.value


@pytest.mark.parametrize("name", OWN)
def test_the_defaults_of_every_backend_keep_its_rules(name: str) -> None:
    stored.demand_safe_data(codec.encode(catalog.load_plugin(Backend, name)()), name)


def test_what_names_code_or_a_free_text_says_so_in_its_annotation() -> None:
    """The whole of what a file from elsewhere may set beyond truths, words and bounded numbers."""
    kinds = {f"{name}.{field}": rule for name in OWN for field, rule in rules(name).items()}
    by_rule = {rule["rule"]: set[str]() for rule in kinds.values()}
    for field, rule in kinds.items():
        by_rule[rule["rule"]].add(field)
    assert by_rule["code"] == {
        "bucketed.custom_ops",
        "cpu.custom_ops",
        "cuda.custom_ops",
        "plugin.library",
        "plugin.options",
        "plugin.package",
        "simulated.custom_ops",
        "torch.source",
        "torch.weights",
    }
    assert by_rule["nothing"] == {"simulated.report", "tensorrt-engine.plugins"}
    assert by_rule["pairs"] == {"cpu.config", "cuda.config", "openvino.config", "tensorrt.config"}
    assert by_rule["text"] == {"bucketed.mask", "cpu.affinity", "plugin.provider"}
    assert by_rule["list"] == {
        "bucketed.inputs",
        "bucketed.lengths",
        "bucketed.outputs",
        "cpu.disable",
        "tensorrt-engine.profiles",
        "tensorrt.profiles",
    }
    assert by_rule["plugin"] == {"bucketed.inner"}
    assert by_rule.keys() - {"flag", "integer", "word"} == {
        *("code", "list", "nothing", "pairs", "plugin", "text")
    }


def rules(name: str) -> Mapping[str, stored.FieldRule]:
    return stored.list_field_rules(catalog.load_plugin(Backend, name))


@dataclass(frozen=True)
class Example:
    flag: bool = True
    word: Literal["a", "b"] = "a"
    share: Annotated[float, Bounds(high=1)] = 0.5
    threads: Annotated[int, Bounds(high=8, per_cpu=2)] = 1
    inner: Backend | None = None
    free: str = ""
    unbounded: int = 0
    several: tuple[str, ...] = ()
    named: Annotated[tuple[str, ...], stored.items(stored.NAME, 2)] = ()


def test_a_rule_follows_from_the_annotation_and_nothing_is_allowed_without_one() -> None:
    assert stored.list_field_rules(Example) == {
        "flag": stored.FLAG,
        "word": stored.word("a", "b"),
        "share": stored.number(0, 1),
        "threads": {"rule": "integer", "least": 0, "most": 8, "cpus": True},
        "named": stored.items(stored.NAME, 2),
        **dict.fromkeys(("inner", "free", "unbounded", "several"), stored.NOTHING),
    }
    assert stored.find_declared_rules(Example) == {"named": stored.items(stored.NAME, 2)}
    stored.demand_fields({"word": "b", "named": ["x"]}, Example, "x.json")
    for data in ({"free": ""}, {"nobody": 1}, {"named": ["x"] * 3}, {"share": 2}, {"flag": 0}):
        with pytest.raises(BadSettings, match=r"x\.json: "):
            stored.demand_fields(data, Example, "x.json")


def test_a_stored_name_of_an_environment_is_looked_up_and_never_run() -> None:
    assert find_interpreter(HERE) is None
    for name in ("/bin/sh", "../python", "python3 -c 'print()'", ""):
        with pytest.raises(BadSettings, match="no environment"):
            find_interpreter(name)


@pytest.mark.parametrize("key", POWER)
def test_session_keys_that_reach_out_are_refused(key: str) -> None:
    held = codec.encode(Cpu()) | {"config": [f"{key}=/tmp/x"]}
    assert f"'{key}' is a setting" in refused(held).what


@pytest.mark.parametrize("key", OPENVINO_POWER)
def test_properties_that_reach_out_are_refused(key: str) -> None:
    refused(codec.encode(Openvino()) | {"config": [f"{key}=/tmp/x"]}, "is a setting")


def test_no_key_of_the_installed_runtime_that_names_a_place_is_allowed() -> None:
    """Whatever the next version brings: a key is refused until somebody has looked at it."""
    known = [
        key for library in checks.list_libraries() for key in checks.list_session_keys(library)
    ]
    assert len(known) > 50
    reaching = [key for key in known if REACHES.search(key)]
    assert len(reaching) > 15
    assert not set(reaching) & set(checks.SESSION_KEYS)
    assert not [key for key in checks.SESSION_KEYS if REACHES.search(key)]


def test_no_property_of_the_installed_openvino_that_names_a_place_is_allowed() -> None:
    pytest.importorskip("openvino")
    reaching = [name for name in openvino.list_writable_properties() if REACHES.search(name)]
    assert {"WEIGHTS_PATH"} <= set(reaching)
    hint = {name for name in reaching if name.startswith(("KEY_CACHE", "VALUE_CACHE", "KV_CACHE"))}
    assert set(reaching) & set(openvino.OPENVINO_PROPERTIES) == hint, "caches of attention"


def test_session_keys_that_only_compute_are_kept_within_their_bounds() -> None:
    for config in (
        ("session.disable_double_qdq_remover=1", "session.qdq_matmulnbits_accuracy_level=4"),
        (" session.x64quantprecision = 0 ",),
    ):
        stored.demand_safe_data(codec.encode(Cpu(config=config)), "x")
    stored.demand_safe_data(
        codec.encode(Openvino(config=("DYNAMIC_QUANTIZATION_GROUP_SIZE=0",))), "x"
    )
    for text in (
        "session.x64quantprecision=2",
        "session.x64quantprecision=/etc/passwd",
        "session.qdq_matmulnbits_accuracy_level=5",
        "session.qdq_matmulnbits_accuracy_level=-1",
        "session.qdq_matmulnbits_accuracy_level=1e3",
        f"session.qdq_matmulnbits_accuracy_level={'9' * 5000}",
        "session.x64quantprecision",
    ):
        refused(codec.encode(Cpu()) | {"config": [text]})
    refused(codec.encode(Openvino()) | {"config": ["CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE=nan"]})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threads", -1),
        ("threads", 10**9),
        ("threads", "5"),
        ("threads", True),
        ("threads", 1.5),
        ("inter_threads", 10**30),
        ("spin", 1),
        ("spin_us", 10**12),
        ("spin_backoff", 0),
        ("block_base", 10**9),
        ("affinity", "1;$(touch x)"),
        ("affinity", "1;" * 9999),
        ("affinity", "1-100000000"),
        ("level", "/etc/passwd"),
        ("disable", ["../x"]),
        ("disable", "GeluFusion"),
        ("disable", ["A"] * 1000),
        ("arena_growth", "as you like"),
        ("config", "session.x64quantprecision=1"),
        ("config", {"session.x64quantprecision": "1"}),
        ("config", [1]),
        ("custom_ops", [{"is": "x"}]),
        ("nbits_block", None),
    ],
)
def test_values_of_another_type_or_out_of_bounds_are_refused(field: str, value: Any) -> None:
    refused(codec.encode(Cpu()) | {field: value}, re.escape(f"cpu({field}=...)"))


def test_a_setting_is_found_at_any_depth() -> None:
    evil = codec.encode(Cpu()) | {"config": ["ep.context_enable=1"]}
    inner = codec.encode(Bucketed()) | {"inner": evil}
    for data in (inner, [inner], {"a": [{"b": inner}]}, {"is": "steps/x", "deep": [[inner]]}):
        refused(data, "ep.context_enable")


def test_files_and_code_in_other_fields() -> None:
    refused(codec.encode(Simulated(report="written.json")), "must not be set by a file")
    stored.demand_safe_data(codec.encode(Torch(source="pkg.module:factory")), "a run keeps it")
    backends = [Torch(source="a:b", weights="w.pt"), Cpu(custom_ops=("./x.so", "mod"))]
    assert stored.list_code_names(codec.encode(backends)) == ("a:b", "w.pt", "./x.so", "mod")
    assert stored.list_code_names(codec.encode(Function(path="os:system"))) == ("os:system",)
    assert stored.list_code_names(codec.encode(Cpu())) == ()


@pytest.mark.parametrize(
    "value", ["/etc/passwd", "../x", "a.b", "a b", "x" * 100, 2**40, [["/x"]], float("inf")]
)
def test_backends_of_other_packages_hold_numbers_and_words(value: Any) -> None:
    refused({"is": "backends/scripted", "threads": 1, "slow": value})
    stored.demand_safe_data(
        {"is": "backends/scripted", "threads": 1, "slow": 1.5, "how": "as-is"}, "x"
    )


@pytest.mark.parametrize("name", ["evil.py:X", "../evil", "a/b.py:X", "", "a b"])
def test_a_backend_is_named_not_pathed(name: str) -> None:
    refused({"is": f"backends/{name}"}, "is not an installed backend")


def test_nesting_is_bounded() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    refused(deep, "nested too deeply")
    refused({"is": "backends/scripted", "slow": deep}, "nested too deeply")
    with pytest.raises(ValueError, match="nested too deeply"):
        stored.parse_json("[" * 100_000)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "",
        b"\xff\xfe",
        '"\\ud800"',
        b'{"\\uDcFF": 1}',
        "9" * 10_000,
        "\ufeff{}",
        f"[{'{},' * 600_000}1]",
    ],
)
def test_what_is_no_json_or_cannot_be_written_again(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        stored.parse_json(text)
    assert stored.parse_json('"\\ud83d\\ude00"') == "\U0001f600"


def test_what_is_refused_is_shown_short_and_without_control_characters() -> None:
    error = refused(codec.encode(Cpu()) | {"level": "\x1b[2J" + "x" * 100_000})
    assert len(error.what) < 300 and error.what.isprintable() and "\\x1b" in error.what


class TestThreads:
    def test_counts_above_the_cpus_are_lowered(self) -> None:
        given = Cpu(threads=5000, parallel=True, inter_threads=300, affinity="2;3;4")
        expected = Cpu(threads=2, parallel=True, inter_threads=2)
        assert stored.limit_threads(given, 2) == (expected, 5000)
        assert stored.limit_threads(Openvino(streams=64, threads=1), 4) == (
            Openvino(streams=4, threads=1),
            64,
        )

    def test_counts_that_fit_are_kept(self) -> None:
        for given in (Cpu(), Cpu(threads=2, affinity="2"), Openvino(streams=2)):
            assert stored.limit_threads(given, 2) == (given, 0)

    def test_behind_buckets_too(self) -> None:
        given = Bucketed(threads=99, inner=Cpu(parallel=True, inter_threads=50))
        fit, most = stored.limit_threads(given, 2)
        assert most == stored.count_requested_threads(given) == 99
        assert fit == Bucketed(threads=2, inner=Cpu(parallel=True, inter_threads=2))


class TestCodec:
    @pytest.mark.parametrize("name", ["metrics/top1", "quantizers/fp16", "workloads/latency"])
    def test_a_plugin_of_another_kind_is_said(self, name: str) -> None:
        with pytest.raises(BadSettings, match=f"'{name}' is not a backend") as caught:
            codec.decode(Backend, {"is": name})
        assert len(str(caught.value).splitlines()) == 2
        with pytest.raises(BadSettings, match=r"inner=.*is not a backend"):
            codec.decode(Backend, {"is": "backends/bucketed", "inner": {"is": name}})

    @pytest.mark.parametrize("data", [{}, {"threads": 1}, [], None, "cpu"])
    def test_a_plugin_without_a_name_is_said(self, data: object) -> None:
        from ortune.core.metric import Metric
        from ortune.core.step import Step

        for kind, said in (
            (Backend, "one of backends"),
            (Metric, "one of metrics"),
            (Step, "one"),
        ):
            with pytest.raises(BadSettings, match=said):
                codec.decode(kind, data)  # type: ignore[arg-type]

    def test_a_number_beyond_64_bits_is_said(self) -> None:
        with pytest.raises(BadSettings, match="too large"):
            codec.decode(float, 10**400)
        with pytest.raises(BadSettings, match="too large"):
            codec.decode(Backend, {"is": "backends/cpu", "threads": 10**400})

    @pytest.mark.parametrize("field", ["a b", "class", "apply", "origin", "__init__", "1"])
    @pytest.mark.parametrize("name", ["transforms/x.py:Y", "transforms/a\0b", "transforms/\ud800"])
    def test_stand_ins_take_no_odd_fields(self, field: str, name: str) -> None:
        from ortune.core.step import Transform

        with pytest.raises(BadSettings, match="has no field"):
            codec.decode(Transform, {"is": name, field: 1})
        codec.decode(Transform, {"is": name, "mine": 1})


@pytest.mark.parametrize("ends", [(0.5, 0.6, 0.4), (0.0, -1.0, 0.0), (-0.1, 0.5, 0.6)])
def test_an_interval_whose_ends_are_on_the_wrong_sides(ends: tuple[float, ...]) -> None:
    low, value, high = ends
    with pytest.raises(BadSettings, match="is not an interval"):
        stored.demand_safe_data({"ratio": {"value": value, "low": low, "high": high}}, "a run")


def test_a_difference_may_lie_below_nothing_where_it_is_expected() -> None:
    stored.demand_safe_data(
        {"gain": {"value": -0.1, "low": -0.2, "high": 0.1}}, "a run", signed=True
    )
    with pytest.raises(BadSettings, match="is not an interval"):
        stored.demand_safe_data(
            {"gain": {"value": -0.1, "low": 0.0, "high": 0.1}}, "a run", signed=True
        )


def test_an_interval_and_what_was_not_measured() -> None:
    stored.demand_safe_data({"ratio": {"value": 0.5, "low": 0.0, "high": 0.6}}, "a run")
    stored.demand_safe_data([{"value": float("nan"), "low": float("nan"), "high": 1.0}], "a run")


@dataclass(frozen=True)
class _Row:
    name: str
    size: int
    note: str = ""


def test_fields_that_are_missing_are_named() -> None:
    with pytest.raises(BadSettings) as caught:
        codec.build_dataclass(_Row, {"note": "x"})
    assert caught.value.what == "Row lacks 'name, size'"


def test_what_has_a_default_may_be_missing() -> None:
    assert codec.build_dataclass(_Row, {"name": "a", "size": 1}) == _Row("a", 1)
