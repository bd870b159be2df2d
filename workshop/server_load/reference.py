"""The baseline of `blis serve`: a plain aiohttp handler on uvloop that streams completions.

    python -m workshop.server_load.reference --port 8100 [--itl-ms 20] [--ttft-ms 20]

One coroutine per stream, deadlines that do not add up, one JSON encoding and one `write` per token, events of the size
of vLLM's. The handler has no engine, no metrics and no tokens; it is what one would write in an afternoon.
"""

import argparse
import asyncio
import sys
import time

import orjson
import uvloop
from aiohttp import web

WORDS = (" the", " of", " water", " light", " because", " sky", " which", " scatters")


class Reference:
    """The handler and its two times."""

    def __init__(self, ttft_s: float, itl_s: float) -> None:
        self._ttft_s = ttft_s
        self._itl_s = itl_s

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer with as many events as tokens were asked for."""
        started_s = time.monotonic()
        asked = orjson.loads(await request.read())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        num_tokens = asked["max_tokens"]
        for number in range(num_tokens):
            left_s = started_s + self._ttft_s + number * self._itl_s - time.monotonic()
            if left_s > 0:
                await asyncio.sleep(left_s)
            reason = "length" if number == num_tokens - 1 else None
            await response.write(b"data: %b\n\n" % orjson.dumps(_chunk(WORDS[number % len(WORDS)], reason)))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _chunk(text: str, reason: str | None) -> dict[str, object]:
    choice = {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "prompt_token_ids": None,
        "token_ids": None,
        "weight_versions": None,
    }
    return {
        "id": "cmpl-0123456789abcdef",
        "object": "text_completion",
        "created": 1700000000,
        "model": "qwen/qwen3-14b",
        "choices": [choice],
        "kv_transfer_params": None,
    }


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--itl-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    app = web.Application()
    app.router.add_post("/v1/completions", Reference(arguments.ttft_ms / 1000, arguments.itl_ms / 1000).completions)
    uvloop.run(_serve(app, arguments.port))


async def _serve(app: web.Application, port: int) -> None:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=2048)
    await site.start()
    print(f"serving on http://127.0.0.1:{runner.addresses[0][1]}", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
