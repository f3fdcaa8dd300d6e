"""What verbs are asked that write pages."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated

from ortune.analysis.benchmark.requests import Compare
from ortune.analysis.costs.requests import TimelineRequest
from ortune.analysis.profiling.requests import ProfileRequest
from ortune.analysis.recheck.request import Recheck
from ortune.core.fields import File, Option, Out
from ortune.core.request import Request, request


@request
class CommentRequest(Request):
    """With a table for a comment.

    Attributes:
        markdown: Write the table for a comment to this file.
    """

    _: KW_ONLY
    markdown: File | None = None


@request
class CompareFiles(CommentRequest, Compare):
    """With a table for a comment."""


@request
class RecheckPage(CommentRequest, Recheck):
    """With a table for a comment."""


@request
class TimelinePage(TimelineRequest):
    """With a page.

    Attributes:
        out: A page with the table and the chart (.html).
        force: Overwrite an existing output.
    """

    _: KW_ONLY
    out: Out = None
    force: bool = False


@request
class ProfilePage(ProfileRequest):
    """With what can be done, and a page.

    Attributes:
        trying: Do what can be done about the bottlenecks and time it against the model as it is.
        out: Folder for profile.html, trace.json (Perfetto), kernels.csv and profile.json.
    """

    _: KW_ONLY
    trying: Annotated[bool, Option(word="--try")] = False
    out: Out = None
