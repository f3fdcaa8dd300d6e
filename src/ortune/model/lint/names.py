"""Rules about names as the file has them: loading makes them valid."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import onnx

from ortune.model.graph.bodies import graphs
from ortune.model.lint.finding import Finding, finding

_PLAIN = re.compile(r"[!-~]+")
_QUOTES = frozenset("\"'`,;\\")


def findings(proto: onnx.ModelProto) -> Iterator[Finding | None]:
    """Yield what is odd about the names of nodes, inputs and outputs."""
    nodes = [node for graph in graphs(proto.graph) for node in graph.node]
    named = Counter(node.name for node in nodes if node.name)
    yield finding(
        "unnamed-nodes",
        "note",
        "{n} nodes without a name",
        (f"{node.op_type} -> {next(iter(node.output), '')}" for node in nodes if not node.name),
        "profiles and options cannot point at them; tools name them each in its own way",
        "`ortune apply` writes a name for every node, the same each time",
    )
    yield finding(
        "duplicate-names",
        "warning",
        "{n} names shared by several nodes",
        (f"{name} x{count}" for name, count in named.items() if count > 1),
        "leaving nodes out by name takes none of them, or all",
        "`ortune apply` numbers them",
    )
    graph = proto.graph
    values = [value.name for value in (*graph.input, *graph.output)]
    yield finding(
        "odd-names",
        "note",
        "{n} names with blanks, quotes, commas or letters beyond ASCII",
        (repr(name) for name in (*values, *named) if name and _odd(name)),
        "shells, servers and lists of names trip over them",
        "export with plain names",
    )


def _odd(name: str) -> bool:
    return not _PLAIN.fullmatch(name) or bool(_QUOTES & set(name))
