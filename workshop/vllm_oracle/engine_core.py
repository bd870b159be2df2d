"""Compares two genuine frontends: one before vLLM's own scheduler, one before `blis engine-core`.

    python -m workshop.vllm_oracle.engine_core --genuine http://127.0.0.1:18800 --ours http://127.0.0.1:18850
        [--count 2000] [--seed 0] [--case-files FOLDER]

The first has a stand-in for the model, whose tokens a request names in `vllm_xargs` (`fx_tokens`). Our engine answers
each request first; then the stand-in says the same tokens. Compared are the status, token counts, reasons of endings,
tokens with log-probabilities, the order of a stream's events, and in the end what all of them added to the metrics.
Captured cases are compared in the same way, but for the metrics. Exit code 1 if anything differs.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from workshop.ending import check_reachable, run_command
from workshop.vllm_oracle.mutated_requests import WORDS, Body, known_bodies, limited
from workshop.vllm_oracle.wire_search.exchange import Reply, Server

AT_ONCE = 8
SHOWN = 4
MOST_TRIES = 3
"""A loaded machine joins events of a stream, so what differs is asked again."""
TOKEN_ROUTES = ("/v1/completions", "/v1/chat/completions")
"""Routes that return token ids."""
OTHER_ROUTES = ("/v1/responses", "/v1/messages")
USAGE_NAMES = (("prompt", "input"), ("completion", "output"))
LAST_CHOICE = 1_000_000
DONE = "[DONE]"
END_TOKEN, VOCABULARY = 102, 30_000
PROMPT_WORDS = ("the", "of", "and", "one", "two", "paris", "river", "model", "answer", "why", "how", "because", "blue")
COUNTERS = re.compile(
    r"vllm:(prompt_tokens|generation_tokens|request_success|request_prompt_tokens|request_generation_tokens|"
    r"request_params_n|request_params_max_tokens|request_max_num_generation_tokens|prefix_cache|num_preemptions|"
    r"prompt_tokens_by_source|prompt_tokens_cached|request_prefill_kv_computed_tokens|admission_rejections)\w*_"
    r"(total|sum|count|bucket)\b|vllm:(time_to_first_token|e2e_request_latency|request_queue_time|inter_token_latency|"
    r"request_prefill_time|request_decode_time|request_inference_time|request_time_per_output_token)_seconds_count\b"
)
"""Samples that hang on the requests alone, not on times."""


class Told(NamedTuple):
    """What a reply tells of the engine."""

    status: int
    prompt_tokens: Any
    completion_tokens: Any
    endings: list[Any]
    """Index, finish reason and stop reason of each choice."""
    token_ids: list[Any]
    scored: list[int]
    """Number of tokens with log-probabilities, by choice."""
    events: list[str]
    """Kinds of a stream's events, with repetitions left out."""


def main() -> int:
    """Compare, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--genuine", required=True, help="URL of the frontend before vLLM's scheduler")
    parser.add_argument("--ours", required=True, help="URL of the frontend before blis engine-core")
    parser.add_argument("--count", type=int, default=2000, help="number of fresh requests")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    parser.add_argument("--case-files", type=Path, help="folder of files that captures were made with")
    given = parser.parse_args()
    check_reachable(given.genuine, given.ours)
    genuine, ours = Server.at(given.genuine), Server.at(given.ours)
    before = [samples(genuine), samples(ours)]
    random = Random(given.seed)
    requests = [drawn_request(random, number) for number in range(given.count)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda each: _asked_of_both(genuine, ours, *each), requests))
    different = 0
    for (path, body), lines in zip(requests, found, strict=True):
        if lines:
            different += 1
            sys.stdout.write(f"{path} {json.dumps(body)[:300]}\n" + "".join(f"    {each}\n" for each in lines[:SHOWN]))
    grown = [samples(server) - earlier for server, earlier in zip((genuine, ours), before, strict=True)]
    unequal = [name for name in sorted(grown[0].keys() | grown[1].keys()) if grown[0][name] != grown[1][name]]
    sys.stdout.write("".join(f"{name}: vLLM {grown[0][name]:g}, ours {grown[1][name]:g}\n" for name in unequal))
    cases = list(captured_cases(given.case_files)) if given.case_files is not None else []
    for case in cases:
        members = limited(case.path, case.members)
        lines = _asked_of_both(genuine, ours, case.path, members)
        for _ in range(MOST_TRIES - 1):
            lines = lines and _asked_of_both(genuine, ours, case.path, members)
        if lines:
            different += 1
            shown = f"{case.path} {json.dumps(members)[:300]}\n"
            sys.stdout.write(shown + "".join(f"    {each}\n" for each in lines[:SHOWN]))
    sys.stdout.write(
        f"{len(requests)} fresh requests and {len(cases)} captured ones, {different} answered differently; "
        f"{len(grown[0])} samples of metrics, {len(unequal)} different\n"
    )
    return 1 if different or unequal else 0


def captured_cases(folder: Path) -> Iterator[Body]:
    """Yield captured requests of routes that generate."""
    return (each for each in known_bodies(folder) if each.path in (*TOKEN_ROUTES, *OTHER_ROUTES))


def drawn_request(random: Random, number: int) -> tuple[str, dict[str, Any]]:
    """Return a path and a body that the frontend accepts, or refuses for its limits."""
    words = " ".join(random.choices(PROMPT_WORDS, k=random.choice((1, 5, 20, 60, 300))))
    text = f"{number} {words}" if random.random() < 0.7 else f"{'same beginning ' * 30}{number} {words}"
    body: dict[str, Any] = {"model": "m", "max_tokens": random.choice((1, 2, 3, 9, 17, 40))}
    chats = random.random() < 0.5
    body |= {"messages": [{"role": "user", "content": text}]} if chats else {"prompt": text}
    body |= _sampling(random, chats)
    if random.random() < 0.5:
        body |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": False}}
    return ("/v1/chat/completions" if chats else "/v1/completions"), body


def _sampling(random: Random, chats: bool) -> Mapping[str, Any]:
    """Return fields of sampling, each with some probability."""
    found: dict[str, Any] = {}
    choices: Sequence[tuple[float, Mapping[str, Any]]] = (
        (0.3, {"ignore_eos": True}),
        (0.2, {"temperature": random.choice((0, 0.7, 2))}),
        (0.1, {"min_tokens": 1}),
        (0.1, {"stop_token_ids": random.sample(range(1000, VOCABULARY), 3)}),
        (0.1, {"seed": random.randrange(99), "top_p": 0.9, "top_k": 40}),
        (0.2, {"logprobs": True, "top_logprobs": random.randrange(4)} if chats else {"logprobs": random.randrange(4)}),
        (0.1, {"n": 2, "ignore_eos": True}),
        (0.1, {"priority": 0, "cache_salt": "salt"}),
        (0.05, {"prompt_logprobs": 1}),
        (0.05, {"max_tokens": 4000}),
        (0.1, {"logit_bias": {"2000": 1.0}, "repetition_penalty": 1.1}),
        (0.05, {"truncate_prompt_tokens": 7}),
    )
    for probability, fields in choices:
        if random.random() < probability:
            found |= fields
    return found


def _asked_of_both(genuine: Server, ours: Server, path: str, body: Mapping[str, Any]) -> list[str]:
    """Return what differs."""
    if path in TOKEN_ROUTES:
        body = {**body, "return_token_ids": True}
    mine = told(ours.ask(path, body))
    ids = mine.token_ids[0] if mine.token_ids else []
    said = {"fx_tokens": [*ids, END_TOKEN]} if ids else WORDS
    theirs = told(genuine.ask(path, body if "vllm_xargs" in body else {**body, "vllm_xargs": said}))
    if len(mine.token_ids) > 1 or body.get("use_beam_search"):  # the stand-in says the same in each choice
        theirs, mine = theirs._replace(token_ids=[]), mine._replace(token_ids=[])
    return [
        f"{name}: vLLM {theirs_value!r}, ours {ours_value!r}"[:300]
        for name, theirs_value, ours_value in zip(Told._fields, theirs, mine, strict=True)
        if theirs_value != ours_value
    ]


def told(reply: Reply) -> Told:
    """Return what a reply tells of the engine."""
    if not reply.content_type.startswith("text/event-stream"):
        try:
            whole = reply.json
        except ValueError:
            whole = {}
        return _told(reply.status, [whole], [])
    texts = [block.rpartition("data: ")[2] for block in reply.text.strip().split("\n\n")]
    chunks = [json.loads(each) for each in texts if each.startswith("{")]
    kinds = [kind for each in chunks for kind in _kinds(each)]
    kinds.sort(key=lambda kind: kind[0])  # choices interleave as they may
    return _told(reply.status, chunks, [kind for _, kind in kinds] + [DONE] * (texts[-1] == DONE))


def _told(status: int, parts: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> Told:
    answers = [
        inner
        for part in parts
        for inner in (part, part.get("response"), part.get("message"))
        if isinstance(inner, dict)
    ]
    usage: Mapping[str, Any] = next((each["usage"] for each in reversed(answers) if each.get("usage")), {})
    choices = [choice for part in parts for choice in part.get("choices") or ()]
    indexes = sorted({choice["index"] for choice in choices})
    endings: list[Any] = sorted(
        (choice["index"], choice["finish_reason"], str(choice.get("stop_reason")))
        for choice in choices
        if choice.get("finish_reason")
    ) or [[str(each.get(name)) for name in ("status", "stop_reason", "incomplete_details")] for each in answers[-1:]]
    ids = [[x for each in choices if each["index"] == index for x in each.get("token_ids") or ()] for index in indexes]
    scored = [sum(_num_scored(each) for each in choices if each["index"] == index) for index in indexes]
    events = [kind for kind, _ in groupby(kinds)]
    prompt_tokens, completion_tokens = (
        usage.get(f"{old}_tokens", usage.get(f"{new}_tokens")) for old, new in USAGE_NAMES
    )
    return Told(status, prompt_tokens, completion_tokens, endings, ids, scored, events)


def _num_scored(choice: Mapping[str, Any]) -> int:
    logprobs = choice.get("logprobs") or {}
    return len(logprobs.get("content") or logprobs.get("tokens") or ())


def _kinds(chunk: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield the choice that a stream's event is of, and what it brings: how many tokens is the machine's business."""
    for choice in chunk.get("choices") or ():
        parts = {
            "role": choice.get("delta", {}).get("role"),
            "text": choice.get("token_ids"),
            "end": choice.get("finish_reason"),
        }
        yield from ((choice["index"], f"{choice['index']} {name}") for name, part in parts.items() if part)
    if not chunk.get("choices"):
        is_usage = "usage" in chunk and "choices" in chunk
        yield (LAST_CHOICE, "usage") if is_usage else (0, str(chunk.get("type", sorted(chunk))))


def samples(server: Server) -> Counter[str]:
    """Return the counters that hang on the requests alone."""
    found: Counter[str] = Counter()
    for line in server.ask("/metrics", None, method="GET").text.splitlines():
        if COUNTERS.match(line):
            name, _, value = line.rpartition(" ")
            found[name] = int(float(value))
    return found


if __name__ == "__main__":
    run_command(main)
