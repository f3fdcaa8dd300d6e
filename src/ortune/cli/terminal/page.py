"""An option of verbs whose result is a page too."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING

from ortune.core.fields import File
from ortune.core.outputs import check_page_file
from ortune.core.request import Request, request

if TYPE_CHECKING:
    from ortune.reporting.results import Page, Result


@request
class PageOptions(Request):
    """A result that is shown as a page, too.

    Attributes:
        page: Write the answer, a picture and the tables to this page (.html).
    """

    _: KW_ONLY
    page: File | None = None


def require_page(options: PageOptions) -> None:
    """Refuse a page that cannot be written, before the time is spent."""
    if options.page is not None:
        check_page_file(options.page, getattr(options, "force", False))


def save_page(options: PageOptions, page: Page) -> None:
    """Write a page where one was asked for."""
    from ortune.reporting.results import write_result_page

    if options.page is not None:
        write_result_page(page, options.page, getattr(options, "force", False))


def save_result_page(options: PageOptions, result: Result, title: str = "") -> None:
    """Write a result as a page where one was asked for; `title` in place of its own."""
    if options.page is not None:
        from ortune.reporting.results import build_result_parts

        name, parts = build_result_parts(result)
        save_page(options, (title or name, parts))
