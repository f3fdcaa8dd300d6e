"""Models that a provider has compiled ahead: ONNX files whose nodes hold what it built.

onnxruntime's design of EP context (docs/execution-providers/EP-Context-Design.md): a subgraph
that a provider took becomes one node ``com.microsoft::EPContext`` with the provider's own bytes.
Such a file opens in a moment, and only with the releases and on the device that it was made for.
"""

import hashlib
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from ortune.core.errors import BackendMissing, BadModel, summarize_error
from ortune.core.hardware.cpus import cpu_model, instruction_sets
from ortune.core.hardware.gpu import read_driver_versions
from ortune.graph.io.protobuf import walk_messages

_NODE = ("EPContext", "com.microsoft")


@runtime_checkable
class CompilingBackend(Protocol):
    """A backend whose provider compiles models ahead of time."""

    def compile(self, path: Path, out: Path) -> None:
        """Write a model as the provider compiles it; `open` takes that file like any other.

        Raises:
            BackendMissing: The provider is not here, or compiles nothing of it.
            BadModel: The runtime does not accept the model.
        """
        ...

    def compiled_for(self) -> Mapping[str, str]:
        """Return all that must be the same where a compiled file is opened.

        Raises:
            BackendMissing: The provider is not here.
        """
        ...


@dataclass(frozen=True)
class CompiledNode:
    """One part of a model that a provider compiled, into this file if `embedded`."""

    source: str
    embedded: bool


def compile_model(
    path: Path, options: Any, out: Path, provider: str, content: bytes | None = None
) -> None:
    """Write a model with everything that the provider compiles of it embedded.

    Args:
        options: SessionOptions that have the provider, as a session would be opened with.
        content: The model, in the place of the file; external data lies beside the file.

    Raises:
        BackendMissing: The installed onnxruntime has no compiler, or the provider took no node.
        BadModel: The model is not compiled, for another reason.
    """
    import onnxruntime as ort

    if not hasattr(ort, "ModelCompiler"):
        raise BackendMissing(
            f"onnxruntime {ort.__version__} compiles no model ahead of time",
            fix="pip install 'onnxruntime>=1.23'",
        )
    if content is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(path.absolute().parent)
        )
    try:
        ort.ModelCompiler(
            options, content or str(path), embed_compiled_data_into_model=True
        ).compile_to_file(str(out))
    except Exception as error:
        raise BadModel(
            f"{provider} does not compile {path.name}: {summarize_error(error)}",
            fix="leave --compiled out: it is compiled when it loads",
        ) from error
    if not list_compiled_nodes(out):
        out.unlink()
        raise BackendMissing(
            f"{provider} compiled no node of {path.name}", fix="leave --compiled out"
        )


def list_compiled_nodes(path: Path) -> list[CompiledNode]:
    """Return the compiled nodes of a file; none of an ordinary model.

    Raises:
        BadModel: It is no model.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.ModelProto.FromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise BadModel(
            f"{path.name} is no compiled model: {error}", fix="compile it again"
        ) from error
    nodes = []
    for node in walk_messages(proto):
        if isinstance(node, onnx.NodeProto) and (node.op_type, node.domain) == _NODE:
            parts = {attribute.name: attribute for attribute in node.attribute}
            source = parts["source"].s.decode(errors="replace") if "source" in parts else ""
            embedded = "embed_mode" not in parts or parts["embed_mode"].i == 1
            # Of those that share another's bytes (``main_context`` 0) it is the other.
            main = "main_context" not in parts or parts["main_context"].i == 1
            embedded = embedded or not (main or parts.get("ep_cache_context"))
            nodes.append(CompiledNode(source, embedded))
    return nodes


def describe_build_environment(
    provider: str,
    device: Any = None,
    *packages: str,
    more: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return what a compiled model depends on besides itself, by name.

    Args:
        device: The runtime's description of a plug-in's device (OrtEpDevice), where there is one.
        packages: Distributions that bring the provider.
        more: Anything else, such as the name of a GPU.
    """
    environment = {"provider": provider, "system": f"{platform.system()} {platform.machine()}"}
    for name in ("onnxruntime", *packages):
        with suppress(PackageNotFoundError):
            environment[name] = version(name)
    kind = device.device.type.name if device is not None else ""
    if kind == "CPU":
        flags = " ".join(sorted(instruction_sets()))
        environment["device"] = cpu_model()
        environment["instruction sets"] = hashlib.sha256(flags.encode()).hexdigest()[:16]
    elif device is not None:
        hardware = device.device
        metadata = {**dict(hardware.metadata), **dict(device.ep_metadata)}
        environment["device"] = (
            f"{kind} {hardware.vendor} {hardware.vendor_id:x}:{hardware.device_id:x}"
        )
        environment |= {
            key: metadata[key] for key in sorted(metadata) if "version" in key.casefold()
        }
    if kind != "CPU" and (driver_version := read_driver_versions().get("driver")):
        environment["driver"] = driver_version
    return {**environment, **more}
