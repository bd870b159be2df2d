"""The hostile requests of one run: the same for the same set-up, seed and count."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any
from urllib.parse import urlsplit

from hypothesis import strategies as st

from workshop.attack import constraints, costly
from workshop.attack.hostile import HostileRequest, Message
from workshop.attack.http_tricks import hostile_messages
from workshop.attack.mutations import Draws, mutated, respelled, spoiled
from workshop.attack.setups import Setup
from workshop.attack.uploads import PATHS, hostile_uploads
from workshop.attack.valid_bodies import ValidRequest

SHOWN_CHARS = 3000
GENERATING_PREFIXES = ("/v1/c", "/v1/r", "/v1/m", "/inv", "/inf", "/v1/audio", "/blis/instances")
LENGTH_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
SHORT_TOKENS = 4
OWN_HEADERS = ("content-length", "x-schemathesis")
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7", "cp500")
HEAVY = (*costly.COSTLY, *constraints.HOSTILE)


def hostile_requests(setup: Setup, seed: int, count: int, heavy_rounds: int) -> Iterator[HostileRequest]:
    """Yield `count` requests, the heavy ones spread evenly among them."""
    heavy = [each for each in HEAVY if each.needs in setup.heavy_needs] * heavy_rounds
    Random(f"{setup.name}/{seed}").shuffle(heavy)
    del heavy[count:]
    small = Draws(small_requests(setup))
    every = max(count // max(len(heavy), 1), 1)
    for index in range(count):
        name = f"{setup.name}/{seed}/{index}"
        is_heavy = heavy and index % every == every - 1
        yield heavy_request(heavy.pop(), setup) if is_heavy else replace(small.one(name), name=name)


def heavy_request(kind: costly.Costly, setup: Setup) -> HostileRequest:
    """One heavy kind as bytes."""
    message = Message(method="POST", path=kind.path, body=kind.data())
    return _request(f"heavy: {kind.name}", kind.path, authorised(message, setup), runs_alone=True, may_generate=True)


@st.composite
def small_requests(draw: st.DrawFn, setup: Setup) -> HostileRequest:
    """One mutation of a valid request of the set-up."""
    valid = draw(st.sampled_from(setup.routes))
    share = draw(st.integers(0, 99))
    if share >= (50 if setup.takes_uploads else 97):
        kind, message = draw(hostile_uploads(PATHS if setup.takes_uploads else (valid.path,)))
        return _request(f"upload: {kind}", valid.path, _signed(draw, message, setup))
    message = _signed(draw, _message(valid, valid.body), setup)
    if share >= (36 if setup.takes_uploads else 69):
        kind, (pieces, is_complete) = draw(hostile_messages(message))
        return HostileRequest(
            kind=f"http: {kind}", route=valid.path, pieces=pieces, is_complete=is_complete, disturbs=valid.disturbs,
            runs_alone=valid.disturbs, may_generate=_waits(valid.path, setup),
            shown=pieces[0][:SHOWN_CHARS].decode("latin-1"),
        )  # fmt: skip
    if share >= (24 if setup.takes_uploads else 49) and valid.body is not None:
        kind, text = draw(_texts(json.dumps(valid.body)))
        message = Message(method=valid.method, path=valid.path, body=text)
    else:
        others: dict[str, Any] = {}
        for each in setup.routes:
            others |= each.body if isinstance(each.body, dict) else {}
        body = draw(mutated(valid.body, others))
        kind, message = "structure", _message(valid, _kept_short(body, valid.body) if draw(st.integers(0, 9)) else body)
    return _request(kind, valid.path, _signed(draw, message, setup), valid.disturbs)


def _texts(text: str) -> st.SearchStrategy[tuple[str, bytes]]:
    """JSON text of which parsers disagree, or that is no JSON at all."""
    written = respelled(text).map(lambda each: each.encode("utf-8", "surrogatepass"))
    whole = respelled("").map(lambda each: each.encode("utf-8", "surrogatepass"))
    new_field = respelled('{"new_field": 1').map(lambda each: f"{each}, {text[1:]}".encode("utf-8", "surrogatepass"))
    encoded = st.sampled_from(ENCODINGS).map(text.encode)
    named = [
        ("respelled", written),
        ("respelled", written),
        ("new field", new_field),
        ("spoiled", spoiled(text.encode())),
    ]
    named += [("whole", whole), ("encoding", encoded)]
    return st.one_of([st.tuples(st.just(f"text: {name}"), strategy) for name, strategy in named])


def described_requests(document: Mapping[str, Any], setup: Setup, seed: int, count: int) -> Iterator[HostileRequest]:
    """Yield `count` requests of each operation in a server's OpenAPI document, half of them against its schemas."""
    import schemathesis
    from hypothesis.errors import Unsatisfiable
    from requests import Request

    for result in schemathesis.openapi.from_dict(dict(document)).get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]  # the document is the server's own
        takes_input = operation.body or operation.path_parameters or operation.query
        for mode in schemathesis.GenerationMode if takes_input else [schemathesis.GenerationMode.POSITIVE]:
            name = f"{setup.name}/{seed}/{operation.label}/{mode.value}"
            cases: Any = operation.as_strategy(generation_mode=mode)
            draws = Draws(cases)
            try:
                found = [draws.one(f"{name}/{number}") for number in range(-(-count // 2) if takes_input else 1)]
            except Unsatisfiable:  # nothing is against a schema that allows everything
                continue
            for case in found:
                case.body = _kept_short(case.body, {"max_tokens": SHORT_TOKENS}) if case.body else case.body
                sent = Request(**case.as_transport_kwargs(base_url="http://localhost")).prepare()
                parts = urlsplit(str(sent.url))
                path = parts.path + (f"?{parts.query}" if parts.query else "")
                body = sent.body if isinstance(sent.body, bytes) else str(sent.body or "").encode()
                headers = {k: str(v) for k, v in sent.headers.items() if not k.lower().startswith(OWN_HEADERS)}
                message = Message(method=str(sent.method), path=path, body=body, headers=headers)
                disturbs = any(each.disturbs and each.path.partition("?")[0] == parts.path for each in setup.routes)
                yield _request(f"described: {mode.value}", operation.path, authorised(message, setup), disturbs)


def _message(valid: ValidRequest, body: Any) -> Message:
    text = b"" if body is None else json.dumps(body).encode()
    return Message(method=valid.method, path=valid.path, body=text)


def _kept_short(found: Any, body: Any) -> Any:
    """Put back the bounds of a reply's length, so that most replies end soon."""
    if isinstance(found, dict) and isinstance(body, dict):
        for name in LENGTH_FIELDS:
            value = found.get(name)
            is_small = isinstance(value, int) and abs(value) <= 2 * SHORT_TOKENS
            if name in body and (value is None or (isinstance(value, int | float) and not is_small)):
                found[name] = SHORT_TOKENS
    return found


def authorised(message: Message, setup: Setup) -> Message:
    """A message with the key of the set-up."""
    return message if setup.api_key is None else message.with_headers(Authorization=f"Bearer {setup.api_key}")


def _signed(draw: st.DrawFn, message: Message, setup: Setup) -> Message:
    """One message in five lacks the key."""
    return authorised(message, setup) if setup.api_key is None or draw(st.integers(0, 4)) else message


def _request(
    kind: str,
    route: str,
    message: Message,
    disturbs: bool = False,
    runs_alone: bool = False,
    may_generate: bool = False,
) -> HostileRequest:
    return HostileRequest(
        kind=kind, route=route, pieces=(message.serialised(),), disturbs=disturbs, runs_alone=runs_alone or disturbs,
        may_generate=may_generate or _generates(message.path), shown=message.body[:SHOWN_CHARS].decode("latin-1"),
    )  # fmt: skip


def _waits(path: str, setup: Setup) -> bool:
    """Whether even a valid request may be answered late: its few tokens come soon where every step is for all."""
    return _generates(path) and (not setup.shares_steps or path.startswith("/blis/"))


def _generates(path: str) -> bool:
    return path.startswith(GENERATING_PREFIXES)
