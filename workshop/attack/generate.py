"""The hostile requests of one run: the same for the same set-up, seed and count."""

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

from workshop.attack import http_tricks, json_texts, mutations, uploads
from workshop.attack.heavy import HEAVY, Heavy
from workshop.attack.hostile import HostileRequest, Message
from workshop.attack.setups import Setup
from workshop.attack.valid_bodies import ValidRequest

SHOWN_CHARS = 3000
GENERATING_PREFIXES = ("/v1/c", "/v1/r", "/v1/m", "/inv", "/inf", "/v1/audio", "/blis/instances")


def hostile_requests(setup: Setup, seed: int, count: int, heavy_rounds: int) -> Iterator[HostileRequest]:
    """`count` requests, the heavy ones spread evenly among them."""
    rng = random.Random(f"{setup.name}/{seed}")
    others = {name: value for each in setup.routes if isinstance(each.body, dict) for name, value in each.body.items()}
    kinds = [each for each in HEAVY if each.needs in setup.heavy_needs] * heavy_rounds
    rng.shuffle(kinds)
    kinds = kinds[:count]
    every = max(count // max(len(kinds), 1), 1)
    for index in range(count):
        if kinds and index % every == every - 1:
            yield heavy_request(kinds.pop(), setup)
        else:
            yield small_request(setup, rng, others)


def heavy_request(kind: Heavy, setup: Setup) -> HostileRequest:
    """One heavy kind as bytes."""
    body = json.dumps(kind.body()).encode()
    message = authorised(Message(method="POST", path=kind.path, body=body), setup, None)
    return HostileRequest(
        kind=f"heavy: {kind.name}", route=kind.path, pieces=(message.serialised(),), runs_alone=True,
        shown=body[:SHOWN_CHARS].decode(errors="replace"),
    )  # fmt: skip


def small_request(setup: Setup, rng: random.Random, others: Mapping[str, Any]) -> HostileRequest:
    """One mutation of a valid request of the set-up."""
    valid = rng.choice(setup.routes)
    share = rng.random()
    if setup.takes_uploads and share < 0.5:
        kind, message = uploads.hostile_upload(rng)
        return _request(f"upload: {kind}", valid, authorised(message, setup, rng))
    if share < 0.03:
        kind, upload = uploads.hostile_upload(rng, (valid.path,))
        return _request(f"upload: {kind}", valid, authorised(upload, setup, rng))
    message = authorised(_message(valid, valid.body), setup, rng)
    if share > 0.8:
        kind, (pieces, is_complete) = http_tricks.hostile_message(message, rng)
        shown = pieces[0][:SHOWN_CHARS].decode("latin-1")
        return HostileRequest(
            kind=f"http: {kind}", route=valid.path, pieces=pieces, is_complete=is_complete, disturbs=valid.disturbs,
            runs_alone=valid.disturbs, may_generate=_generates(valid.path), shown=shown,
        )  # fmt: skip
    if share > 0.6 and valid.body is not None:
        kind, text = json_texts.hostile_text(json_texts.dumped(valid.body), rng)
        return _request(f"text: {kind}", valid, authorised(_message(valid, None, text), setup, rng))
    body = mutations.mutated(valid.body, rng, others)
    return _request("structure", valid, authorised(_message(valid, body), setup, rng))


def _message(valid: ValidRequest, body: Any, text: bytes | None = None) -> Message:
    if text is None:
        text = b"" if body is None else json_texts.dumped(body)
    return Message(method=valid.method, path=valid.path, body=text)


def authorised(message: Message, setup: Setup, rng: random.Random | None) -> Message:
    """A message with the key of the set-up; one in five lacks it."""
    if setup.api_key is None or (rng is not None and rng.random() < 0.2):
        return message
    return message.with_headers(Authorization=f"Bearer {setup.api_key}")


def _request(kind: str, valid: ValidRequest, message: Message) -> HostileRequest:
    return HostileRequest(
        kind=kind,
        route=message.path,
        pieces=(message.serialised(),),
        disturbs=valid.disturbs,
        runs_alone=valid.disturbs,
        may_generate=_generates(message.path),
        shown=message.body[:SHOWN_CHARS].decode("latin-1"),
    )


def _generates(path: str) -> bool:
    return path.startswith(GENERATING_PREFIXES)
