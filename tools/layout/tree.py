"""A package with its tests and floors, and the limits that it keeps."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tools.layout.modules import Module, read_modules


@dataclass(frozen=True)
class Limits:
    """What is allowed.

    Attributes:
        file: Lines of a file.
        function: Lines of a function, without decorators.
        first_line: Characters of the first line of a module's docstring.
        plugin_folders: Packages that list plugins, without private modules.
        listings: Other packages of which the same holds.
        independent: Plugin folders whose plugins find each other by role, never by import.
        doors: Packages of which every module may take a request -> why.
        entry_points: Functions that modules have for whoever runs them: a verb's command and what
            it does, a program's start.
        interpreter: The module that starts Python.
        temporary: The module that makes temporary folders.
        least: Lines of a module that only its sibling imports.
        small: Modules that are shorter all the same -> why.
    """

    file: int = 600
    function: int = 80
    first_line: int = 90
    plugin_folders: tuple[str, ...] = (
        "backends",
        "data.augmentations",
        "data.zoo",
        "measurement.workloads",
        "metrics",
        "quantizers",
        "quantizers.observers",
        "reporting.sections",
        "targets",
        "transforms",
    )
    listings: tuple[str, ...] = ("cli",)
    independent: tuple[str, ...] = ("quantizers", "quantizers.observers")
    entry_points: tuple[str, ...] = ("command", "main", "run")
    interpreter: str = "core.python_process"
    temporary: str = "core.temporary_folder"
    least: int = 150
    small: Mapping[str, str] = field(
        default_factory=lambda: {
            "ortune.cli.terminal.progress": "what a terminal shows while a verb works",
            "ortune.search.abandon": "when a trial is stopped: a rule with its table of evidence",
            "ortune.search.closing_notes": "what a search says at its end of the machine",
        }
    )
    doors: Mapping[str, str] = field(
        default_factory=lambda: {
            "cli": "verbs show what a request came to, and some have options of their own",
            "serving.server": "the request is what the server is set to, in each of its processes",
            "serving.load_testing": "the request is how load is put on, also by a search",
        }
    )


@dataclass(frozen=True)
class Tree:
    """A package, its tests and its floors.

    Attributes:
        root: Folder of the package.
        limits: What is allowed.
    """

    root: Path
    limits: Limits = Limits()

    @cached_property
    def project(self) -> Path:
        """The folder of pyproject.toml."""
        return next(p for p in self.root.resolve().parents if (p / "pyproject.toml").is_file())

    @cached_property
    def modules(self) -> dict[str, Module]:
        """Full name -> module, of the package."""
        return read_modules(self.root)

    @cached_property
    def graph(self) -> dict[str, set[str]]:
        """Full name -> modules of the package that it imports, wherever in the file.

        What only a type checker imports does not count.
        """
        return {
            name: {m for m in map(self._module, module.imports) if m} - {name}
            for name, module in self.modules.items()
        }

    @cached_property
    def typed_graph(self) -> dict[str, set[str]]:
        """The same with what only a type checker imports, but for a package's re-exports."""
        return {
            name: {m for m in map(self._module, module.all_imports) if m} - {name}
            for name, module in self.modules.items()
            if not module.is_package
        }

    @cached_property
    def levels(self) -> Counter[str]:
        """Package -> modules at its level, without its ``__init__``."""
        return Counter(
            name.rpartition(".")[0] for name, m in self.modules.items() if not m.is_package
        )

    def _module(self, target: str) -> str:
        """Return the module that a name is, or is defined in; empty for other packages' names."""
        while target and target not in self.modules:
            target = target.rpartition(".")[0]
        return target

    @cached_property
    def contracts(self) -> list[Mapping[str, object]]:
        """The contracts of kind `layers`."""
        settings = tomllib.loads((self.project / "pyproject.toml").read_text())
        every = settings["tool"]["importlinter"]["contracts"]
        return [one for one in every if one["type"] == "layers"]

    def floors(self, contract: Mapping[str, object]) -> dict[str, int]:
        """Return full name -> floor, the highest being 0, for every container of a contract."""
        layers: Iterable[str] = contract["layers"]  # type: ignore[assignment]
        containers: Iterable[str] = contract.get("containers", ("",))  # type: ignore[assignment]
        return {
            f"{container}.{name.strip(' ()')}".lstrip("."): floor
            for container in containers
            for floor, layer in enumerate(layers)
            for name in layer.replace(":", "|").split("|")
        }
