"""Headless Chromium, one window."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

DESKTOP, PHONE = (1280, 900), (360, 740)


class Browser:
    """One window; every page is opened from a file, without any network."""

    def __init__(self, folder: Path) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
            options.add_argument(flag)
        options.binary_location = shutil.which("chromium") or ""
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        self.folder = folder

    def open(self, html: str, size: tuple[int, int] = DESKTOP, scheme: str = "light", touch: bool = False) -> None:
        path = self.folder / "plan.html"
        path.write_text(html, encoding="utf-8")
        scale = 2 if touch else 1
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": scale, "mobile": touch}
        self.cdp("Emulation.setDeviceMetricsOverride", **metrics)
        self.cdp("Emulation.setTouchEmulationEnabled", enabled=touch)
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.driver.get_log("browser")
        self.driver.get(path.as_uri())

    def cdp(self, command: str, **values: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, values)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def text(self, css: str) -> str:
        return str(self.run(f"return document.querySelector({css!r}).innerText"))

    def box(self, css: str) -> list[float]:
        """Where the middle of the window shows it: left, top, width, height."""
        self.run(f"document.querySelector({css!r}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return list(self.run(f"const b = document.querySelector({css!r}).getBoundingClientRect();"
                             "return [b.left, b.top, b.width, b.height]"))  # fmt: skip

    def point(self, x: float, y: float) -> None:
        self.cdp("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def screenshot(self, path: Path) -> None:
        size = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        data = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))
