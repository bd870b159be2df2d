"""An OpenAI-compatible server for tests, in a process of its own. The model's name sets the behaviour.

    ok, ok-TTFT_MS-ITL_MS   streams (or sends whole) as many tokens as asked for; usage at the end
    nousage                 the same without usage
    error500                HTTP 500 with a body of two lines
    flaky                   HTTP 500 for every other request
    midcut                  closes the connection after two tokens
    slow                    one token, then nothing for a long time
    short                   one token less than asked for

GET /seen returns what has been received since the last time, as JSON, with the times at which each request came and
each of its tokens was written. After GET /hold/N only N more requests that have an X-Request-Id are answered; the
others, whose number GET /held returns, wait for GET /release. The port is printed first. With two arguments, a
certificate and its key, it speaks HTTPS.
"""

import asyncio
import json
import ssl
import sys
import time
from typing import Any

from aiohttp import web

SEEN: web.AppKey[Any] = web.AppKey("seen")
QUERIES: web.AppKey[dict[str, int]] = web.AppKey("queries")
GATE: web.AppKey["Gate"] = web.AppKey("gate")
TOKENS_AROUND_CHAT = 7


class Gate:
    """Lets a fixed number of requests pass, and the others once it is open."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._num_allowed = 0
        self.num_waiting = 0
        self.open()

    def open(self) -> None:
        """All may pass, those that wait first."""
        self._open.set()

    def close_after(self, num_allowed: int) -> None:
        """Let so many more requests pass."""
        self._num_allowed = num_allowed
        self._open.clear()

    async def passed(self) -> None:
        """Return when the caller may pass."""
        self._num_allowed -= 1
        if self._num_allowed < 0:
            self.num_waiting += 1
            try:
                await self._open.wait()
            finally:
                self.num_waiting -= 1


async def complete(request: web.Request) -> web.StreamResponse:
    """Both completion APIs."""
    came_us = now_us()
    body = await request.json()
    seen = request.app[SEEN]
    request.app[QUERIES]["number"] += 1
    chat = request.path.endswith("chat/completions")
    written_us: list[int] = []
    seen.append(
        {
            "path": request.path,
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "body": body,
            "came_us": came_us,
            "written_us": written_us,
        }
    )
    if "x-request-id" in request.headers:
        await request.app[GATE].passed()
    model = body["model"]
    if model == "error500" or (model == "flaky" and len(seen) % 2):
        return web.Response(status=500, text='{"error": "boom"}\nsecond line')
    tokens = body.get("max_completion_tokens", body.get("max_tokens")) - (model == "short")
    _, ttft_ms, itl_ms = model.split("-") if model.startswith("ok-") else ("", "0", "0")
    await asyncio.sleep(float(ttft_ms) / 1000)
    if not body["stream"]:
        return web.json_response(whole(body, tokens, chat))
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    if chat:
        await send(response, choice({"delta": {"role": "assistant", "content": ""}}))
    for place in range(tokens):
        if place:
            await asyncio.sleep(float(itl_ms) / 1000)
        if (model == "midcut" and place == 2) or (model == "slow" and place == 1):
            await break_off(request, slow=model == "slow")
            return response
        last = "length" if place == tokens - 1 else None
        written_us.append(now_us())
        await send(response, choice({("delta"): {"content": " x"}} if chat else {"text": " x"}, last))
    if model != "nousage":
        await send(response, {"choices": [], "usage": usage(body, tokens, chat)})
    await response.write(b"data: [DONE]\n\n")
    return response


async def respond(request: web.Request) -> web.StreamResponse:
    """The Responses API: it reports all it does, and ends without [DONE]."""
    body = await request.json()
    request.app[SEEN].append({"path": request.path, "headers": {}, "body": body})
    tokens = body["max_output_tokens"]
    used = {"input_tokens": len(str(body["input"]).split()), "output_tokens": tokens}
    details = {"reason": "max_output_tokens"}
    answer = {"object": "response", "status": "incomplete", "incomplete_details": details, "usage": used}
    if not body["stream"]:
        return web.json_response(answer)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await send(response, {"type": "response.created", "response": {"status": "in_progress"}})
    await asyncio.sleep(0.02)
    for _ in range(tokens):
        await send(response, {"type": "response.output_text.delta", "delta": " x"})
    await send(response, {"type": "response.output_text.done", "text": " x" * tokens})
    await send(response, {"type": "response.incomplete", "response": answer})
    return response


def whole(body: dict[str, Any], tokens: int, chat: bool) -> dict[str, Any]:
    """An answer that is no stream."""
    text = " x" * tokens
    answer = choice({"message": {"content": text}} if chat else {"text": text}, "length")
    return answer if body["model"] == "nousage" else answer | {"usage": usage(body, tokens, chat)}


def usage(body: dict[str, Any], tokens: int, chat: bool) -> dict[str, int]:
    """One token per word; a chat template adds some."""
    prompt = " ".join(text_of(message["content"]) for message in body["messages"]) if chat else body["prompt"]
    return {
        "prompt_tokens": len(prompt.split()) + (TOKENS_AROUND_CHAT if chat else 0),
        "completion_tokens": tokens,
    }


def text_of(content: Any) -> str:
    """The words of a message, whether it has them whole or in parts."""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def choice(content: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    """An answer, or one event of it, with one choice."""
    return {"choices": [{"index": 0, "finish_reason": finish_reason, **content}]}


def now_us() -> int:
    """Unix time in microseconds."""
    return time.time_ns() // 1000


async def send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    """One server-sent event."""
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


async def break_off(request: web.Request, *, slow: bool) -> None:
    """Leave the stream unfinished: without another byte, or by closing the connection."""
    if slow:
        await asyncio.sleep(30)
    elif request.transport is not None:
        request.transport.close()


async def seen_requests(request: web.Request) -> web.Response:
    """Return the requests received, and forget them."""
    seen = list(request.app[SEEN])
    request.app[SEEN].clear()
    return web.json_response(seen)


async def hold(request: web.Request) -> web.Response:
    """From now on answer so many requests."""
    request.app[GATE].close_after(int(request.match_info["number"]))
    return web.Response()


async def held(request: web.Request) -> web.Response:
    """Return the number of waiting requests."""
    return web.json_response(request.app[GATE].num_waiting)


async def release(request: web.Request) -> web.Response:
    """Answer all again."""
    request.app[GATE].open()
    return web.Response()


async def models(_: web.Request) -> web.Response:
    """The list of models."""
    return web.json_response({"object": "list", "data": [{"id": "ok", "object": "model", "max_model_len": 4096}]})


async def metrics(request: web.Request) -> web.Response:
    """A few of vLLM's metrics. Half of the prompt tokens are found in the prefix cache."""
    queries = 100.0 * request.app[QUERIES]["number"]
    return web.Response(
        text="# TYPE vllm:prefix_cache_queries_total counter\n"
        f'vllm:prefix_cache_queries_total{{engine="0"}} {queries}\n'
        f'vllm:prefix_cache_hits_total{{engine="0"}} {queries / 2}\n'
        'vllm:e2e_request_latency_seconds_bucket{le="1"} 3.0\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="811",gpu_memory_utilization="0.9"} 1.0\n'
        "process_open_fds 9.0\n"
    )


async def health(_: web.Request) -> web.Response:
    """Well."""
    return web.Response()


def tls(certificate: str, key: str) -> ssl.SSLContext:
    """Files of a server for HTTPS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


async def main() -> None:
    """Serve until killed."""
    app = web.Application(client_max_size=1 << 28)
    app[SEEN] = []
    app[QUERIES] = {"number": 0}
    app[GATE] = Gate()
    app.add_routes(
        [
            web.post("/v1/completions", complete),
            web.post("/v1/chat/completions", complete),
            web.post("/v1/responses", respond),
            web.get("/metrics", metrics),
            web.get("/v1/models", models),
            web.get("/health", health),
            web.get("/seen", seen_requests),
            web.get("/hold/{number}", hold),
            web.get("/held", held),
            web.get("/release", release),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls(*sys.argv[1:]) if sys.argv[1:] else None)
    await site.start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
