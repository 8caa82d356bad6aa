"""A headless Chromium, driven over the DevTools protocol (https://chromedevtools.github.io)."""

import asyncio
import itertools
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # or it refuses to run as root; it only ever loads pages of the service
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-port=0",
)


class Page:
    """One page; `complaints` has its errors and warnings."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self.session: str | None = None
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command to the browser and return its response."""
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(
            message | ({"sessionId": self.session} if self.session else {})
        )
        return await asyncio.wait_for(answer, 10)

    async def evaluate(self, script: str) -> Any:
        """Return the value of an expression, awaited if it is a promise."""
        result = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true, evaluated with every frame."""
        await self.evaluate(
            "new Promise((done) => {"
            f" const look = () => ({condition}) ? done() : requestAnimationFrame(look); look(); }})"
        )

    async def show(self, url: str, *, width: int, height: int, scheme: str = "light") -> None:
        """Load a page in a window of this size and wait until it is rendered."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,  # or the browser widens the page for wide content
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def read(self) -> None:
        """Read the browser's messages until it ends."""
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                answer = self._waiting.pop(said["id"])
                if not answer.done():
                    answer.set_result(said.get("result") or {"error": said.get("error")})
            elif complaint := _complaint(said["method"], said["params"]):
                self.complaints.append(complaint)


def _complaint(event: str, said: dict[str, Any]) -> str | None:
    if event == "Runtime.exceptionThrown":
        return str(said["exceptionDetails"])
    if event == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
        return str(said["args"])
    # Violations of the Content-Security-Policy and files that do not load are here.
    if event == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
        return str(said["entry"])
    return None


@contextmanager
def running(profile: Path) -> Iterator[str]:
    """Start a browser, which keeps its files in the folder `profile`; yield its address."""
    assert EXECUTABLE
    command = [EXECUTABLE, *FLAGS, f"--user-data-dir={profile}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr
            said = iter(process.stderr.readline, b"")
            yield next(line for line in said if b"DevTools listening" in line).decode().split()[-1]
        finally:
            process.kill()


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[Page]:
    """Open an empty page that is isolated from other pages."""
    async with (
        ClientSession() as session,
        session.ws_connect(address, max_msg_size=0) as socket,
    ):
        page = Page(socket)
        reading = asyncio.create_task(page.read())
        context = await page.call("Target.createBrowserContext", disposeOnDetach=True)
        target = await page.call("Target.createTarget", url="about:blank", **context)
        attached = await page.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        page.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await page.call(f"{domain}.enable")
        yield page
        reading.cancel()
