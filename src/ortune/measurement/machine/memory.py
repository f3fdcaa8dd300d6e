"""Memory of a process, and what onnxruntime's own node record says of a model."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ortune.core.errors import BadData

_HEADER = "#name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations"
_HASH = re.compile(r"_\d{12,}$")


@dataclass(frozen=True)
class NodeMemory:
    """One line of the runtime's node record: bytes over one run.

    Attributes:
        inputs: Bytes it reads, its weights included.
        weights: Bytes of initializers that it holds apart from its inputs.
        outputs: Bytes allocated for what it returns; 0 where a buffer is used again.
        temporary: Bytes of scratch space.
    """

    name: str
    inputs: int
    weights: int
    outputs: int
    temporary: int

    @property
    def allocated(self) -> int:
        """Bytes that a run allocates for this node."""
        return self.weights + self.outputs + self.temporary


def peak_rss(status: Path = Path("/proc/self/status")) -> int:
    """Return this process's peak resident set in bytes, 0 where it cannot be read.

    On Linux it is ``VmHWM``. ``getrusage`` is not asked there: its ``ru_maxrss`` survives exec, so
    a worker would show the peak of the process that started it (getrusage(2), vfork).
    """
    with suppress(OSError, StopIteration, ValueError, IndexError):
        lines = status.read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def read_nodes(path: Path) -> list[NodeMemory]:
    """Read the file that ``session.collect_node_memory_stats_to_file`` names, biggest first.

    The runtime writes it after the first run. It puts a hash behind every name, which is cut off.

    Raises:
        BadData: It is not such a file.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or lines[0].strip() != _HEADER:
        raise BadData(
            f"{path.name} does not begin with '{_HEADER}'",
            fix="this version of onnxruntime writes another record; measure memory without it",
        )
    found = []
    for line in lines[1:]:
        name, *counts = line.rsplit(",", 4)
        if len(counts) != 4 or not all(count.strip().isdigit() for count in counts):
            raise BadData(f"{path.name} has the line '{line[:80]}'", fix="measure it again")
        found.append(NodeMemory(_HASH.sub("", name), *(int(count) for count in counts)))
    return sorted(found, key=lambda node: (-node.allocated, -node.inputs, node.name))
