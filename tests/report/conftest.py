"""A browser for the tests of a page."""

from pathlib import Path

import pytest

from rookery.report import write_page
from tests.report.browser import LAPTOP, Browser, Page


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page of runs; at the end no test may leave an error or have asked for anything but the file."""
    pages: list[tuple[Page, Path]] = []

    def show(runs, size=LAPTOP, scheme="light"):
        path = tmp_path / f"page{len(pages)}.html"
        write_page(runs, path)
        page = Page(browser)
        pages.append((page, path))
        page.size(*size)
        page.theme(scheme)
        page.open(path)
        return page

    yield show
    for page, path in pages:
        assert page.complaints() == []
        assert page.requests() == [path.as_uri()]
        browser.call("Target.closeTarget", targetId=page.target)
