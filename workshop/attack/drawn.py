"""Attacks servers over HTTP with requests that hypothesis and schemathesis draw, and shrinks those that break a rule.

    python -m workshop.attack.drawn [--setups plain,embed] [--count 500] [--seed 0] [--url http://HOST:PORT]

Requests begin as schemathesis makes them from the server's OpenAPI document, within its schemas or against them, or as
bodies that the genuine server has answered. Then bodies and their text, HTTP itself, and uploads are spoiled. A server
must answer each whole message without an error of status 500 that the genuine server does not give, without a hang-up,
and without a traceback. What streams of others notice meanwhile must be within the bounds of `workshop.attack.stalls`.
Equal arguments send equal bytes. Without --url a server of `blis` is started for each set-up. The exit code is 1 when a
rule is broken.
"""

import argparse
import json
import re
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from workshop.attack.http_tricks import hostile_messages
from workshop.attack.mutations import ATTACK, mutated, respelled, spoiled
from workshop.attack.sending import Exchange, Message, Outcome, exchange
from workshop.attack.setups import SETUPS, Running, Setup, running
from workshop.attack.stalls import Bounds, Table, effect_of
from workshop.attack.uploads import hostile_uploads
from workshop.attack.watcher import HTTP, NONE
from workshop.vllm_oracle.mutated_requests import known_bodies

MOST_KINDS_OF_ERRORS = 5
PATIENCE_S, GENERATION_S = 20.0, 1.0
GENERATING = ("/v1/c", "/v1/r", "/v1/m", "/inv", "/inf", "/v1/audio", "/blis/instances")
ENCODINGS = ("utf-16", "utf-32", "utf-8-sig", "utf-7", "cp500")
OWN_HEADERS = ("content-length", "x-schemathesis")
DISTURBING = re.compile(r"/(pause|resume|sleep|wake_up|abort|release_kv|reset_prefix|blis|inference/v1/abort)")
RECOVERY = (("POST", "/resume"), ("POST", "/wake_up"), ("DELETE", "/blis/faults"), ("DELETE", "/blis/playback"))
_NEW_INSTANCE = re.compile(rb'"(?:instance|number)":(\d+)')
LENGTH_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_READS_ITSELF = r"/invocations|/scale_elastic_ep|/collective_rpc|.*/?abort_requests"
_GENERATES = r"/v1/.*|/inference/.*|/invocations|/tokenize"
GENUINE_ERRORS = (
    (500, r"/scale_elastic_ep", "Scale failed"), (501, r".*", ""), (503, r".*", "Generation is paused"),
    (500, f"{_READS_ITSELF}|{_GENERATES}", "maximum recursion depth exceeded while decoding"),
    (500, r".*", "object has no attribute 'get'"), (500, r".*", '"message":""'),
    (500, _GENERATES, "Internal server error"), (500, r"/abort_requests", "Failed to abort requests"),
    (500, r"/v1/load_lora_adapter", "surrogates not allowed|Call to add_lora method failed"),
    (500, r"/release_kv_cache_memory.*", "release_kv_cache_memory method failed"),
)  # fmt: skip
"""Statuses, paths and texts of errors that were seen from vLLM 0.33."""


@dataclass(frozen=True, slots=True)
class Hostile:
    """Bytes to send, and whether they are a whole HTTP message, so that the server owes an answer."""

    kind: str
    path: str
    pieces: tuple[bytes, ...]
    is_complete: bool = True


def document_of(server: Running) -> dict[str, Any]:
    """The OpenAPI document of a server."""
    with urllib.request.urlopen(f"http://{server.host}:{server.port}/openapi.json") as page:
        return dict(json.load(page))


def requests_of(
    document: Mapping[str, Any], api_key: str | None = None, takes_uploads: bool = False
) -> st.SearchStrategy[Hostile]:
    """Requests to the routes of an OpenAPI document, all but a few of them hostile."""
    messages = st.one_of(list(_described(document)))
    bodies: dict[str, list[dict[str, Any]]] = {}
    for each in known_bodies():
        if each.path in document["paths"]:
            bodies.setdefault(each.path, []).append(each.members)
    if bodies:
        changed = st.sampled_from(sorted(bodies)).flatmap(lambda path: _changed(path, bodies[path]))
        messages = messages | changed | changed
    spoilt = messages.map(lambda each: _signed(each, api_key)).flatmap(_spoilt)
    if takes_uploads:
        return spoilt | hostile_uploads().map(lambda each: Hostile("upload", each.path, _whole(each)))
    return spoilt


@lru_cache(maxsize=8)  # a document has 0.3 MB
def _drawn(document: str, api_key: str | None, takes_uploads: bool, count: int, first_seed: int) -> tuple[Hostile, ...]:
    """Draw requests, which takes seconds; servers with equal documents get equal ones."""
    found: list[Hostile] = []

    def keep(request: Hostile) -> None:
        found.append(request)

    strategy = requests_of(json.loads(document), api_key, takes_uploads)
    seed(first_seed)(settings(ATTACK, max_examples=count)(given(strategy)(keep)))()
    return tuple(found)


def _changed(path: str, bodies: Sequence[dict[str, Any]]) -> st.SearchStrategy[Message]:
    """Messages with changed bodies."""
    return (
        st.sampled_from(bodies)
        .flatmap(mutated)
        .map(lambda body: Message(method="POST", path=path, body=json.dumps(_kept_short(body)).encode()))
    )


def _described(document: Mapping[str, Any]) -> Iterator[st.SearchStrategy[Message]]:
    """Yield the requests of each operation, within its schemas and against them."""
    import schemathesis

    for result in schemathesis.openapi.from_dict(dict(document)).get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]  # the document is the server's own
        for mode in schemathesis.GenerationMode:
            yield operation.as_strategy(generation_mode=mode).map(_message)


def _message(case: Any) -> Message:
    from requests import Request

    case.body = _kept_short(case.body) if case.body else case.body
    sent = Request(**case.as_transport_kwargs(base_url="http://localhost")).prepare()
    parts = urlsplit(str(sent.url))
    body = sent.body if isinstance(sent.body, bytes) else str(sent.body or "").encode()
    headers = {name: str(each) for name, each in sent.headers.items() if not name.lower().startswith(OWN_HEADERS)}
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return Message(method=str(sent.method), path=path, body=body, headers=headers)


def _kept_short(found: Any) -> Any:
    """Bound the length of a reply, so that most replies end soon."""
    if isinstance(found, dict):
        for name in LENGTH_FIELDS:
            if isinstance(found.get(name), int | float) and not abs(found[name]) <= 8:
                found[name] = 4
    return found


def _signed(message: Message, api_key: str | None) -> Message:
    return message if api_key is None else message.with_headers(Authorization=f"Bearer {api_key}")


def _whole(message: Message) -> tuple[bytes, ...]:
    return (message.serialised(),)


@st.composite
def _spoilt(draw: st.DrawFn, message: Message) -> Hostile:
    """A message as it is, with another text as its body, or sent in a hostile way."""
    kind = draw(st.sampled_from(("whole", "whole", "text", "http", "http")))
    if kind == "http":
        name, (pieces, is_complete) = draw(hostile_messages(message))
        return Hostile(f"http: {name}", message.path, pieces, is_complete)
    if kind == "text" and message.body:
        text = message.body.decode("utf-8", "replace")
        found = respelled(text).map(lambda each: each.encode("utf-8", "surrogatepass"))
        encoded = st.sampled_from(ENCODINGS).map(lambda name: text.encode(name, "replace"))
        body = draw(found | found | spoiled(message.body) | encoded)
        return Hostile("text", message.path, _whole(Message(method=message.method, path=message.path, body=body)))
    return Hostile(kind, message.path, _whole(message))


def problem_of(request: Hostile, found: Exchange) -> str:
    """Describe an answer that breaks a rule; equal problems have equal texts."""
    path, reply = request.path.partition("?")[0], found.reply.decode("utf-8", "replace")
    if found.status is not None and found.status >= 500:
        known = any(
            found.status == status and re.fullmatch(paths, path) and re.search(text, reply)
            for status, paths, text in GENUINE_ERRORS
        )
        return "" if known else f"{found.status} of {path}: {re.sub(r'[0-9]+', 'N', reply[:120])}"
    if request.is_complete and found.outcome is Outcome.CLOSED:
        return f"{path} closes the connection"
    if request.is_complete and found.outcome is Outcome.SILENT and not path.startswith(GENERATING):
        return f"{path} does not answer"
    return ""


def attack(setup: Setup, server: Running, count: int, first_seed: int = 0) -> list[str]:
    """Send `count` requests, and more to shrink those that break a rule. Returns the broken rules."""
    document, done, broken = document_of(server), set[str](), dict[str, Hostile]()

    def send(request: Hostile) -> None:
        patience_s = GENERATION_S if request.path.startswith(GENERATING) else PATIENCE_S
        found = exchange(server.host, server.port, request.pieces, patience_s, request.is_complete)
        if DISTURBING.match(request.path):
            _recover(server, found)
        problem = problem_of(request, found) or ("" if server.is_alive() else "the server ended")
        if problem and (problem not in done):
            broken[problem] = request
            raise AssertionError(problem)

    try:
        for request in _drawn(json.dumps(document), setup.api_key, setup.takes_uploads, count, first_seed):
            send(request)
    except AssertionError:
        first = broken.copy()
        broken.clear()
        strategy = requests_of(document, setup.api_key, setup.takes_uploads)
        for number in range(MOST_KINDS_OF_ERRORS):
            done |= set(broken)
            run = seed(first_seed)(settings(ATTACK, max_examples=count)(given(strategy)(send)))
            try:
                run()
            except Exception:
                if len(broken) <= number or not server.is_alive():
                    raise
            else:
                break
        broken = first | broken  # what does not happen again is as long as it was
    lines = [f"{problem}: {each.kind} {b''.join(each.pieces)[:400]!r}" for problem, each in broken.items()]
    return lines + [f"traceback: {each}" for each in server.tracebacks()]


def _recover(server: Running, found: Exchange) -> None:
    """Undo what a request of an operator may have done."""
    undo = list(RECOVERY)
    added = _NEW_INSTANCE.search(found.reply) if found.status == 201 else None
    if added is not None:
        undo.append(("DELETE", f"/blis/instances/{int(added[1])}"))
    for method, path in undo:
        exchange(server.host, server.port, _whole(Message(method=method, path=path, headers={})), 5.0)


def watched_attack(setup: Setup, server: Running, arguments: argparse.Namespace, table: Table) -> None:
    """Attack one server while others are watched."""
    broken: list[str] = []

    def act() -> None:
        broken.extend(attack(setup, server, arguments.count, arguments.seed))

    protocol = HTTP if setup.generates else NONE
    effect = effect_of(act, server, protocol, setup.api_key, as_measured=arguments.as_measured)
    table.add(setup.name, effect, broken, setup.has_even_streams)


def main() -> None:
    """Attack each set-up in turn."""
    parser = Bounds.parser(__doc__)
    parser.add_argument("--count", type=int, default=500, help="hostile requests for each set-up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--setups", default="all", help=f"of {', '.join(each.name for each in SETUPS)}")
    parser.add_argument("--url", help="attack this running server as the first of --setups; without tracebacks")
    arguments = parser.parse_args()
    by_name = {each.name: each for each in SETUPS}
    names = list(by_name) if arguments.setups == "all" else arguments.setups.split(",")
    if unknown := [name for name in names if name not in by_name]:
        parser.error(f"--setups: {unknown[0]!r} is none of {', '.join(by_name)}")
    table = Table(Bounds.of(arguments))
    if arguments.url:
        parts = urlsplit(arguments.url)
        watched_attack(by_name[names[0]], Running(parts.hostname or "127.0.0.1", parts.port or 80), arguments, table)
    else:
        for name in names:
            with running(by_name[name]) as started:
                watched_attack(by_name[name], started, arguments, table)
    sys.exit(table.is_broken)


if __name__ == "__main__":
    main()
