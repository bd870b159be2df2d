"""Sends captured requests with one changed field to a genuine server and to ours, and prints differing replies.

python -m workshop.vllm_oracle.mutated_requests --genuine http://127.0.0.1:18800 --ours http://127.0.0.1:18850

Both must be started the same way. Bodies come from the tables of tests/wire/asked, from the search of parsers and, with
`--case-files FOLDER`, from the files that captures were made with. A change removes a member, makes it null, gives it a
value of another type or beyond a bound, adds a member that the route documents, or takes one from another body of the
same route. An added member has any value, or one of the forms that the genuine server's document gives it. Differences
that docs/compatibility.md or docs/decisions.md explains are counted by their reason. Exit code 1 if others are found.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeAlias

from tests.wire.asked.setups import MAX_MODEL_LEN
from tests.wire.asked.table import SETUPS
from tests.wire.captured.case_files import read_cases
from workshop.ending import check_reachable, run_command
from workshop.vllm_oracle.replies import HttpRequest, answer
from workshop.vllm_oracle.route_search import VALID, VALUES
from workshop.vllm_oracle.wire_search.exchange import Reply, Server, differences
from workshop.vllm_oracle.wire_search.fields import field_questions

SHOWN = 4
MOST_TOKENS = 3
"""Answers are cut so early that neither server ends one by itself."""
MOST_BODY_CHARS = 20_000
LIMITS = {
    "/v1/completions": "max_tokens",
    "/v1/chat/completions": "max_tokens",
    "/v1/chat/completions/batch": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
}
"""The member that limits an answer, for each route that has one at the top."""
ENDS_BY_FORM = frozenset({"response_format", "structured_outputs", "tools", "text", "stop", "stop_token_ids", "guided"})
"""Members by which an answer may end before its limit: then the reason of its end is the model's."""
ENDINGS = ("finish_reason", "stop_reason", "incomplete_details", "status", ".event", ".length")
SAID = re.compile(r"token_id|logprobs|\.rank|output_messages|\.results\[\d+\]\.(index|document)|\.embedding")
"""Places of a model's words and scores."""
WORDS = {"fx_tokens": [70, 71, 72, 73]}
INTEGERS = (0, 1, 2, 3, 70, -1, "3", 3.0)
SCALARS: Mapping[str, Sequence[Any]] = {
    "string": (
        "x",
        "",
        "user",
        "m",
        "a b",
        "{}",
        '{"a": 1}',
        "f",
        "{{ x }}",
        "data:image/png;base64,AA",
        "root ::= [a]",
    ),
    "integer": INTEGERS,
    "number": (*INTEGERS, 0.5, 1.5, "0.5"),
    "boolean": (True, False, True, False, "no", "yes", 1, 0.0),
    "null": (None,),
}
"""Values of the types of a schema, and others that are read as such."""
MOST_DEPTH = 7
"""Members of objects deeper than this are those alone that must be there."""
CALM = frozenset({"vllm_xargs", "priority", "n"})
"""Members that say what the genuine server's model does, or how much it has to do."""
MOST_TRIES = 3
"""A loaded machine joins events of a stream, so what differs is asked again."""


class Explained(NamedTuple):
    """A difference that is meant: patterns of the request and of what differs, and the reason in the documents."""

    request: re.Pattern[str]
    difference: re.Pattern[str]
    reason: str


EXPLAINED = tuple(
    Explained(re.compile(request), re.compile(difference), reason)
    for request, difference, reason in (
        (r"^\S+/render ", r"^\.sampling_params\.structured_outputs", "grammars of calls in a rendered chat"),
        (r"/derender ", r"^\.stream_state", "state that a client of the derender routes carries"),
        (r'"chat_template_kwargs": \{"self"', r"^\.error\.message", "template argument self"),
        (r'"truncation": null', r"^status|^\[0\]|^ length", "`truncation` that is null"),
        (r"^\S+/batch ", r"^status: vLLM 200 .*ValidatorIterator", "content parts of a batch"),
        (r'"minLength": -1', r"\.error\.message", "schema: negative length"),
        (r'/batch .*"tool_calls"', r"^status: vLLM 400 .*ToolCallParam", "calls of a batch"),
        (r"-9223372036854775809|18446744073709551616", "", "whole numbers beyond 64 bits"),
        (r'"structural_tag"', r"^\.error\.", "no structural tag"),
        ("", r"^\.error\.message: vLLM .(\d+) validation errors(?!.*ours .\1 validation)", "number of errors of forms"),
    )
)


Place: TypeAlias = tuple[str | int, ...]


class Body(NamedTuple):
    """A captured request."""

    method: str
    path: str
    members: dict[str, Any]


def main() -> int:
    """Search, print the differences and the number of requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--genuine", required=True, help="URL of the genuine server")
    parser.add_argument("--ours", required=True, help="URL of our server")
    parser.add_argument("--case-files", type=Path, help="folder of files that captures were made with")
    parser.add_argument("--count", type=int, default=500, help="number of requests")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    parser.add_argument("--only", default="", help="paths that begin with this alone")
    given = parser.parse_args()
    check_reachable(given.genuine, given.ours)
    document = json.loads(answer(given.genuine, HttpRequest("GET", "/openapi.json")).body)
    genuine, ours = Server.at(given.genuine), Server.at(given.ours)
    random = Random(given.seed)
    bodies = [each for each in known_bodies(given.case_files) if each.path in document["paths"]]
    bodies = [each for each in bodies if each.path.startswith(given.only)]
    asked: Counter[str] = Counter()
    explained: Counter[str] = Counter()
    num_different = 0
    for _ in range(given.count):
        base = random.choice(bodies)
        changed = _changed(base, bodies, document, random)
        asked[base.path] += 1
        found = _lasting_differences(genuine, ours, base, changed)
        reasons = {_reason(f"{base.path} {json.dumps(changed)}", each) for each in found}
        if (
            None in reasons
            and all(".error." in each.partition(":")[0] for each in found)
            and _is_refused(genuine, base)
        ):
            reasons = {"the first of several mistakes"}
        explained.update(each for each in reasons if each and None not in reasons)
        if None in reasons:
            num_different += 1
            sys.stdout.write(f"{base.method} {base.path} {json.dumps(changed)[:700]}\n")
            sys.stdout.write("".join(f"    {each}\n" for each in found[:SHOWN]))
            sys.stdout.flush()
    sys.stdout.write("".join(f"{number:6} {each}\n" for each, number in explained.most_common()))
    sys.stdout.write(f"{asked.total()} requests to {len(asked)} paths, {num_different} answered differently for no ")
    sys.stdout.write(f"reason, {explained.total()} for those above\n")
    return 1 if num_different else 0


def known_bodies(folder: Path | None = None) -> Iterator[Body]:
    """Yield requests that are valid for many routes."""
    for path, members in VALID.items():
        yield Body("POST", path, dict(members))
    for setup in SETUPS:
        yield from (_body(each.method, each.path, each.body) for each in setup.cases() if isinstance(each.body, dict))
    yield from (_body("POST", each.path, each.body) for each in field_questions())
    for case in read_cases(sorted(folder.glob("c[0-9]*.py"))) if folder is not None else ():
        try:
            members = json.loads(case.body or b"")
        except ValueError:
            continue
        if isinstance(members, dict):
            yield _body(case.method, case.path, members)


def _body(method: str, path: str, members: Mapping[str, Any]) -> Body:
    kept = {name: value for name, value in members.items() if name not in ("vllm_xargs", "priority")}
    return Body(method, path.partition("?")[0], kept)


def _changed(base: Body, bodies: Sequence[Body], document: Mapping[str, Any], random: Random) -> dict[str, Any]:
    """A copy of the members with one change."""
    members = deepcopy(base.members)
    drawn = random.random()
    others = [each for each in bodies if each.path == base.path and each.members]
    if drawn < 0.35 and others:
        name, value = random.choice(list(random.choice(others).members.items()))
        members[name] = deepcopy(value)
    elif drawn < 0.6:
        schemas = document["components"]["schemas"]
        documented = _documented(document, base) or {"unknown": {}}
        name = random.choice(list(documented))
        members[name] = _anything(random) if drawn < 0.45 else described(documented[name], schemas, random)
        inner = [place for place in _places(members) if place[0] == name and len(place) > 1]
        if inner and random.random() < 0.5:
            _change(members, random.choice(inner), random)
    else:
        places = list(_places(members))
        if places:
            _change(members, random.choice(places), random)
    return limited(base.path, members)


def _change(members: dict[str, Any], place: Place, random: Random) -> None:
    holder: Any = members
    for step in place[:-1]:
        holder = holder[step]
    drawn = random.random()
    if drawn < 0.2:
        del holder[place[-1]]
    elif drawn < 0.35:
        holder[place[-1]] = None
    elif drawn < 0.5 and isinstance(holder, dict):
        holder["extra"] = _anything(random)
    else:
        holder[place[-1]] = _anything(random)


def _places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Every member and item, however deep."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, each in inner:
        yield (*at, step)
        yield from _places(each, (*at, step))


def described(schema: Mapping[str, Any], schemas: Mapping[str, Any], random: Random, depth: int = 0) -> Any:
    """A value of one of the forms that a schema describes; anything where it describes none."""
    name = schema.get("$ref", "").rpartition("/")[2]
    forms = schema.get("anyOf") or schema.get("oneOf") or ([schemas[name]] if name else [])
    if forms:
        return described(random.choice(forms), schemas, random, depth)
    if "const" in schema or "enum" in schema:
        return random.choice(schema.get("enum") or [schema["const"]])
    kind = schema.get("type", "")
    if kind == "array":
        items = schema.get("items", {})
        return [described(items, schemas, random, depth + 1) for _ in range(random.choice((0, 1, 1, 2)))]
    if kind != "object":
        return random.choice(SCALARS[kind]) if kind in SCALARS else _anything(random)
    fields, required = schema.get("properties", {}), schema.get("required", ())
    if not fields:
        fields = {"a": schema.get("additionalProperties"), "5": {}}
    share = 0.4 if depth < MOST_DEPTH else 0.0
    kept = [each for each in fields if each not in CALM and (each in required or random.random() < share)]
    return {each: described(_schema_of(fields[each]), schemas, random, depth + 1) for each in kept}


def _schema_of(field: Any) -> Mapping[str, Any]:
    """The schema of a field; that of anything where it is a truth value, or missing."""
    return field if isinstance(field, dict) else {}


def _anything(random: Random) -> Any:
    return deepcopy(random.choice(VALUES))  # a copy, since it may be changed


def _documented(document: Mapping[str, Any], base: Body) -> dict[str, Any]:
    """The members that a body of this operation may have, with their schemas."""
    operation = document["paths"][base.path].get(base.method.lower(), {})
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    found: dict[str, Any] = {}
    for each in schema.get("anyOf", [schema]):
        name = each.get("$ref", "").rpartition("/")[2]
        found |= document["components"]["schemas"].get(name, {}).get("properties", {})
    return {name: each for name, each in found.items() if name not in CALM}


def limited(path: str, members: dict[str, Any]) -> dict[str, Any]:
    """The members with a limit that a model does not reach the end of an answer by."""
    nested = path == "/inference/v1/generate"
    holder = members.get("sampling_params") if nested else members
    name = "max_tokens" if nested else LIMITS.get(path)
    if name is None or not isinstance(holder, dict):
        return members
    value = holder.get(name, MOST_TOKENS)
    if value is None or (type(value) is int and MOST_TOKENS < value < MAX_MODEL_LEN):
        value = MOST_TOKENS
    holder[name] = value
    return members


def _reason(request: str, difference: str) -> str | None:
    found = (each for each in EXPLAINED if each.request.search(request) and each.difference.search(difference))
    return next((each.reason for each in found), None)


def _is_refused(genuine: Server, base: Body) -> bool:
    reply = genuine.ask(base.path, base.members, method=base.method)
    return reply.status >= HTTPStatus.BAD_REQUEST or reply.text.startswith('data: {"error"')


def _lasting_differences(genuine: Server, ours: Server, base: Body, members: dict[str, Any]) -> list[str]:
    """Return the differences that stay in every try."""
    found: list[str] = []
    for _ in range(MOST_TRIES):
        found = _differences(genuine, ours, base, members)
        if not found:
            break
    return found


def _differences(genuine: Server, ours: Server, base: Body, members: dict[str, Any]) -> list[str]:
    if len(json.dumps(members)) > MOST_BODY_CHARS:
        return []
    asked = deepcopy(members)  # which sets the words of the genuine server's model
    if isinstance(asked.get("sampling_params"), dict):
        asked["sampling_params"].setdefault("extra_args", WORDS)
    elif base.path in LIMITS and base.path != "/v1/chat/completions/batch":
        asked.setdefault("vllm_xargs", WORDS)
    theirs = genuine.ask(base.path, asked, method=base.method)
    mine = ours.ask(base.path, asked, method=base.method)
    found = differences(theirs, mine)
    if not found and _prompt_tokens(theirs) != _prompt_tokens(mine):
        found = [f"prompt_tokens: vLLM {_prompt_tokens(theirs)}, ours {_prompt_tokens(mine)}"]
    found = [each for each in found if not SAID.search(each.partition(":")[0])]
    if any(each in json.dumps(members) for each in ENDS_BY_FORM):
        found = [each for each in found if not any(name in each.partition(":")[0] for name in ENDINGS)]
    return found


def _prompt_tokens(reply: Reply) -> Any:
    try:
        usage = reply.json.get("usage")
    except (ValueError, AttributeError):
        return None
    return usage.get("prompt_tokens", usage.get("input_tokens")) if isinstance(usage, dict) else None


if __name__ == "__main__":
    run_command(main)
