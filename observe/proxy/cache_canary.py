"""Cache canary: hits in the prefix cache that a healthy server must have, beside those that it reports."""

import http.client
import queue
import re
import ssl
import threading
import time
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from observe.errors import print_message
from observe.event_loop import Nanos
from observe.http import Server

# Blocks of prompts that a healthy cache holds for certain.


class MustHit(NamedTuple):
    """Tokens at the start of a prompt that must be in the cache, and the request that computed the last of them."""

    num_tokens: int
    number: int


@dataclass(slots=True)
class _Block:
    ready: Nanos
    """First token of the first request that had it: it is computed from then on."""
    used: Nanos
    """Arrival of the latest request that had it."""
    number: int


class CacheBound:
    """The least that the prefix cache of one vLLM engine holds, by the requests that it has answered.

    A block is named by all tokens up to its end. It is there from the first token of a request that has it. vLLM evicts
    the block whose last use is longest ago. So a block stays while the requests under way since its last use have fewer
    blocks together than the cache. The last matching block is left out, for drafters drop it.
    """

    _SHARE_OF_BLOCKS = 0.9
    """Part of the blocks that is counted on: requests that were not seen may have others."""

    def __init__(self, block_tokens: int, num_blocks: int) -> None:
        self._block_tokens = block_tokens
        self._num_blocks = int(num_blocks * self._SHARE_OF_BLOCKS)
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()
        self._ended: list[Nanos] = []
        self._allocated: list[int] = []
        """Blocks of all requests that ended up to the instant of the same place."""

    @property
    def capacity_tokens(self) -> int:
        """Tokens of the blocks that are counted on."""
        return self._num_blocks * self._block_tokens

    def forget(self) -> None:
        """The cache was emptied, or requests were not seen."""
        self._blocks.clear()

    def must_hit(self, root: bytes, tokens: Sequence[int], sent: Nanos, in_flight_tokens: int = 0) -> MustHit:
        """Return what a request that was sent at this instant must find.

        `root` names what else makes blocks different: model, adapter and salt. `in_flight_tokens` are at least those of
        other requests under way.
        """
        found = -1, 0
        names = self._block_names(root, tokens[: len(tokens) - 1])  # the last token is always computed
        in_flight = -(-in_flight_tokens // self._block_tokens)
        for place, name in enumerate(names):
            block = self._blocks.get(name)
            if block is None or block.ready >= sent or block.used >= sent:
                break
            if self._allocated_since(block.used) + in_flight > self._num_blocks:
                break
            found = place, block.number
        return MustHit(max(0, found[0]) * self._block_tokens, found[1])

    def answered(
        self,
        number: int,
        root: bytes,
        tokens: Sequence[int],
        sent: Nanos,
        ready: Nanos,
        ended: Nanos,
        output_tokens: int,
    ) -> None:
        """A request has ended; `ready` is the instant of its first token. Requests come in the order of their ends."""
        self.occupied(len(tokens) + output_tokens, ended)
        for name in self._block_names(root, tokens):
            block = self._blocks.setdefault(name, _Block(ready, sent, number))
            block.ready, block.used = min(block.ready, ready), max(block.used, sent)
            self._blocks.move_to_end(name)
        while len(self._blocks) > self._num_blocks:
            self._blocks.popitem(last=False)

    def occupied(self, num_tokens: int, ended: Nanos) -> None:
        """A request of unknown tokens has ended."""
        before = self._allocated[-1] if self._allocated else 0
        self._ended.append(ended)
        self._allocated.append(before + num_tokens // self._block_tokens + 2)
        if len(self._ended) > 200_000:
            del self._ended[:100_000], self._allocated[:100_000]

    def _allocated_since(self, at: Nanos) -> int:
        """Blocks of the requests that ended after this instant."""
        place = bisect_right(self._ended, at)
        before = self._allocated[place - 1] if place else 0
        return (self._allocated[-1] if self._allocated else 0) - before

    def _block_names(self, root: bytes, tokens: Sequence[int]) -> list[bytes]:
        names, name = [], root
        size = self._block_tokens
        for end in range(size, len(tokens) + 1, size):
            name = blake2b(name + orjson.dumps(list(tokens[end - size : end])), digest_size=16).digest()
            names.append(name)
        return names


# Requests of one server checked against it, on a thread that asks the server for their tokens.

_TIMEOUT_S = 5.0
_POLL_S = 5.0
_LINE_S = 60.0
_SETTLED_S = 1.0
"""After a first token the counters of the server have its hits."""
_KEPT_POLLS = 12
_MOST_WAITING = 1000
_MOST_WAITING_BYTES = 8 << 20
"""Bodies that wait to be checked; one beyond that counts as a prompt that is not known."""
_MOST_FETCHED_BYTES = 12 << 20
_EMPTYING = ("/reset_prefix_cache", "/sleep", "/wake_up", "/load_lora_adapter", "/unload_lora_adapter")
"""Ends of paths after which nothing is known of the cache."""
_OF_CHAT = (
    *("messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens"),
    *("chat_template", "chat_template_kwargs"),
)
_UNCERTAIN = ("truncate_prompt_tokens", "prompt_logprobs", "echo", "prompt_embeds", "kv_transfer_params", "documents")
"""Members of a body with which a prompt has other tokens, or does not read the cache."""
_HITS = re.compile(r"^vllm:prefix_cache_hits(?:_total)?(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A request that has ended, with what its reply says. Instants are of the performance counter."""

    number: int
    path: str
    body: bytes
    authorization: str
    sent: Nanos
    ready: Nanos
    """The instant of its first token; 0 without one."""
    ended: Nanos
    is_ok: bool
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    in_flight_tokens: int
    follows_unseen: bool = False
    """Whether requests that ended between the one checked before and this one were not seen."""


@dataclass(slots=True)
class CacheFigures:
    """Figures of all requests that were checked, and the first one that missed."""

    requests: int = 0
    must_hit_tokens: int = 0
    reported_hit_tokens: int = 0
    """By the counters of the server, which may have other requests."""
    missed: int = 0
    """Requests that found less than they must, and stretches of time in which the server's counters did."""
    first_miss: str = ""


@dataclass(slots=True)
class _Poll:
    began: Nanos
    ended: Nanos
    hits: float


@dataclass(slots=True)
class Canary:
    """Checks the requests of one server. `check` returns at once; `close` waits for what is left."""

    server: Server
    tls: ssl.SSLContext | None
    bound: CacheBound
    figures: CacheFigures = field(default_factory=CacheFigures)
    _queue: "queue.Queue[CheckedRequest | None]" = field(default_factory=lambda: queue.Queue(_MOST_WAITING))
    _polls: deque[_Poll] = field(default_factory=lambda: deque(maxlen=_KEPT_POLLS))
    _claims: deque[tuple[CheckedRequest, MustHit]] = field(default_factory=lambda: deque(maxlen=100_000))
    _has_missed_requests: threading.Event = field(default_factory=threading.Event)
    _tells_cached: bool = False
    _first_hits: float | None = None
    _judged_until: Nanos = 0
    _thread: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _num_waiting_bytes: int = 0

    def start(self) -> None:
        """Begin to check."""
        self._poll_counters()
        self._thread = threading.Thread(target=self._run_thread, daemon=True)
        self._thread.start()

    def check(self, request: CheckedRequest) -> None:
        """Have a request checked. Requests come in the order of their ends."""
        try:
            with self._lock:
                is_long = len(request.body) + self._num_waiting_bytes > _MOST_WAITING_BYTES
                body = b"" if is_long else request.body
                request = replace(request, body=body, follows_unseen=self._has_missed_requests.is_set())
                self._queue.put_nowait(request)
                self._has_missed_requests.clear()
                self._num_waiting_bytes += len(request.body)
        except queue.Full:
            self.forget()

    def forget(self) -> None:
        """Requests were not seen, so nothing is known of the cache when the next one comes that is."""
        self._has_missed_requests.set()

    def close(self) -> None:
        """Check what is left, for a while."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_TIMEOUT_S * 4)

    def _run_thread(self) -> None:
        next_poll_s = next_line_s = time.monotonic() + _POLL_S
        is_open = True
        while is_open:
            try:
                request = self._queue.get(timeout=max(0.01, next_poll_s - time.monotonic()))
            except queue.Empty:
                request = None
            else:
                is_open = request is not None
            if request is not None:
                self._check_request(request)
                with self._lock:
                    self._num_waiting_bytes -= len(request.body)
            if time.monotonic() >= next_poll_s or not is_open:
                self._poll_counters()
                next_poll_s = time.monotonic() + _POLL_S
            if time.monotonic() >= next_line_s and self.figures.requests:
                print_message(self._summary_line())
                next_line_s = time.monotonic() + _LINE_S

    def _summary_line(self) -> str:
        figures = self.figures
        return (
            f"prefix cache of {self.server.url}: {figures.requests} requests had to find {figures.must_hit_tokens}"
            f" prompt tokens, {figures.reported_hit_tokens} are reported"
        )

    def _check_request(self, request: CheckedRequest) -> None:
        if request.follows_unseen:  # those that still waited when it came are older, and known in full
            self.bound.forget()
        if request.path.partition("?")[0].rstrip("/").endswith(_EMPTYING):
            self.bound.forget()
            return
        self._tells_cached = self._tells_cached or request.cached_tokens is not None
        root, tokens = self._prompt_tokens(request)
        if not tokens:
            self.bound.occupied(request.prompt_tokens + request.output_tokens, request.ended)
            return
        must = self.bound.must_hit(root, tokens, request.sent, request.in_flight_tokens)
        if request.ready:
            self.bound.answered(
                request.number, root, tokens, request.sent, request.ready, request.ended, request.output_tokens
            )
        if not request.is_ok:
            return
        figures = self.figures
        figures.requests += 1
        figures.must_hit_tokens += must.num_tokens
        if not must.num_tokens:
            return
        self._claims.append((replace(request, body=b""), must))
        # vLLM leaves the details of a usage out where nothing was found; a stream may have no usage at all.
        is_told = self._tells_cached and request.prompt_tokens > 0
        if is_told and (request.cached_tokens or 0) < must.num_tokens and not self._has_restarted():
            self._raise_alarm(
                f"request {request.number} found {request.cached_tokens or 0} of {must.num_tokens} prompt tokens that "
                f"request {must.number} had left in the prefix cache of {self.server.url}"
            )

    def _raise_alarm(self, text: str) -> None:
        self.figures.missed += 1
        if not self.figures.first_miss:
            self.figures.first_miss = text
            print_message(f"CACHE ALARM: {text}")

    def _has_restarted(self) -> bool:
        """Read the counters; whether they have begun anew, so that the cache is another one."""
        return not self._poll_counters()

    def _poll_counters(self) -> bool:
        """Read the counters and judge by them; false where the server cannot be read or has begun anew."""
        began = time.perf_counter_ns()
        page = self._fetched("GET", "/metrics", b"", "")
        found = None if page is None else _HITS.findall(page.decode("utf-8", "replace"))
        hits = sum(map(float, found)) if found else None
        if page is None or (hits is not None and self._polls and hits < self._polls[-1].hits):
            self.bound.forget()
            self._polls.clear()
            self._claims.clear()
            self._first_hits = None
            return False
        if hits is not None:
            self._polls.append(_Poll(began, time.perf_counter_ns(), hits))
            self._first_hits = hits if self._first_hits is None else self._first_hits
            self.figures.reported_hit_tokens = round(hits - self._first_hits)
            self._judge_by_counters()
        return True

    def _judge_by_counters(self) -> None:
        """Compare what requests must have found between two readings with what the server has counted."""
        latest = self._polls[-1]
        while self._claims and self._claims[0][0].ended < self._polls[0].ended:
            self._claims.popleft()
        until = latest.began - round(_SETTLED_S * 1e9)
        for poll in self._polls:
            since = max(poll.ended, self._judged_until)
            there = [each for each in self._claims if each[0].sent > since and 0 < each[0].ready < until]
            must = sum(each.num_tokens for _, each in there)
            if must > latest.hits - poll.hits:
                self._judged_until = until
                request, first = there[0]
                self._raise_alarm(
                    f"{len(there)} requests from request {request.number} on found {latest.hits - poll.hits:.0f} of "
                    f"{must} prompt tokens that earlier ones had left in the prefix cache of "
                    f"{self.server.url}. {first.num_tokens} of these are of request {first.number}"
                )
                return

    def _prompt_tokens(self, request: CheckedRequest) -> tuple[bytes, list[int]]:
        """Return what names the blocks of a prompt, and its tokens as the server counts them; none where unsure."""
        try:
            body = orjson.loads(request.body)
        except orjson.JSONDecodeError:
            return b"", []
        if not isinstance(body, dict) or any(body.get(name) for name in _UNCERTAIN) or _has_media(body.get("messages")):
            return b"", []
        if isinstance(body.get("messages"), list) and request.path.partition("?")[0].endswith("/chat/completions"):
            asked = {name: body[name] for name in _OF_CHAT if name in body}
        elif isinstance(body.get("prompt"), str):
            asked = {"prompt": body["prompt"]} | {name: body[name] for name in ("add_special_tokens",) if name in body}
        else:
            return b"", []
        model = {"model": body["model"]} if isinstance(body.get("model"), str) else {}
        reply = self._fetched("POST", "/tokenize", orjson.dumps({**model, **asked}), request.authorization)
        try:
            tokens = [] if reply is None else orjson.loads(reply)["tokens"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            tokens = []
        if not isinstance(tokens, list) or (request.prompt_tokens and len(tokens) != request.prompt_tokens):
            return b"", []
        return orjson.dumps([body.get("model"), body.get("cache_salt")]), tokens

    def _fetched(self, method: str, path: str, body: bytes, authorization: str) -> bytes | None:
        """The body of a reply of the server; None without one that is good."""
        server = self.server
        if self.tls is None:
            connection = http.client.HTTPConnection(server.host, server.port, timeout=_TIMEOUT_S)
        else:
            connection = http.client.HTTPSConnection(server.host, server.port, timeout=_TIMEOUT_S, context=self.tls)
        headers = {"content-type": "application/json"} | ({"authorization": authorization} if authorization else {})
        try:
            connection.request(method, server.prefix + path, body or None, headers)
            reply = connection.getresponse()
            data = reply.read(_MOST_FETCHED_BYTES + 1)
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return data if reply.status == 200 and len(data) <= _MOST_FETCHED_BYTES else None


def _has_media(messages: Any) -> bool:
    """Whether a message has a part that is no text."""
    parts = [message.get("content") for message in messages or () if isinstance(message, Mapping)]
    lists = [each for each in parts if isinstance(each, list)]
    return any(not isinstance(part, Mapping) or part.get("type") != "text" for each in lists for part in each)
