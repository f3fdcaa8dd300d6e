"""What verbs are asked that write pages."""

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
    """A request whose result can be written as a table for a comment.

    Attributes:
        markdown: Write the table for a comment to this file.
    """

    _: KW_ONLY
    markdown: File | None = None


@request
class CompareFiles(CommentRequest, Compare):
    """Files to compare, with a table for a comment."""


@request
class RecheckPage(CommentRequest, Recheck):
    """A bundle to check again, with a table for a comment."""


@request
class TimelinePage(TimelineRequest):
    """A model's cost over its life, with a page.

    Attributes:
        out: A page with the table and the chart (.html).
        force: Overwrite an existing output.
    """

    _: KW_ONLY
    out: Out = None
    force: bool = False


@request
class ProfilePage(ProfileRequest):
    """A profile to take, with what can be done about it and a page.

    Attributes:
        trying: Apply the suggested changes and time each against the model as it is.
        out: Folder for profile.html, trace.json (Perfetto), kernels.csv, profile.json and
            node_data.json (Model Explorer).
    """

    _: KW_ONLY
    trying: Annotated[bool, Option(word="--try")] = False
    out: Out = None
