"""A headless Chromium, asked over the WebDriver protocol: one page at a time, at a width and in a colour scheme."""

import base64
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "the tests of the report need Chromium and ChromeDriver: apt-get install chromium chromium-driver"


class Browser:
    """A session of ChromeDriver; ``close`` ends both it and Chromium."""

    def __init__(self, profile: Path) -> None:
        chromium = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
        driver = shutil.which("chromedriver")
        if chromium is None or driver is None:
            raise AssertionError(MISSING)
        self._driver = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self._base = f"http://127.0.0.1:{self._port()}/session"
        options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        answer = self._ask("POST", "", {"capabilities": {"alwaysMatch": {"browserName": "chrome", **wanted}}})
        self._base += f"/{answer['sessionId']}"

    def show(self, file: Path, width: int, scheme: str = "light", media: str = "screen") -> None:
        """Load a file anew; what was logged before is forgotten."""
        self.devtools(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self._ask("POST", "/url", {"url": "about:blank"})
        self.logged("browser")
        self.logged("performance")
        self._ask("POST", "/url", {"url": file.as_uri()})

    def run(self, script: str, *given: Any) -> Any:
        """What the body of a function gives, called with ``given``."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": given})

    def devtools(self, command: str, **given: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": given})

    def press(self, key: str) -> None:
        """A key, as from a keyboard."""
        for kind in ("rawKeyDown", "keyUp"):
            self.devtools("Input.dispatchKeyEvent", type=kind, key=key)

    def point(self, x: float, y: float) -> None:
        """Move the pointer there."""
        self.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def logged(self, kind: str) -> list[dict[str, Any]]:
        """What ``browser`` (the console) or ``performance`` has logged since it was asked last."""
        return self._ask("POST", "/se/log", {"type": kind})

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.logged("performance")]
        return [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]

    def picture(self, file: Path) -> None:
        """The whole page as a PNG."""
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.devtools("Page.captureScreenshot", clip={**size, "scale": 1}, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def pages(self) -> int:
        """How many sheets the page takes when it is printed."""
        printed = base64.b64decode(self.devtools("Page.printToPDF")["data"])
        return int(max(re.findall(rb"/Count (\d+)", printed), key=int))

    def close(self) -> None:
        """End the session, and the processes."""
        try:
            self._ask("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.communicate(timeout=10)

    def _port(self) -> int:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                return int(found[1])
        raise AssertionError("ChromeDriver did not start")

    def _ask(self, method: str, path: str, given: Any = None) -> Any:
        body = None if given is None else json.dumps(given).encode()
        request = urllib.request.Request(self._base + path, body, {"Content-Type": "application/json"}, method=method)
        try:
            with self._open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()[:2000]) from None
