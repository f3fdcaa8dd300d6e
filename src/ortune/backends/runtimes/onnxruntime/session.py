"""Every onnxruntime session is opened here; the one file that names its options."""

import ctypes
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.backends.runtimes.onnxruntime import checks as op_libraries
from ortune.core import wording
from ortune.core.errors import BackendMissing, BadModel, summarize_error
from ortune.core.facts import NEWEST_IR, NEWEST_OPSET
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.session import InProcess, Tensors
from ortune.core.termination import find_termination

Run: TypeAlias = Callable[[Sequence[str], Tensors, Any], list[NDArray[Any]]]
"""Runs a session: names of outputs, inputs, and RunOptions or None."""

_TYPE, _ONNX_TYPE = "tensor(bfloat16)", 16
"""As onnxruntime names it; the number of ``TensorProto.BFLOAT16``."""


def _make_runner(session: Any) -> Run:
    """Return what runs a session: its own `run`, or where a value is bfloat16 its own values.

    NumPy has no bfloat16: arrays of ml_dtypes' are handed over, and taken, as they lie in memory.
    """
    from onnxruntime import OrtValue

    if not any(value.type == _TYPE for value in (*session.get_inputs(), *session.get_outputs())):
        run: Run = session.run
        return run

    def run_with_values(names: Sequence[str], feeds: Tensors, options: Any) -> list[NDArray[Any]]:
        kept = {name: np.require(array, requirements="C") for name, array in feeds.items()}
        values = {}  # views: `kept` outlives the run
        for name, array in kept.items():
            if array.dtype.name == "bfloat16":
                bits = array.view(np.uint16)
                values[name] = OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _ONNX_TYPE)
            else:
                values[name] = OrtValue.ortvalue_from_numpy(array)
        outputs = session.run_with_ort_values(list(names), values, options)
        return [_read_array(value) for value in outputs]

    return run_with_values


LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_LOG_VERBOSE, _LOG_WARNING, _LOG_FATAL = 1, 2, 4
"""What is logged as an error is raised too."""

_CPU = "CPUExecutionProvider"
_DOCTOR = "ask `ortune doctor` what is missing, or use --on cpu"
_NO_START = "Error creating execution provider"
UNLOADED = "run `ortune inspect` on it; -v shows the runtime's log"
"""The fix of a model that a session refuses for none of the known reasons."""

_UNKNOWN_OP = "give the library of its custom operators with --custom-ops"


@contextmanager
def make_run_options() -> Iterator[Any]:
    """Yield the RunOptions of one run that can be told to end; None where nobody will.

    The runtime looks between two nodes, also of the bodies of loops.

    Raises:
        RunTerminated: It was told to end.
    """
    if (termination := find_termination()) is None:
        yield None
        return
    import onnxruntime as ort

    run_options = ort.RunOptions()
    run_options.log_severity_level = _LOG_FATAL  # that it ends is no error of the model's
    with termination.watch_run(partial(setattr, run_options, "terminate", True)):
        yield run_options


class OrtSession(InProcess):
    """An onnxruntime session behind the Session protocol."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._names = [value.name for value in inner.get_outputs()]
        self._run = _make_runner(inner)

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        with make_run_options() as run_options:
            outputs = self._run(self._names, feeds, run_options)
        return dict(zip(self._names, outputs, strict=True))

    def placement(self) -> Mapping[str, int]:
        """Read the runtime's own record of which provider took how many nodes."""
        return {provider: len(names) for provider, names in self.list_assigned_nodes().items()}

    def list_assigned_nodes(self) -> dict[str, tuple[str, ...]]:
        """Return provider -> names of the nodes it took, from the runtime's own record.

        The nodes are those of the graph when it was divided, before fusions across it. Empty on
        versions that keep no record.
        """
        nodes: dict[str, tuple[str, ...]] = {}
        for provider, names in self.list_graph_parts():
            nodes[provider] = (*nodes.get(provider, ()), *names)
        return nodes

    def list_assigned_ops(self) -> dict[str, list[tuple[str, str]]]:
        """Return provider -> name and operator of each node that it took."""
        ops: dict[str, list[tuple[str, str]]] = {}
        for part in self._read_subgraphs():
            nodes = [(node.name or node.op_type, node.op_type) for node in part.get_nodes()]
            ops.setdefault(part.ep_name, []).extend(nodes)
        return ops

    @property
    def records(self) -> bool:
        """Whether this version of the runtime keeps a record of its placement."""
        return hasattr(self.inner, "get_provider_graph_assignment_info")

    def list_graph_parts(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return provider and nodes of every part of the divided graph."""
        return [
            (part.ep_name, tuple(node.name or node.op_type for node in part.get_nodes()))
            for part in self._read_subgraphs()
        ]

    def _read_subgraphs(self) -> list[Any]:
        try:
            return list(self.inner.get_provider_graph_assignment_info())
        except (AttributeError, RuntimeError):
            return []


def explain_missing_runtime() -> str | None:
    """Say how to install onnxruntime when it is not there."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return "pip install onnxruntime"
    return None


def list_providers() -> tuple[str, ...]:
    """Return the installed runtime's execution providers, its preferred one first; or none."""
    with suppress(ImportError):
        import onnxruntime as ort

        return tuple(ort.get_available_providers())
    return ()


def version_here() -> str:
    """Return the installed runtime's version, whichever of its packages it is."""
    import onnxruntime as ort

    return str(ort.__version__)


def list_device_kinds() -> dict[str, tuple[str, ...]]:
    """Return provider -> kinds of its devices, such as ``CPU`` or ``GPU``."""
    kinds: dict[str, tuple[str, ...]] = {}
    with suppress(ImportError):
        import onnxruntime as ort

        for device in ort.get_ep_devices():
            kinds[device.ep_name] = (*kinds.get(device.ep_name, ()), device.device.type.name)
    return kinds


def make_session_options(
    threads: int,
    level: str,
    *,
    verbose: bool,
    save_to: Path | None = None,
    custom_ops: Sequence[str] = (),
) -> Any:
    """Return SessionOptions with every default that matters written out.

    Raises:
        BadSettings: A library of custom operators cannot be used.
    """
    import onnxruntime as ort

    session_options = ort.SessionOptions()
    session_options.intra_op_num_threads = threads or effective_cpus()
    session_options.inter_op_num_threads = 1
    session_options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    session_options.log_severity_level = _LOG_VERBOSE if verbose else _LOG_FATAL
    session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    op_libraries.register(session_options, custom_ops)
    if save_to is not None:
        session_options.optimized_model_filepath = str(save_to)
        session_options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{save_to.name}.data"
        )
        keep_beside(session_options, 1 << 31)
    return session_options


def log_warnings(session_options: Any) -> None:
    """Let a session log warnings, for whoever reads what it logs while it opens."""
    session_options.log_severity_level = _LOG_WARNING


def keep_beside(session_options: Any, least: int) -> None:
    """Save weights of `least` bytes and more in a file beside the rewritten graph's."""
    session_options.add_session_config_entry(
        "session.optimized_model_external_initializers_min_size_in_bytes", str(least)
    )


def side_by_side(session_options: Any, threads: int) -> None:
    """Let independent operators run at the same time, over `threads`; 0 takes the CPUs."""
    import onnxruntime as ort

    session_options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    session_options.inter_op_num_threads = threads or effective_cpus()


def share_small_arena() -> None:
    """Register an arena that grows as requested for this process's sessions.

    Sessions with ``session.use_env_allocators`` share it; one registered before is replaced. A
    session's own arena takes no such option on the CPU (OrtApi::CreateArenaCfgV2).
    """
    import onnxruntime as ort

    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    as_requested = ort.OrtArenaCfg({"max_mem": 0, "arena_extend_strategy": 1})
    ort.create_and_register_allocator(memory, as_requested)


def _advise_older(text: str) -> str:
    """Return how to get a file that this release reads, where one says that it is too new."""
    opset = re.search(r"domain ai\.onnx is till opset (\d+)", text)
    version = re.search(r"max supported IR version: (\d+)", text)
    if "Could not find an implementation for Swish(" in text:  # found in opset 24, not in later
        step = "lower-opset(to=24)"
    elif opset:
        step = f"lower-opset(to={opset[1]})"
    elif version and int(version[1]) < NEWEST_IR:
        step = f"ir-version(to={version[1]})"
    elif version:  # such a file's operators are often too new as well
        step = f"lower-opset(to={NEWEST_OPSET})"
    else:
        return ""
    return f'`ortune apply M "{step}" -o OUT` writes one that it reads'


@contextmanager
def open_session(
    path: Path,
    session_options: Any,
    *,
    provider: str = "",
    chain: Sequence[tuple[str, Mapping[str, str]]] = (),
    disabled: Sequence[str] = (),
    content: bytes | None = None,
) -> Iterator[OrtSession]:
    """Open a session and prove that `provider` took a part of the model.

    A runtime that keeps no record of its placement (onnxruntime 1.23) proves nothing: there only
    a profile tells what ran where.

    Args:
        session_options: SessionOptions; a plug-in provider is already added to them.
        provider: Execution provider that must hold at least one node; empty for the CPU's own.
        chain: Providers of the package in order of preference, each with its options, `provider`
            first and the CPU's left out; empty where `session_options` has the devices of a
            plug-in.
        content: What to load in the place of the file; external data lies beside the file.

    Raises:
        BadModel: The runtime does not accept the model.
        BackendMissing: The provider was asked for and does not start, or took nothing.
    """
    import onnxruntime as ort

    # The runtime's own fall-back prints to stdout and goes on without the provider.
    keywords: dict[str, Any] = {"enable_fallback": 0} if provider else {"providers": [_CPU]}
    if chain:
        if provider not in list_providers():
            raise BackendMissing(f"the installed onnxruntime has no {provider}", fix=_DOCTOR)
        options_by_provider = {**dict(chain), _CPU: {}}
        named = [(name, dict(options)) for name, options in options_by_provider.items()]
        keywords["providers"] = named
    if disabled:
        keywords["disabled_optimizers"] = list(disabled)
    if content is not None:
        folder = str(path.absolute().parent)
        session_options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", folder
        )
    try:
        inner = ort.InferenceSession(content or str(path), session_options, **keywords)
    except Exception as error:
        text, reason = str(error), summarize_error(error)
        if provider and _NO_START in text:
            raise BackendMissing(
                f"{provider} does not start here: {reason}", fix=_DOCTOR
            ) from error
        unknown = "is not a registered function/op" in text
        raise BadModel(
            f"onnxruntime {ort.__version__} does not load {path.name}: {reason}",
            fix=_advise_older(text) or (_UNKNOWN_OP if unknown else UNLOADED),
        ) from error
    if chain and (first := inner.get_providers()[0]) != provider:
        raise BackendMissing(
            f"{provider} does not start here, and the session would run on {first}", fix=_DOCTOR
        )
    opened = OrtSession(inner)
    placed = opened.placement()
    if provider and placed and not placed.get(provider):
        raise BackendMissing(
            f"{provider} took none of "
            f"{wording.format_count(sum(placed.values()), 'node')} of {path.name}",
            fix="leave this backend out with --on cpu",
        )
    yield opened


def _read_array(value: Any) -> NDArray[Any]:
    if value.data_type() != _TYPE:
        array: NDArray[Any] = value.numpy()
        return array
    try:
        import ml_dtypes
    except ImportError:  # beside numpy and onnxruntime alone it is missing
        raise BackendMissing(
            "an output is bfloat16, which NumPy lacks", fix="pip install ml_dtypes"
        ) from None
    shape = value.shape()
    size = 2 * math.prod(shape)
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(bytearray(data), ml_dtypes.bfloat16).reshape(shape)
