"""Model files in and out: weights are mapped on the way in and streamed on the way out."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx_ir.passes import common

from ortune.core import hub
from ortune.core.errors import BadModel, OrtuneError, summarize_error
from ortune.graph.io import external, names, protobuf, wellformed
from ortune.graph.io.wellformed import Invalid, list_problems
from ortune.graph.io.write import SOURCES, write_model
from ortune.graph.ir.edit import list_bodies, shape_of, walk_graphs

_CHUNK = 1 << 20
_NOT_ONNX = {
    b"PK\x03\x04": "a zip archive, such as a PyTorch checkpoint",
    b"version https://git-lfs": "a Git LFS pointer: the model itself was not fetched",
    b"\x1f\x8b": "gzip-compressed",
    b"\x89HDF": "an HDF5 file, such as a Keras model",
    b"<": "an HTML or XML page",
    b"{": "JSON",
}


def load(path: Path | str, *, newer_opset: bool = False) -> ir.Model:
    """Read a model; the weights are views of the mapped files and cost no memory until read.

    The result is brought to one form: no initializer of an IR 3 file is an input (there they are
    constants by definition), sparse constants are dense (as the runtime makes them), the default
    domain is spelled ``""``, and every node and value has a name of its own. External data in
    the model's folder is mapped like the file itself. Training information is left behind.

    Args:
        newer_opset: Let an opset pass that no operator here is known of: only to look at it.

    Raises:
        BadModel: There is no file, it is no ONNX model, or it is cut off; its external data is
            missing, too short, or outside the model's folder; it breaks ONNX's rules.
    """
    path = Path(path)
    proto = parse_outline(path)
    with report_read_errors(path):
        files = external.list_files(path, proto)
        for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
            kinds = value.type, value.type.sequence_type.elem_type
            if any(kind.HasField("map_type") for kind in kinds):
                raise BadModel(
                    f"{path}: '{value.name}' is a map, not a tensor",
                    fix="export plain tensors, as with zipmap=False in skl2onnx",
                )
        wellformed.validate_model(proto, newer_opset=newer_opset)
        _densify_graph(proto.graph)
        for function in proto.functions:
            for node in function.node:
                _densify_node(node)
        model = ir.serde.deserialize_model(proto)
        external.map_weights(model, files)
        # Bring domains, opsets, constants, shapes and the order of nodes to one form.
        for graph in walk_graphs(model):
            imports = graph.opset_imports
            if "ai.onnx" in imports:
                imports[""] = max(imports.pop("ai.onnx"), imports.get("", 0))
            _sort_nodes(graph)
            for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
                _clean_shape(value)
        if not model.opset_imports:
            model.opset_imports[""] = 1  # files older than IR 3 do not say
        if model.ir_version < FIRST_FREE_IR:
            common.RemoveInitializersFromInputsPass()(model)
        if wrong := list_problems(model):
            raise Invalid(wrong[0])
        names.make_names_unique(model)
        model.graph.meta[SOURCES] = tuple(str(file) for file in files.values())
    return model


@contextmanager
def report_read_errors(path: Path) -> Iterator[None]:
    """Tell whatever goes wrong with a file's content in two lines.

    Raises:
        BadModel: Something went wrong.
    """
    try:
        yield
    except OrtuneError:
        raise
    except Invalid as error:
        raise BadModel(f"{path} is not a valid model: {error}", fix=error.fix) from error
    except OSError as error:
        raise BadModel(f"cannot read {path}: {error.strerror}", fix="make it readable") from error
    except UnicodeDecodeError as error:
        raise BadModel(
            f"{path} is not a valid model: a name in it is not UTF-8", fix="export it again"
        ) from error
    except MemoryError as error:
        raise BadModel(f"{path} does not fit into memory", fix="free some, or split it") from error
    except Exception as error:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        raise BadModel(
            f"{path} is not a valid model: {summarize_error(root)}",
            fix="export it again; onnx.checker.check_model tells more",
        ) from error


def save(
    model: ir.Model, path: Path | str, *, external_above: int = 1_900_000_000, durable: bool = True
) -> Path:
    """Write a model beside `path`, then rename it into place; weights are streamed.

    Above `external_above` bytes of weights they go into one file ``NAME.data`` beside it. The IR
    version is lowered to the newest that the runtimes read. The model is unchanged afterwards.

    Args:
        durable: Wait until the disk has it; False for what is made again when it is gone.

    Raises:
        OrtuneError: The path cannot be written, or is one of the files the model was loaded from.
    """
    return write_model(model, Path(path), external_above, durable=durable)


def compute_digest(path: Path | str) -> str:
    """Return 32 hex digits of SHA-256 over the file and then its external data, by location.

    Raises:
        BadModel: As `load`.
    """
    path = Path(path)
    total = hashlib.sha256()
    for location, file in list_model_files(path).items():
        total.update(f"{location}\0{file.stat().st_size}\0".encode())
        _read_into(total, file)
    return total.hexdigest()[:32]


def compute_content_digest(path: Path | str) -> str:
    """Return 32 hex digits of SHA-256 over all but the metadata: of what the model computes.

    Raises:
        BadModel: As `load`.
    """
    path = Path(path)
    total = hashlib.sha256()
    files = list_model_files(path)
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for start, end in protobuf.without_metadata(data):
            for at in range(start, end, _CHUNK):
                total.update(data[at : min(end, at + _CHUNK)])
    for location, file in files.items():
        if file != path:
            total.update(f"{location}\0".encode())
            _read_into(total, file)
    return total.hexdigest()[:32]


def count_file_bytes(path: Path | str) -> int:
    """Return the bytes of the file and of its external data; raise `BadModel` as `load` does."""
    path = Path(path)
    return sum(file.stat().st_size for file in list_model_files(path).values())


def _read_into(total: hashlib._Hash, file: Path) -> None:
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            total.update(chunk)


def list_model_files(path: Path) -> dict[str, Path]:
    """Return location -> file, the model's own file first; raise `BadModel` as `load` does."""
    proto = parse_outline(path)
    with report_read_errors(path):
        return external.list_files(path, proto)


def parse_outline(path: Path) -> onnx.ModelProto:
    """Parse the file without its large weights.

    Raises:
        BadModel: As `load`, of what can be seen without them.
    """
    with report_read_errors(path):
        if not path.is_file():
            problem, fix = "not there", "give the path of an .onnx file"
            if path.exists():
                problem = "a folder" if path.is_dir() else "not a regular file"
            if path.is_dir() and hub.find_folder(path) is not None:
                problem = f"a folder without {hub.ONNX_FILES[0]}"
                onnx_files = sorted(map(str, path.rglob("*.onnx")))
                fix = f"ortune export {path} -o {path / hub.ONNX_FILES[0]}"
                fix = f"give one, such as {', '.join(onnx_files[:4])}" if onnx_files else fix
            raise BadModel(f"{path} is {problem}", fix=fix)
        if path.stat().st_size == 0:
            raise BadModel(f"{path} is empty", fix="copy or export the model again")
        with path.open("rb") as stream:
            head = stream.read(64)
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                try:
                    parsed = onnx.ModelProto.FromString(protobuf.strip_weights(data))
                except (protobuf.Malformed, DecodeError) as error:
                    raise _not_a_model(path, head, error) from error
    proto: onnx.ModelProto = parsed
    if not proto.HasField("graph"):
        raise BadModel(f"{path} is not an ONNX model: it has no graph", fix=_GIVE)
    return proto


_GIVE = "give an .onnx file"


def _not_a_model(path: Path, head: bytes, error: Exception) -> BadModel:
    for start, kind in _NOT_ONNX.items():
        if head.startswith(start):
            return BadModel(f"{path} is not an ONNX model but {kind}", fix=_GIVE)
    if head[4:8] == b"ORTM":
        return BadModel(
            f"{path} is in ORT format, which cannot be edited",
            fix="give the .onnx file that it was made from",
        )
    if isinstance(error, protobuf.TooMany):
        return BadModel(
            f"{path} has {error}", fix="split the model, or export its loops as Loop nodes"
        )
    if isinstance(error, protobuf.Truncated) and head[0] == 8:  # field 1, ir_version, comes first
        return BadModel(f"{path} is cut off: {error}", fix="copy or download it again")
    return BadModel(f"{path} is not an ONNX model: {error}", fix=_GIVE)


_SHOWN = 5
FIRST_FREE_IR = 4
"""Before this IR version every initializer had to be listed among the inputs, as a constant."""


def _clean_shape(value: ir.Value) -> None:
    """A name stands for one size throughout a model; some exporters call all unknown sizes ``?``,
    or write -1."""
    shape = shape_of(value)
    if shape is None:
        return
    clean = [None if _means_nothing(dim) else dim for dim in shape]
    if clean != list(shape):
        value.shape = ir.Shape(clean)


def _means_nothing(dim: int | str | None) -> bool:
    if isinstance(dim, int):
        return dim < 0
    name = (dim or "").strip().lower()
    return name in _NO_NAMES or not any(letter.isalpha() for letter in name)


_NO_NAMES = frozenset({"none", "null", "unk", "unknown", "dynamic", "dyn", "any"})


def _sort_nodes(graph: ir.Graph | ir.Function) -> None:
    """Runtimes take nodes in any order; everything here relies on the order that ONNX demands."""
    outputs = {value for node in graph for value in node.outputs}
    seen: set[ir.Value] = set()
    for node in graph:
        if any(v in outputs and v not in seen for v in _list_reads(node)):
            try:
                (graph.graph if isinstance(graph, ir.Function) else graph).sort()
            except ValueError:
                raise Invalid(f"its nodes form a cycle: {_describe_cycle(graph)}") from None
            return
        seen.update(node.outputs)


def _describe_cycle(graph: ir.Graph | ir.Function) -> str:
    """Return the nodes of a cycle, each fed by the one before."""
    reads = {node: [v.producer() for v in _list_reads(node)] for node in graph}
    calls = {node: [p for p in producers if p in reads] for node, producers in reads.items()}
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        nodes = error.args[1]
        names = [f"{n.op_type} '{n.name or n.outputs[0].name}'" for n in nodes[:_SHOWN]]
        return " -> ".join([*names, *(["..."] if len(nodes) > _SHOWN else [])])
    return "between bodies"


def _list_reads(node: ir.Node) -> list[ir.Value]:
    nodes = [node, *(inner for body in list_bodies(node) for inner in body.all_nodes())]
    return [value for consumer in nodes for value in consumer.inputs if value is not None]


def _densify_graph(graph: onnx.GraphProto) -> None:
    for sparse in graph.sparse_initializer:
        array = _make_dense(sparse)
        graph.initializer.append(numpy_helper.from_array(array, sparse.values.name))
    del graph.sparse_initializer[:]
    for node in graph.node:
        _densify_node(node)


def _densify_node(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
            array = _make_dense(attribute.sparse_tensor)
            attribute.ClearField("sparse_tensor")
            attribute.type = onnx.AttributeProto.TENSOR
            attribute.t.CopyFrom(numpy_helper.from_array(array))
            if node.op_type == "Constant" and attribute.name == "sparse_value":
                attribute.name = "value"
        if attribute.HasField("g"):
            _densify_graph(attribute.g)
        for graph in attribute.graphs:
            _densify_graph(graph)


def _make_dense(sparse: onnx.SparseTensorProto) -> NDArray[np.generic]:
    """Indices are linear, shape [n], or by coordinate, shape [n, rank]."""
    wellformed.demand_sparse(sparse)
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    try:
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (IndexError, ValueError) as error:
        raise Invalid(f"sparse tensor '{sparse.values.name}': {summarize_error(error)}") from None
    return dense
