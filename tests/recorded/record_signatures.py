"""Write the signatures of NVIDIA's own Python bindings as text.

    python tests/recorded/record_signatures.py tensorrt OUT.txt

Run it where the wheel ``tensorrt-cu13-bindings`` is on the import path. Signatures are made when
the module loads, so no GPU is needed: where TensorRT's libraries are not there either, empty ones
of the same names serve (the linker asks for nine functions, none of which is called).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

CLASSES = (
    *("Builder", "IBuilderConfig", "INetworkDefinition", "IOptimizationProfile", "ITensor"),
    *("ITimingCache", "IHostMemory", "OnnxParser", "ParserError", "IPluginRegistry", "Runtime"),
    *("ICudaEngine", "IExecutionContext", "EngineInspector", "ILogger", "IOutputAllocator"),
)
ENUMS = (
    *("BuilderFlag", "DataType", "LayerInformationFormat", "MemoryPoolType"),
    *("NetworkDefinitionCreationFlag", "ProfilingVerbosity", "TensorIOMode"),
)
FUNCTIONS = ("init_libnvinfer_plugins",)
_LINE = re.compile(r"^(?:\d+\. )?\w+\((?P<inner>.*)\) -> (?P<gives>.+)$", re.MULTILINE)
_COMMA = re.compile(r", (?=\w+: )")


def main(package: str, out: Path) -> None:
    """Write what the module says of itself, a line a method, a property or a value."""
    module: Any = import_module(package)
    found = [f"version {module.__version__}"]
    for name in FUNCTIONS:
        found += calls(name, getattr(module, name))
    for name in CLASSES:
        found += members(name, getattr(module, name))
    enums = {name: getattr(module, name) for name in ENUMS} | {"Severity": module.ILogger.Severity}
    for name, enum in enums.items():
        found += [f"{name}.{one} = {int(value)}" for one, value in enum.__members__.items()]
    out.write_text("\n".join(found) + "\n", encoding="utf-8")


def members(name: str, cls: Any) -> Iterator[str]:
    """Yield a class's methods with their signatures, and its properties."""
    for one in dir(cls):
        if one.startswith("_") and one != "__init__":
            continue
        held = inspect.getattr_static(cls, one)
        if isinstance(held, property):
            yield f"{name}.{one}"
        else:
            yield from calls(name if one == "__init__" else f"{name}.{one}", held)


def calls(name: str, function: Any) -> Iterator[str]:
    """Yield each overload: names of its arguments, those that may be left out with a =."""
    for line in _LINE.finditer(function.__doc__ or ""):
        given = [one for one in _COMMA.split(line["inner"]) if one and not one.startswith("self:")]
        words = [one.partition(":")[0] + ("=" if " = " in one else "") for one in given]
        gives = re.findall(r"\w+", line["gives"])[-1]
        yield f"{name}({', '.join(words)}) -> {gives}"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
