"""A page in headless Chromium, by its DevTools protocol."""

import asyncio
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest

from tests.patience import PATIENCE_S

ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run")
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass(slots=True)
class Browser:
    """One tab. `requested` has the requested addresses, `failures` the exceptions of scripts."""

    socket: aiohttp.ClientWebSocketResponse
    requested: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        number = next(self._numbers)
        await self.socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self.socket.receive_json(timeout=PATIENCE_S)
            if message.get("method") == "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])
            elif message.get("method") == "Runtime.exceptionThrown":
                self.failures.append(json.dumps(message["params"]["exceptionDetails"]))
            elif message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = await self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def wait_for(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not await self.evaluate(expression):
            assert asyncio.get_running_loop().time() < deadline, f"never true: {expression}"
            await asyncio.sleep(0.1)


@asynccontextmanager
async def opened(url: str, profile: Path) -> AsyncIterator[Browser]:
    """A tab that shows `url`; the test skips where there is no Chromium. `profile` is a folder for the browser."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("there is no Chromium here")
    command = [program, *ARGUMENTS, f"--user-data-dir={profile}", "about:blank"]
    quiet = asyncio.subprocess.DEVNULL
    with TemporaryDirectory() as left_behind:  # Chromium leaves files behind on exit
        environment = {**os.environ, "TMPDIR": left_behind}
        process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet, env=environment)
        try:
            async with _tab(profile, url) as browser:
                yield browser
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


@asynccontextmanager
async def _tab(profile: Path, url: str) -> AsyncIterator[Browser]:
    """The tab of the browser that has this profile, which shows `url` from now on."""
    async with aiohttp.ClientSession() as session:
        port = await _port(profile / "DevToolsActivePort")
        async with session.get(f"http://127.0.0.1:{port}/json/list") as reply:
            tabs = await reply.json(content_type=None)
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        async with session.ws_connect(address, max_msg_size=0) as socket:
            browser = Browser(socket)
            await browser.send("Runtime.enable")
            await browser.send("Network.enable")
            await browser.send("Page.navigate", url=url)
            yield browser


async def _port(file: Path) -> int:
    """The port that the browser has chosen, which it writes into a file once it listens."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not (written := _text(file)):
        assert asyncio.get_running_loop().time() < deadline, "Chromium does not start"
        await asyncio.sleep(0.05)
    return int(written.split()[0])


def _text(file: Path) -> str:
    """Return the text of a file, empty if it does not exist."""
    return file.read_text() if file.is_file() else ""
