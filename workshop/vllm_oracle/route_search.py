"""Sends random requests to a genuine server and to ours, on every route that the genuine one documents.

python -m workshop.vllm_oracle.route_search --genuine http://127.0.0.1:18800 --ours http://127.0.0.1:18850

Both must be started the same way. Bodies are valid ones with one or two fields missing, null, of a wrong type or out of
range, or no JSON at all; queries, methods, media types and headers are drawn too. Exit code 1 if replies differ.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any
from urllib.parse import quote

from workshop.ending import check_reachable, run_command
from workshop.vllm_oracle.replies import HttpRequest, answer, differences

MESSAGES = [{"role": "user", "content": "hello there"}]
VALID: Mapping[str, Any] = {
    "/tokenize": {"prompt": "hello there"},
    "/detokenize": {"tokens": [5, 6, 7]},
    "/v1/completions": {"prompt": "hello there", "max_tokens": 2},
    "/v1/completions/render": {"prompt": "hello there", "max_tokens": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/chat/completions/render": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/chat/completions/batch": {"messages": [MESSAGES, MESSAGES], "max_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2, "model": "m"},
    "/v1/messages/render": {"messages": MESSAGES, "max_tokens": 2, "model": "m"},
    "/v1/messages/count_tokens": {"messages": MESSAGES, "model": "m"},
    "/v1/responses": {"input": "hello there", "max_output_tokens": 2},
    "/v1/responses/render": {"input": "hello there", "max_output_tokens": 2},
    "/inference/v1/generate": {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 2}},
    "/inference/v1/abort_requests": {"request_ids": ["a"]},
    "/abort_requests": {"request_ids": ["a"]},
    "/generative_scoring": {"query": "a b", "items": ["c", "d"], "label_token_ids": [5, 6]},
    "/v1/decisions": {"model": "m", "input": "x", "questions": [{"type": "predicate", "instructions": "is it"}]},
    "/v1/systemone": {"state": "x", "questions": {"q": {"type": "predicate"}}},
    "/v1/embeddings": {"input": "hello there"},
    "/v2/embed": {"texts": ["hello there"], "input_type": None},
    "/pooling": {"input": "hello there"},
    "/classify": {"input": "hello there"},
    "/score": {"text_1": "a b", "text_2": ["c", "d"]},
    "/v1/score": {"queries": "a b", "documents": ["c", "d"]},
    "/rerank": {"query": "a b", "documents": ["c", "d"]},
    "/v1/rerank": {"query": "a b", "documents": ["c", "d"]},
    "/v2/rerank": {"query": "a b", "documents": ["c", "d"]},
    "/v1/load_lora_adapter": {"lora_name": "ad", "lora_path": "/nowhere/ad"},
    "/v1/unload_lora_adapter": {"lora_name": "ad"},
    "/adapters": {"name": "ad", "src": "/nowhere/ad"},
    "/update_weight_version": {"new_version": "v2"},
    "/finish_weight_update": {"weight_version": "v3"},
    "/init_weight_transfer_engine": {"init_info": {}},
    "/update_weights": {"update_info": {}},
    "/weight_checker": {"action": "reset"},
    "/collective_rpc": {"method": "check_health"},
    "/scale_elastic_ep": {"new_data_parallel_size": 1},
    "/invocations": {"input": "hello there", "prompt": "hello there", "max_tokens": 2},
}
"""A body for each path that takes one. What other routes do is in their queries."""

VALUES: tuple[Any, ...] = (
    None, True, False, "", "x", "3", "true", 0, 1, -1, 3, 1.5, -0.5, 100000, 2**31, 2**63, -(2**63) - 1, [], {}, [1],
    ["a"], [[1, 2]], [None], [{}], {"a": 1}, "m", "nope", [{"role": "user", "content": "a"}], "a" * 300, [-1], [2**40],
)  # fmt: skip
UNTYPED_BODIES: tuple[bytes, ...] = (b"", b"{", b"[]", b"null", b"3", b'"a"', b"\xff", b'{"a": NaN}', b"[" * 9)
METHODS = ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")
QUERY_VALUES = (
    "",
    "x",
    "true",
    "0",
    "1",
    "2",
    "3",
    "-1",
    "abort",
    "wait",
    "keep",
    "json",
    "text",
    "weights",
    "kv_cache",
)
RESTORING = ("/wake_up", "/resume")
"""Asked after what suspends a server, so that the next requests are answered."""
SUSPENDING = ("/pause", "/sleep", "/release_kv_cache_memory")
COSTLY = frozenset({"n", "stream"})
"""Fields that are left as they are: others look at streams and at many choices."""


def main() -> int:
    """Search, print the differences and the number of requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--genuine", required=True, help="URL of the genuine server")
    parser.add_argument("--ours", required=True, help="URL of our server")
    parser.add_argument("--count", type=int, default=400, help="number of requests")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    parser.add_argument("--only", default="", help="paths that begin with this alone")
    given = parser.parse_args()
    check_reachable(given.genuine, given.ours)
    document = json.loads(answer(given.genuine, HttpRequest("GET", "/openapi.json")).body)
    random = Random(given.seed)
    asked: Counter[str] = Counter()
    num_different = 0
    for ask in _requests(document, random, given.count, given.only):
        asked[ask.path.partition("?")[0]] += 1
        found = list(differences(ask.path, answer(given.genuine, ask), answer(given.ours, ask)))
        if found:
            num_different += 1
            sys.stdout.write(f"{ask}\n" + "".join(f"    {each}\n" for each in found))
        if ask.path.startswith(SUSPENDING):
            for path in RESTORING:
                for url in (given.genuine, given.ours):
                    answer(url, HttpRequest("POST", path))
    sys.stdout.write(f"{asked.total()} requests to {len(asked)} paths, {num_different} answered differently\n")
    return 1 if num_different else 0


def _requests(document: Mapping[str, Any], random: Random, count: int, only: str) -> Iterator[HttpRequest]:
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if path.startswith(only)
    ]
    for _ in range(count):
        method, path, operation = random.choice(operations)
        if path in VALID and random.random() < 0.9:
            yield _with_body(document, random, method, path, operation)
        else:
            yield _without_body(random, method, path, operation)


def _with_body(
    document: Mapping[str, Any], random: Random, method: str, path: str, operation: Mapping[str, Any]
) -> HttpRequest:
    drawn = random.random()
    if drawn < 0.04:
        return HttpRequest(method, path, random.choice(UNTYPED_BODIES))
    if drawn < 0.06:
        return HttpRequest(
            method, path, VALID[path], {"content-type": random.choice(("text/plain", "application/x", "a/json"))}
        )
    body = dict(VALID[path])
    fields = [each for each in _fields(document, operation) if each not in COSTLY] or list(body)
    for _ in range(random.choice((0, 1, 1, 1, 2))):
        if random.random() < 0.15:
            body.pop(random.choice(list(body)), None) if body else None
        else:
            body[random.choice(fields)] = random.choice(VALUES)
    return HttpRequest(method, path, body, {"x-request-id": "rid"} if random.random() < 0.05 else {})


def _fields(document: Mapping[str, Any], operation: Mapping[str, Any]) -> list[str]:
    """The members that a body of this operation may have, of all the types it may be of."""
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    names: dict[str, None] = {}
    for each in schema.get("anyOf", [schema]):
        name = each.get("$ref", "").rpartition("/")[2]
        names |= dict.fromkeys(document["components"]["schemas"].get(name, {}).get("properties", {}))
    return list(names)


def _without_body(random: Random, method: str, path: str, operation: Mapping[str, Any]) -> HttpRequest:
    named = path.replace("{response_id}", "resp_x").replace("{adapter_name}", "ad")
    if random.random() < 0.3:
        method = random.choice(METHODS)
    names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"] or ["tags", "x"]
    pairs = [f"{random.choice(names)}={quote(random.choice(QUERY_VALUES))}" for _ in range(random.randint(0, 2))]
    return HttpRequest(method, named + ("?" + "&".join(pairs) if pairs else ""), b"" if method == "POST" else None)


if __name__ == "__main__":
    run_command(main)
