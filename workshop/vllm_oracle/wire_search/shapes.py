"""The shapes of replies as one line each, and a table of those that a genuine vLLM server sends for each parser.

    python -m workshop.vllm_oracle.wire_search.shapes --genuine URL --model FOLDER [--reasons OLD.csv] > TABLE.csv

Both servers must be set up as for `__main__.py`. Equal events in a row are one.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workshop.ending import check_reachable, run_command

FIRST_EVENTS = 1
"""Events that only open a stream."""
PAIRS = (
    *(
        (each, "qwen3")
        for each in ("hermes", "deepseek_v3", "deepseek_v31", "ernie45", "hunyuan_a13b", "hy_v4", "internlm")
    ),
    *((each, "qwen3") for each in ("jamba", "lfm2", "llama3_json", "llama4_pythonic", "olmo3", "pythonic", "xlam")),
    *(("hermes", each) for each in ("deepseek_r1", "k2_horizon", "olmo3", "kimi_k3", "minicpmv", "minimax_m3")),
    *((each, each) for each in ("glm45", "granite", "hy_v3", "hy_v4", "k2_horizon", "kimi_k2", "minimax_m2", "olmo3")),
    ("deepseek_v31", "deepseek_v3"),
    ("qwen3_coder", "qwen3"),
)
"""Parsers of calls and of reasoning that are asked together: those of which one changes what the other brings, and
usual ones.
"""


def reply_shape(text: str) -> str:
    """The deltas of a chat stream with one choice: keys, and values without content. Other interfaces give the kinds of
    events, or those of the items of a whole reply.
    """
    if text.startswith("{"):
        return _whole(json.loads(text))
    shapes = _kinds(text) if text.startswith("event: ") else _deltas(text)
    return " ".join(shape for number, shape in enumerate(shapes) if number == 0 or shape != shapes[number - 1])


def _whole(reply: Mapping[str, Any]) -> str:
    if "error" in reply and reply["error"] is not None:
        error = reply["error"]
        return f"error {error.get('code', error.get('type'))}"
    kinds = [each["type"] for each in reply.get("output", reply.get("content", ()))]
    return " ".join([*kinds, str(reply.get("status") or reply.get("stop_reason"))])


def _kinds(text: str) -> list[str]:
    """The kinds of typed events, and what each is about."""
    shapes: list[str] = []
    for block in text.strip().split("\n\n")[FIRST_EVENTS:]:
        kind, _, data = block.removeprefix("event: ").partition("\ndata: ")
        if not data:
            shapes.append("(cut)")
            continue
        event = json.loads(data)
        about = event.get("item") or event.get("content_block") or event.get("delta")
        name = about.get("type") if isinstance(about, dict) else None
        shapes.append(kind.removeprefix("response.") + (f"({name})" if name else ""))
    return shapes


def _deltas(text: str) -> list[str]:
    shapes: list[str] = []
    for block in text.strip().split("\n\n")[FIRST_EVENTS:]:
        data = block.partition("data: ")[2]
        if not data.startswith("{"):
            continue
        event = json.loads(data)
        if "error" in event:
            shapes.append(f"error {event['error']['code']}")
        elif event["choices"]:
            choice = event["choices"][0]
            reason = choice["finish_reason"]
            shapes.append(_delta(choice["delta"]) + (f" {reason}" if reason else ""))
    return shapes


def _delta(delta: Mapping[str, Any]) -> str:
    return "{" + " ".join(_field(name, value) for name, value in delta.items()) + "}"


def _field(name: str, value: Any) -> str:
    if name == "tool_calls":
        return "".join(map(_call, value))
    return name if value else f"{name}={json.dumps(value)}"


def _call(call: Mapping[str, Any]) -> str:
    head = [_field(name, call[name]) for name in ("id", "type") if name in call]
    function = [_field(name, value) for name, value in (call.get("function") or {}).items()]
    return f"call{call['index']}({' '.join([*head, *function])})"


def _reasons(table: Path) -> dict[tuple[str, ...], str]:
    rows = csv.DictReader(table.read_text().splitlines())
    return {(row["kind"], row["parser"], row["question"], row["shape"]): row["reason"] for row in rows}


def main() -> int:
    """Write the table."""
    # Only here, so that tests need neither a tokenizer's library nor a server for the function above.
    from tokenizers import Tokenizer

    from workshop.vllm_oracle.wire_search.__main__ import our_server, readable_reasoning_parsers, reply_of_genuine
    from workshop.vllm_oracle.wire_search.exchange import Server
    from workshop.vllm_oracle.wire_search.markup import CALLS, PAIRED
    from workshop.vllm_oracle.wire_search.questions import shape_questions
    from workshop.vllm_oracle.wire_search.said import Parsers

    parser = argparse.ArgumentParser(prog="shapes", description="Shapes of a genuine server's replies.")
    parser.add_argument("--genuine", required=True, help="URL of the genuine server")
    parser.add_argument("--model", required=True, help="model folder of both servers")
    parser.add_argument("--reasons", type=Path, help="a table whose reasons hold for what has not changed")
    arguments = parser.parse_args()
    check_reachable(arguments.genuine)
    tokenizer = Tokenizer.from_file(f"{arguments.model}/tokenizer.json")
    genuine = Server.at(arguments.genuine)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("kind", "parser", "question", "shape", "reason"))

    reasons = {} if arguments.reasons is None else _reasons(arguments.reasons)

    def pairs() -> Iterator[tuple[str, Parsers]]:
        yield from (("calls", Parsers(tool=each)) for each in CALLS if each not in PAIRED)
        yield from (("reasoning", Parsers(reasoning=each)) for each in readable_reasoning_parsers())
        yield from (("both", Parsers(*each)) for each in PAIRS)

    for kind, parsers in pairs():
        with our_server(arguments.model, parsers, extra_call_probability=0.0) as ours:
            for question in shape_questions(parsers):
                theirs = reply_of_genuine(question, parsers, genuine, ours, tokenizer)
                row = (kind, parsers.name, question.name, reply_shape(theirs.text))
                writer.writerow((*row, reasons.get(row, "")))
    return 0


if __name__ == "__main__":
    run_command(main)
