"""A genuine vLLM server against ours, both saying the same: every reply is compared word by word.

    python -m workshop.vllm_oracle.equal_words --genuine URL --model FOLDER --answers FILE.json [--count N] [--seed N]
        [--no-tools] [--reasoning-parser NAME] [--flags='--stream-interval 4']

The genuine server runs a stand-in for the model that looks for the last mark `[[key]]` in a prompt and says the text of
that key in the JSON object of FILE; it must read FILE anew when it changes. Start it on the model folder FOLDER with
`--served-model-name m --max-model-len 4096 --enable-auto-tool-choice --tool-call-parser hermes`. Ours is started here,
plays the same texts back, and has the tokenizer of FOLDER; where it calls functions it answers first, and the stand-in
says the same. Requests are those of real clients, drawn by the seed. Whatever is given behind `--reasoning-parser` and
`--flags` the genuine server has to be started with, too; with `--no-tools` it has no parser of calls.
Deltas of one kind in a row are joined, since a busy machine sends several tokens together. Differences are listed and
counted by place.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from workshop.ending import check_reachable, run_command
from workshop.vllm_oracle.equal_words.clients import MESSAGES, RESPONSES, SaidRequest, drawn_requests
from workshop.vllm_oracle.equal_words.compared import found_differences
from workshop.vllm_oracle.replies import HttpRequest, answer
from workshop.vllm_oracle.wire_search.__main__ import our_server
from workshop.vllm_oracle.wire_search.markup import Call
from workshop.vllm_oracle.wire_search.said import AnswerParts, Parsers, read_chat

SHOWN_PER_REQUEST = 3
MOST_SHOWN_CHARS = 400
AT_ONCE = 4
"""Requests under way at once."""
MOST_TRIES = 3
"""A loaded machine may cut an event differently, so what differs is asked again."""
_NUMBERS = re.compile(r"\[\d+\]")


def main() -> int:
    """Exit code 1 if there is a difference."""
    arguments = _arguments()
    check_reachable(arguments.genuine)
    parsers = Parsers(tool="hermes" if arguments.tools else "", reasoning=arguments.reasoning_parser)
    reasons = bool(parsers.reasoning)
    requests = list(drawn_requests(arguments.seed, arguments.count, reasons, offers_tools=arguments.tools))
    with TemporaryDirectory() as folder:
        fixtures = Path(folder) / "said.yaml"
        rows = [{"match": {"last_user": each.asked}, "reply": each.said} for each in requests if each.said is not None]
        fixtures.write_text(json.dumps({"fixtures": rows}, ensure_ascii=False), encoding="utf-8")
        flags = ["--playback", str(fixtures), "--max-model-len", "4096", "--tokenizer", arguments.model]
        with our_server(arguments.model, parsers, flags=[*flags, *arguments.flags.split()]) as ours:
            url = f"http://{ours.host}:{ours.port}"
            answers = {
                each.mark: _answered(each, url, parsers) if each.said is None else each.said for each in requests
            }
            arguments.answers.write_text(json.dumps(answers, ensure_ascii=False), encoding="utf-8")
            places = _compare(requests, arguments.genuine, url, arguments.all)
    for place, number in places.most_common():
        print(f"{number:6} {place}")
    print(f"{len(requests)} requests, {places.total()} differences in {len(places)} places")
    return 1 if places else 0


def _compare(requests: Sequence[SaidRequest], genuine: str, ours: str, shows_all: bool) -> Counter[str]:
    """Return the number of differences by place, after printing those of each request."""
    places: Counter[str] = Counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        all_found = list(pool.map(lambda each: _found(each, genuine, ours), requests))
    for request, found in zip(requests, all_found, strict=True):
        if found:  # once more, alone: a busy server puts many tokens into one event
            found = _found(request, genuine, ours)
        places.update({f"{request.path} {_NUMBERS.sub('[]', each.partition(':')[0])}" for each in found})
        if found:
            shown = json.dumps(request.body, ensure_ascii=False)[:MOST_SHOWN_CHARS]
            print(f"{request.client} {request.mark} {shown} says {request.said!r}")
            for each in found if shows_all else found[:SHOWN_PER_REQUEST]:
                print(f"    {each}", flush=True)
    return places


def _found(request: SaidRequest, genuine: str, ours: str) -> list[str]:
    """Return the differences that stay in every try."""
    found: list[str] = []
    for _ in range(MOST_TRIES):
        asked = HttpRequest("POST", request.path, request.body, request.headers)
        found = found_differences(answer(genuine, asked), answer(ours, asked))
        if not found:
            break
    return found


def _answered(request: SaidRequest, ours: str, parsers: Parsers) -> str:
    """Return the answer of our server to a request, as a model for the parsers writes it."""
    body = {name: value for name, value in request.body.items() if name not in ("stream", "stream_options")}
    reply = answer(ours, HttpRequest("POST", request.path, body, request.headers))
    if reply.status != HTTPStatus.OK:
        return ""
    return _parts(request.path, json.loads(reply.body)).written(parsers, body.get("tool_choice"))


def _parts(path: str, reply: Mapping[str, Any]) -> AnswerParts:
    if path == RESPONSES:
        messages = [each for each in reply["output"] if each["type"] == "message"]
        text = "".join(part["text"] for each in messages for part in each["content"])
        thoughts = [each for each in reply["output"] if each["type"] == "reasoning"]
        thought = "".join(part["text"] for each in thoughts for part in each["content"])
        calls = [Call(each["name"], each["arguments"]) for each in reply["output"] if each["type"] == "function_call"]
        return AnswerParts(thought, text, calls)
    if path == MESSAGES:
        text = "".join(each["text"] for each in reply["content"] if each["type"] == "text")
        used = [each for each in reply["content"] if each["type"] == "tool_use"]
        thought = "".join(each["thinking"] for each in reply["content"] if each["type"] == "thinking")
        return AnswerParts(thought, text, [Call(each["name"], json.dumps(each["input"])) for each in used])
    return read_chat(reply)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="equal_words", description="Replies of both servers, word by word.")
    parser.add_argument("--genuine", required=True, help="URL of the genuine server")
    parser.add_argument("--model", required=True, help="model folder of both servers")
    parser.add_argument("--answers", required=True, type=Path, help="file from which the stand-in reads what to say")
    parser.add_argument("--count", type=int, default=200, help="requests to send")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    parser.add_argument(
        "--tools", action=argparse.BooleanOptionalAction, default=True, help="offer functions, to servers with a parser"
    )
    parser.add_argument("--reasoning-parser", default="", help="parser of reasoning of both servers")
    parser.add_argument("--flags", default="", help="further flags of our server, which the genuine one was given, too")
    parser.add_argument("--all", action="store_true", help="print every difference of a request")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
