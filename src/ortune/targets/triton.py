"""NVIDIA Triton Inference Server: a model repository for a named release."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.bundle.target import Replay, Source, Target
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.errors import BackendMissing, BadModel, BadSettings
from ortune.core.facts import TensorSpec
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.hardware.instances import InstanceGroup, count_instances, read_instances
from ortune.core.plugins import stored
from ortune.core.plugins.bounds import Bounds
from ortune.measurement.process import optimize_in_worker, translate_failures
from ortune.serving.protocol import datatypes
from ortune.targets.common import replay
from ortune.targets.common.plain_session import copy_model
from ortune.targets.common.replay import count_threads, find_environment, replay_in_workers

CONFIG = "config.pbtxt"
RELEASES: Mapping[str, Mapping[str, str]] = {"26.05": {"onnxruntime": "1.24.4"}}
"""Release -> what its server's ``build.py`` pins. A release is added when that was looked up: of
26.05 the OpenVINO is not recorded."""
_VERSION = "1"
_WARM_UP = "warmup"
_LEVELS = {"all": 0, "basic": -1, "extended": 1, "disabled": 2}
"""Graph level -> Triton's number; 0 is its default, all."""
_INITIALIZERS = "session.use_device_allocator_for_initializers"
"""The one session key that the onnxruntime backend passes on."""
_CPU_FIELDS = (
    *("threads", "level", "parallel", "inter_threads", "arena", "memory_pattern", "config"),
)
"""Fields of a CPU plan that a configuration can say."""
_REWRITING = ("disable", "fast_gelu", "cast_chains", "nbits_block")
"""Fields that act when the graph is rewritten: they hold in a graph that is stored rewritten."""
_OPENVINO_FIELDS = ("threads", "precision", "hint", "streams")
_PLAIN = frozenset(range(0x20, 0x7F)) - set(b'"\\')
"""Octets that a text of ``config.pbtxt`` has as they are."""

_FLAG = r"0|1|true|false"
_COUNT = r"-?\d{1,20}"
_SIZE = r"\d{1,20}"
_TEXT = r"[^\x00-\x1f\x7f]{1,4096}"
_SHAPES = r"[^\s,:]+:\d+(x\d+)*(,[^\s,:]+:\d+(x\d+)*)*"
_NAMED = {_TEXT: "a text", _SHAPES: "INPUT:1x3x224x224", _COUNT: "a number", _FLAG: "0 or 1"}
_OPTIONS: Mapping[tuple[str, str], str] = {
    ("tensorrt", "FP32|FP16|BF16|INT8"): "precision_mode",
    ("tensorrt", _SIZE): "max_workspace_size_bytes",
    ("tensorrt", _TEXT): (
        "int8_calibration_table_name trt_engine_cache_path trt_engine_cache_prefix "
        "trt_ep_context_file_path trt_extra_plugin_lib_paths trt_timing_cache_path"
    ),
    ("tensorrt", _FLAG): (
        "int8_use_native_calibration_table trt_build_heuristics_enable "
        "trt_context_memory_sharing_enable trt_cuda_graph_enable trt_detailed_build_log "
        "trt_dla_enable trt_dump_ep_context_model trt_dump_subgraphs trt_engine_cache_enable "
        "trt_force_sequential_engine_build trt_force_timing_cache trt_layer_norm_fp32_fallback "
        "trt_sparsity_enable trt_timing_cache_enable"
    ),
    ("tensorrt", _COUNT): (
        "trt_auxiliary_streams trt_builder_optimization_level trt_dla_core "
        "trt_ep_context_embed_mode trt_max_partition_iterations trt_min_subgraph_size"
    ),
    ("tensorrt", _SHAPES): (
        "trt_profile_max_shapes trt_profile_min_shapes trt_profile_opt_shapes"
    ),
    ("tensorrt", r"[+-]\w+(,[+-]\w+)*"): "trt_tactic_sources",
    ("cuda", "kNextPowerOfTwo|kSameAsRequested"): "arena_extend_strategy",
    ("cuda", "EXHAUSTIVE|HEURISTIC|DEFAULT"): "cudnn_conv_algo_search",
    ("cuda", _FLAG): (
        "cudnn_conv1d_pad_to_nc1d cudnn_conv_use_max_workspace do_copy_in_default_stream "
        "enable_cuda_graph enable_skip_layer_norm_strict_mode fuse_conv_bias prefer_nhwc "
        "tunable_op_enable tunable_op_tuning_enable use_ep_level_unified_stream use_tf32"
    ),
    ("cuda", _SIZE): "gpu_mem_limit",
    ("cuda", _COUNT): "sdpa_kernel tunable_op_max_tuning_duration_ms",
}
"""Accelerator of a GPU and pattern of a value -> its options of that kind: what Triton's
onnxruntime backend reads, and for ``cuda`` the options of onnxruntime's provider. Devices and
streams are left out, as Triton sets them. Triton takes any name and any text, and fails when it
loads."""


@dataclass(frozen=True)
class Triton(Target):
    """A model repository, replayed under the runtime that the release carries.

    A plan for the CPU goes to Triton's onnxruntime backend, one for OpenVINO to its openvino
    backend. A plan with a setting that Triton cannot pass on is left to others.

    Attributes:
        replayed: Run the models under the release's runtime, in an environment of their own.
        limit: Share by which it may be slower than the bundle before packing fails.
        release: Year and month of the release, such as 26.05.
        instances: Sessions side by side, on each GPU where GPUs are given; or groups by device,
            such as "2@gpu0,2@gpu1", which nothing here has measured.
        gpus: Numbers of GPUs to serve on, which nothing here has measured; none is the CPU.
        batch: Most rows of one run; calls are stacked up to that. 0 leaves calls as they are.
        preferred: Batches that are run without waiting for more calls.
        delay_us: Microseconds that a batch waits for more calls.
        queue: Calls that may wait; 0 is no bound.
        timeout_us: Microseconds after which a waiting call is refused; 0 is never.
        accelerator: Execution accelerator on the GPUs.
        options: Its options, as ``key=value``.
        offline: Store the graph as the release's onnxruntime rewrites it for CPUs like this one,
            and have the server leave it as it is.
        warm_up: Run a golden sample when the server loads the model.
        onnxruntime: Version that the release carries, where it is not known here.
        openvino: The same of OpenVINO.
    """

    release: float = 26.05
    instances: Annotated[int | str, Bounds(low=1, high=1024)] = 1
    gpus: tuple[int, ...] = ()
    batch: int = 0
    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    queue: int = 0
    timeout_us: int = 0
    accelerator: Literal["", "tensorrt", "cuda"] = ""
    options: tuple[str, ...] = ()
    offline: bool = False
    warm_up: bool = True
    onnxruntime: str = ""
    openvino: str = ""

    def __post_init__(self) -> None:
        if not self.runtime_versions:
            raise BadSettings(
                f"release {self.release_name[:8]} of Triton is not known here",
                fix=f"use one of: {', '.join(RELEASES)}, or say what it carries: "
                f'triton(release={self.release_name[:8]}, onnxruntime="VERSION")',
            )
        read_accelerator_options(self.accelerator, self.options)
        if self.instances in (0, "0"):
            raise BadSettings("a server needs an instance", fix="give instances=1 or more")
        if self.gpus and any(group.kind for group in read_instances(self.instances)):
            raise BadSettings(
                f"instances='{self.instances}' names devices, and so does gpus",
                fix="leave gpus out",
            )
        if other := [group.device for group in self.groups if group.kind == "npu"]:
            raise BadSettings(f"Triton has no '{other[0]}'", fix="name cpu, gpu0, gpu1, ...")
        if self.accelerator and not self.gpu_numbers:
            raise BadSettings(
                f"accelerator '{self.accelerator}' is for GPUs, and none is given",
                fix="add gpus=[0]",
            )
        if (self.preferred or self.delay_us or self.queue or self.timeout_us) and not self.batch:
            raise BadSettings(
                "preferred, delay_us, queue and timeout_us apply to batches only, and batch=0 "
                "leaves calls unbatched",
                fix="add the most rows of a run, such as batch=8",
            )
        if over := [size for size in self.preferred if not 1 <= size <= self.batch]:
            raise BadSettings(
                f"a preferred batch of {over[0]} is not between 1 and batch={self.batch}",
                fix=f"give 1 to {self.batch}, or a larger batch",
            )

    @property
    def release_name(self) -> str:
        """The release as NVIDIA writes it, with two digits of the month."""
        return f"{self.release:.2f}"

    @property
    def runtime_versions(self) -> Mapping[str, str]:
        """Versions of runtimes inside the release; what a person says of it counts."""
        overrides = {"onnxruntime": self.onnxruntime, "openvino": self.openvino}
        release_versions = RELEASES.get(self.release_name, {})
        return {
            **release_versions,
            **{name: version for name, version in overrides.items() if version},
        }

    @property
    def groups(self) -> tuple[InstanceGroup, ...]:
        """The instances by device: those given, on each of `gpus` where these are."""
        instance_groups = read_instances(self.instances)
        if not self.gpus:
            return instance_groups
        return tuple(
            InstanceGroup(count_instances(instance_groups), "gpu", index) for index in self.gpus
        )

    @property
    def gpu_numbers(self) -> tuple[int, ...]:
        """Numbers of the GPUs that it serves on; none where it serves on the CPU."""
        return tuple(dict.fromkeys(group.index for group in self.groups if group.kind == "gpu"))

    def refuses(self, source: Source) -> str:
        """Settings that Triton cannot pass on, and types that it does not know."""
        refusal = self._openvino_refusal if _on_openvino(source) else self._cpu_refusal
        return refusal(source) or next(self._list_unfit_specs(source), "")

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write a folder a model: configuration, version 1, a golden sample as warm-up.

        Raises BackendMissing: the environment with the release's runtime is not there; BadModel: a
        model does not convert.
        """
        place = self._find_environment(source, demanded=self.replayed or self.offline)
        for name, label in source.labels.items():
            home = folder / label / _VERSION
            home.mkdir(parents=True)
            if _on_openvino(source):
                replay.write_models(source, {name: home / "model.xml"}, place)
            elif self.offline:
                problem = "the release's onnxruntime does not rewrite the model"
                backend, _ = stored.limit_threads(source.backend, effective_cpus())
                with translate_failures(problem, "leave offline=true out"):
                    optimize_in_worker(source.models[name], backend, home / "model.onnx", place)
            else:
                copy_model(source, name, home)
            warms_up = self.warm_up and name in source.plan.golden
            arrays = self._warm_up_sample(source, name).values() if warms_up else ()
            for index, array in enumerate(arrays):
                if array.dtype.kind not in "USO":
                    (folder / label / _WARM_UP).mkdir(exist_ok=True)
                    (folder / label / _WARM_UP / f"input{index}").write_bytes(array.tobytes())
            (folder / label / CONFIG).write_text(self.build_config(source, name), encoding="ascii")
        gpus = "--gpus all " if self.gpu_numbers else ""
        image = f"nvcr.io/nvidia/tritonserver:{self.release_name}-py3"
        how = f"docker run --rm {gpus}-p 8000:8000 -p 8001:8001 -v $PWD:/models {image}"
        return (f"{how} tritonserver --model-repository=/models",)

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Run the models as their configurations say, under the release's runtime.

        Raises BadModel: a configuration says other settings than were tuned, or a model does not
        run; BackendMissing: the environment is not there.
        """
        place = self._find_environment(source)
        file = "model.xml" if _on_openvino(source) else "model.onnx"
        for name, label in source.labels.items():
            if (folder / label / CONFIG).read_text(encoding="ascii") != self.build_config(
                source, name
            ):
                raise BadModel(
                    f"{label}/{CONFIG} does not say what the plan was tuned with", fix="pack again"
                )
        files = {name: folder / label / _VERSION / file for name, label in source.labels.items()}
        runtime = _find_runtime(source)
        by = f"{runtime} {self.runtime_versions[runtime]}"
        return replay_in_workers(source, files, self.make_backend(source), by, environment=place)

    def unrun(self, replay: Replay | None) -> str:
        """Triton itself is not here."""
        parts = [f"Triton {self.release_name} itself, its batching and its queues"]
        if replay is None:
            parts.append("the models under its runtime (not replayed)")
        if self.gpu_numbers:
            on = f"GPU {', '.join(map(str, self.gpu_numbers))}"
            on += f" with {self.accelerator}" if self.accelerator else ""
            parts.append(f"{on}, on which nothing was measured either")
        return "; ".join(parts)

    def make_backend(self, source: Source) -> Backend:
        """Return the plan's settings as the server has them: threads are a number.

        A graph that is stored rewritten is left as it is.
        """
        if _on_openvino(source):
            return replay.read_openvino_backend(source)
        backend = source.backend
        assert isinstance(backend, Cpu)
        inter_threads = (backend.inter_threads or count_threads(source)) if backend.parallel else 0
        tuned = replace(backend, threads=count_threads(source), inter_threads=inter_threads)
        if not self.offline:
            return tuned
        plain = {name: getattr(Cpu(), name) for name in _REWRITING}
        return replace(tuned, level="disabled", **plain)

    def build_config(self, source: Source, name: str) -> str:
        """Return the text of a model's ``config.pbtxt``."""
        signature = source.manifest.signatures[name]
        backend = self.make_backend(source)
        groups, gpus = [], dict[int, list[int]]()
        for group in self.groups:
            if group.kind == "gpu":  # those with as many instances each share one group
                gpus.setdefault(group.count, []).append(group.index)
            else:
                groups.append({"count": group.count, "kind": Word("KIND_CPU")})
        groups += [
            {"count": count, "kind": Word("KIND_GPU"), "gpus": numbers}
            for count, numbers in gpus.items()
        ]
        message: dict[str, Any] = {
            "name": source.labels[name],
            "backend": _find_runtime(source),
            "max_batch_size": self.batch,
            "default_model_filename": "model.xml" if _on_openvino(source) else "model.onnx",
            "input": [self._describe_tensor(spec) for spec in signature.inputs],
            "output": [self._describe_tensor(spec) for spec in signature.outputs],
            "instance_group": groups,
        }
        if self.batch:
            policy: dict[str, Any] = {}
            if self.timeout_us:
                policy["timeout_action"] = Word("REJECT")
                policy["default_timeout_microseconds"] = self.timeout_us
            if self.queue:
                policy["max_queue_size"] = self.queue
            message["dynamic_batching"] = {
                "preferred_batch_size": list(self.preferred),
                "max_queue_delay_microseconds": self.delay_us,
                **({"default_queue_policy": policy} if policy else {}),
            }
        if isinstance(backend, Cpu):
            optimization: dict[str, Any] = {}
            if level := _LEVELS[backend.level]:
                optimization["graph"] = {"level": level}
            if self.accelerator:
                options = read_accelerator_options(self.accelerator, self.options).items()
                pairs = [{"key": key, "value": value} for key, value in options]
                accelerator = {"name": self.accelerator, "parameters": pairs}
                optimization["execution_accelerators"] = {
                    "gpu_execution_accelerator": [accelerator]
                }
            if optimization:
                message["optimization"] = optimization
            parameters = {
                "intra_op_thread_count": str(backend.threads),
                "execution_mode": str(int(backend.parallel)),
                "enable_mem_arena": str(int(backend.arena)),
                "enable_mem_pattern": str(int(backend.memory_pattern)),
            }
            if backend.parallel:
                parameters["inter_op_thread_count"] = str(backend.inter_threads)
            parameters = parameters | dict(text.split("=", 1) for text in backend.config)
        else:
            assert isinstance(backend, Openvino)
            parameters = {
                "INFERENCE_NUM_THREADS": str(backend.threads),
                "PERFORMANCE_HINT": backend.hint.upper(),
                **({"HINT_BF16": "YES"} if backend.precision == "bf16" else {}),
                **({"NUM_STREAMS": str(backend.streams)} if backend.streams else {}),
            }
        message["parameters"] = [
            {"key": key, "value": {"string_value": value}} for key, value in parameters.items()
        ]
        if self.warm_up and name in source.plan.golden:
            message["model_warmup"] = [self._warm_up_entry(source, name)]
        return spell_message(message)

    def _cpu_refusal(self, source: Source) -> str:
        backend = source.backend
        if not isinstance(backend, Cpu):
            return f"Triton's onnxruntime backend does not run '{backend.name()}'"
        if "onnxruntime" not in self.runtime_versions:
            return f"which onnxruntime Triton {self.release_name} carries is not known here"
        if backend.custom_ops:
            return "its libraries of custom operators have no place that holds on every server"
        lost = _list_changed_fields(
            backend, (*_CPU_FIELDS, *_REWRITING) if self.offline else _CPU_FIELDS
        )
        lost += [text for text in backend.config if not text.startswith(f"{_INITIALIZERS}=")]
        if not lost:
            return ""
        how = "; offline=true stores the rewritten graph" if lost[0] in _REWRITING else ""
        return f"Triton has no setting for {', '.join(lost)}{how}"

    def _openvino_refusal(self, source: Source) -> str:
        """Say why Triton's openvino backend cannot run a plan as measured.

        It asks for bfloat16 or says nothing of precision, and then OpenVINO takes bfloat16 where
        the CPU has it.
        """
        backend = source.backend
        assert isinstance(backend, Openvino)
        if self.gpu_numbers:
            return "Triton's openvino backend serves on the CPU alone"
        if self.offline:
            return "offline=true is about onnxruntime's graph"
        if "openvino" not in self.runtime_versions:
            return f"which openvino Triton {self.release_name} carries is not known here"
        if lost := _list_changed_fields(backend, _OPENVINO_FIELDS):
            return f"Triton's openvino backend has no setting for {', '.join(lost)}; ovms has"
        if backend.precision == "f16":
            return "Triton's openvino backend cannot ask for f16; ovms can"
        sets = source.manifest.machine.get("instruction sets", "").split()
        if backend.precision == "f32" and (
            not sets or any(name.endswith("bf16") for name in sets)
        ):
            return (
                "Triton's openvino backend cannot ask for f32, and OpenVINO computes in bf16 on "
                "CPUs like that of the measurement; ovms can"
            )
        return ""

    def _list_unfit_specs(self, source: Source) -> Iterator[str]:
        """Yield why inputs and outputs cannot be described to Triton."""
        for name, signature in source.manifest.signatures.items():
            for spec in (*signature.inputs, *signature.outputs):
                shown = f"'{spec.name}' of {name or 'the model'}"
                if not datatypes.has_datatype(spec.dtype):
                    yield f"Triton has no type for {shown}, {spec.dtype or 'of unknown type'}"
                elif spec.shape is None:
                    yield f"the rank of {shown} is unknown"
                elif any(dim == 0 for dim in spec.shape):
                    yield f"{shown} has a dimension of size 0"
                elif self.batch and (not spec.shape or isinstance(spec.shape[0], int)):
                    yield f"the first dimension of {shown} is fixed: calls cannot be stacked"

    def _find_environment(self, source: Source, *, demanded: bool = True) -> str:
        """Return where the release's runtime is; this process's own place where it need not be."""
        runtime = _find_runtime(source)
        version = self.runtime_versions[runtime]
        name, fix = find_environment(runtime, version)
        if fix is None:
            return name
        if demanded:
            raise BackendMissing(
                f"Triton {self.release_name} carries {runtime} {version}, which is not here to "
                "run the package with",
                fix=f"{fix}, or write it without: triton(replayed=false)",
            )
        return HERE

    def _describe_tensor(self, spec: TensorSpec) -> dict[str, Any]:
        """Describe an input or output; where calls are stacked, without the first dimension."""
        shape = (spec.shape or ())[1 if self.batch else 0 :]
        dims = [dim if isinstance(dim, int) else -1 for dim in shape]
        message = {"name": spec.name, "data_type": _data_type(spec.dtype), "dims": dims or [1]}
        return message if dims else message | {"reshape": {"shape": []}}

    def _warm_up_sample(self, source: Source, name: str) -> dict[str, np.ndarray[Any, Any]]:
        """Return the first golden sample, of one row where calls are stacked."""
        feeds, _ = next(iter(source.feeds(name)))
        arrays = {tensor: np.asarray(array) for tensor, array in feeds.items()}
        return {tensor: values[:1] if self.batch else values for tensor, values in arrays.items()}

    def _warm_up_entry(self, source: Source, name: str) -> dict[str, Any]:
        """Return the entry of a configuration that has the server run a golden sample."""
        types = {spec.name: spec.dtype for spec in source.manifest.signatures[name].inputs}
        inputs = []
        for index, (tensor, array) in enumerate(self._warm_up_sample(source, name).items()):
            dims = list(array.shape[1 if self.batch else 0 :]) or [1]
            is_text = array.dtype.kind in "USO"
            values = {"zero_data": True} if is_text else {"input_data_file": f"input{index}"}
            value = {"data_type": _data_type(types[tensor]), "dims": dims, **values}
            inputs.append({"key": tensor, "value": value})
        return {"name": "golden sample", "batch_size": min(self.batch, 1), "inputs": inputs}


def read_accelerator_options(accelerator: str, texts: Sequence[str]) -> dict[str, str]:
    """Return ``key=value`` texts as a mapping; BadSettings for what the accelerator has not."""
    if texts and not accelerator:
        raise BadSettings(
            f"'{texts[0]}' is an option of an accelerator, and none is given",
            fix="add accelerator=tensorrt or accelerator=cuda",
        )
    patterns = {
        option: pattern
        for (name, pattern), options in _OPTIONS.items()
        if name == accelerator
        for option in options.split()
    }
    read: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if key not in patterns:
            raise BadSettings(
                f"{accelerator} has no option '{key}'",
                fix=f"use one of: {', '.join(sorted(patterns))}",
            )
        if key in read:
            raise BadSettings(f"option '{key}' is given twice", fix="keep one")
        if not equals or re.fullmatch(patterns[key], value) is None:
            named = _NAMED.get(patterns[key], patterns[key].replace("|", ", "))
            raise BadSettings(
                f"'{value}' is no value of {accelerator}'s '{key}'",
                fix=f"give {named} behind {key}=",
            )
        read[key] = value
    return read


def _on_openvino(source: Source) -> bool:
    return isinstance(source.backend, Openvino)


def _find_runtime(source: Source) -> str:
    """Return the backend of Triton that runs a plan, which is its distribution's name too."""
    return "openvino" if _on_openvino(source) else "onnxruntime"


def _list_changed_fields(backend: Backend, spellable: Sequence[str]) -> list[str]:
    """Return the fields that are not at their defaults, but for those that can be said."""
    plain = type(backend)()
    return [
        entry.name
        for entry in fields(backend)
        if entry.name not in spellable
        and getattr(backend, entry.name) != getattr(plain, entry.name)
    ]


def _data_type(dtype: str) -> Word:
    """Return Triton's name of a type: the protocol's, but for text."""
    return Word(f"TYPE_{datatypes.find_datatype(dtype).replace('BYTES', 'STRING')}")


class Word(str):
    """The name of an enumeration's value: written without quotes."""


def spell_message(message: Mapping[str, Any], indent: str = "") -> str:
    """Return a message in protocol buffers' text format, fields in the order given.

    A message is a mapping of field to value; a sequence stands for a repeated field.
    """
    return "".join(_spell_field(name, value, indent) for name, value in message.items())


def _spell_field(name: str, value: object, indent: str) -> str:
    if isinstance(value, Mapping):
        return f"{indent}{name} {{\n{spell_message(value, indent + '  ')}{indent}}}\n"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(item, Mapping) for item in value):
            return "".join(_spell_field(name, item, indent) for item in value)
        return f"{indent}{name}: [{', '.join(map(_spell_scalar, value))}]\n" if value else ""
    return f"{indent}{name}: {_spell_scalar(value)}\n"


def _spell_scalar(value: object) -> str:
    """Write a value; of texts all but plain ASCII as octal bytes: a stranger wrote the names."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Word | int):
        return str(value)
    parts = (chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in str(value).encode())
    return f'"{"".join(parts)}"'
