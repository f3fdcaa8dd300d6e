"""Pictures of a run's report for README and docs: ``python -m tools.pictures REPORT.html``.

It takes Debian's chromium and playwright. Written are ``docs/pictures/report.png``, the first
screen, and ``report-dark-390.png``, the same on a phone.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
SIZES = {"report": (1280, 800, "light"), "report-dark-390": (390, 844, "dark")}
"""Name of a picture -> width and height in pixels, and the colour scheme."""


def main() -> None:
    """Draw every picture of the report that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="a page that `ortune report` wrote")
    page_file = parser.parse_args().report.resolve()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for name, (width, height, scheme) in SIZES.items():
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            page.goto(page_file.as_uri())
            page.wait_for_selector("svg")
            page.screenshot(path=PICTURES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
