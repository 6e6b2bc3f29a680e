"""One browser for all pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.support.browser import Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("needs chromium and chromedriver: sh tools/system_packages.sh")
    pytest.importorskip("selenium", reason="needs selenium: pip install 'smidgen[dev]'")
    made = Browser(tmp_path_factory.mktemp("pages"))
    yield made
    made.driver.quit()
