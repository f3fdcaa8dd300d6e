"""Which runtimes a release of Triton Inference Server carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ortune.core.errors import BadSettings


@dataclass(frozen=True)
class Carried:
    """Versions inside a release; empty where it is not known here."""

    onnxruntime: str = ""
    openvino: str = ""

    def demand(self, distribution: str, release: str) -> str:
        """Return the version of a runtime.

        Raises:
            BadSettings: It is not known.
        """
        found: str = getattr(self, distribution)
        if not found:
            raise BadSettings(
                f"which {distribution} Triton {release} carries is not known here",
                fix=f'say it: triton(release={release}, {distribution}="VERSION"); its '
                "release notes have it",
            )
        return found


RELEASES: Mapping[str, Carried] = {"26.05": Carried(onnxruntime="1.24.4")}
"""Release -> what its server's ``build.py`` pins. A release is added when that was looked up: of
26.05 the OpenVINO is not recorded."""


def carried(release: str, onnxruntime: str, openvino: str) -> Carried:
    """Return what a release carries; what a person says of it counts.

    Raises:
        BadSettings: Nothing is known of the release.
    """
    known = RELEASES.get(release, Carried())
    found = Carried(onnxruntime or known.onnxruntime, openvino or known.openvino)
    if found == Carried():
        raise BadSettings(
            f"release {release[:8]} of Triton is not known here",
            fix=f"use one of: {', '.join(RELEASES)}, or say what it carries: "
            f'triton(release={release[:8]}, onnxruntime="VERSION")',
        )
    return found
