"""Build hooks: the commit goes into sdist and wheel, since no git is at hand where they go."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

VERSION = Path("src/ortune/core/version.py")
KEPT = "ortune/core/commit.txt"


def write(root: Path) -> None:
    """Write the commit below a folder of packages; nothing where nobody knows it."""
    if commit := runpy.run_path(str(VERSION))["read_commit"]():
        (root / KEPT).write_text(f"{commit}\n", encoding="utf-8")


class Build(build_py):
    """Copies the packages; an editable installation asks git when it is asked."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write(Path(self.build_lib))


class Sdist(sdist):
    """Copies the sources."""

    def make_release_tree(self, base_dir: str, files: Any) -> None:
        super().make_release_tree(base_dir, files)
        write(Path(base_dir) / "src")


setup(cmdclass={"build_py": Build, "sdist": Sdist})
