"""Pictures of pages for README and docs: ``python -m tools.pictures PAGE.html [NAME] [--once]``.

It takes Debian's chromium and playwright. Written is ``docs/pictures/report.png``, the first
screen; with a NAME, the first screen of that page at both widths, light and dark:
``NAME-1440-light.png`` and its three siblings; with ``--once`` the first of them alone.
"""

from __future__ import annotations

import argparse
import shutil
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
Screen = tuple[int, int, Literal["light", "dark"]]
FIRST: dict[str, Screen] = {"report": (1280, 800, "light")}
"""Name of a picture -> width and height in pixels, and the colour scheme."""
SIZES = ((1440, 900), (390, 844))
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def main() -> None:
    """Draw every picture of the report that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="a page that `ortune report` or a verb wrote")
    parser.add_argument("name", nargs="?", help="what its pictures are called")
    parser.add_argument("--once", action="store_true", help="1440 pixels and light alone")
    asked = parser.parse_args()
    screens: dict[str, Screen] = {
        f"{asked.name}-{size[0]}-{scheme}": (*size, scheme)
        for size, scheme in list(product(SIZES, SCHEMES))[: 1 if asked.once else None]
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for name, (width, height, scheme) in (screens if asked.name else FIRST).items():
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            page.goto(asked.page.resolve().as_uri())
            page.wait_for_selector("svg")
            page.screenshot(path=PICTURES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
