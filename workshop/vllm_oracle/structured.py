"""Our structured outputs against a genuine vLLM server's, on random constraints.

    python -m workshop.vllm_oracle.structured --genuine http://127.0.0.1:8000 --ours http://127.0.0.1:8001

Both servers must serve the same model folder under the name `m`, with the same `--structured-outputs-config`. The
genuine one may have an executor that applies grammars and no GPU. Compared are the status and the text of every error;
the content of each of our replies that ended by itself must be of the form demanded. Exit code 1 for differences.
"""

import argparse
import json
import re
from collections import Counter
from typing import Any, NamedTuple

from workshop.ending import run_command
from workshop.vllm_oracle.constraint_cases import Case, draw_case
from workshop.vllm_oracle.wire_search.exchange import Server
from workshop.vllm_oracle.wire_search.questions import CHAT, USER

MOST_TOKENS = 300
CLOCK = re.compile(r"\[\d\d:\d\d:\d\d\]")
"""The time of day in the messages of C++ libraries."""


class Reply(NamedTuple):
    """A reply of either server; `content` is that of a reply without error."""

    status: int
    message: str = ""
    content: str = ""
    finish_reason: str = ""


def main() -> int:
    """Print each difference, then the counts."""
    arguments = _arguments()
    seen: Counter[str] = Counter()
    for seed in arguments.seeds:
        case = draw_case(seed)
        kind = next(iter(case))
        theirs, ours = (ask(Server.at(url), case) for url in (arguments.genuine, arguments.ours))
        seen["cases"] += 1
        seen[f"{kind}, status {theirs.status}"] += 1
        problem = difference(theirs, ours) or invalid_content(case, ours)
        if problem:
            seen["differences"] += 1
            print(f"seed {seed}: {problem}\n  {json.dumps(case, ensure_ascii=False)}\n  vLLM {theirs}\n  ours {ours}")
    print(", ".join(f"{count} {name}" for name, count in sorted(seen.items())))
    return min(1, seen["differences"])


def ask(server: Server, case: Case) -> Reply:
    """Return the answer of a server to a chat under a constraint."""
    found = server.ask(CHAT, {"model": "m", "messages": USER, "max_tokens": MOST_TOKENS, "structured_outputs": case})
    if "error" in found.json:
        return Reply(found.status, CLOCK.sub("[time]", found.json["error"]["message"]))
    choice = found.json["choices"][0]
    return Reply(found.status, content=choice["message"]["content"] or "", finish_reason=choice["finish_reason"])


def difference(theirs: Reply, ours: Reply) -> str:
    """Return the differences that a client sees."""
    if theirs.status != ours.status:
        return f"status {theirs.status} and {ours.status}"
    return "" if theirs.message == ours.message else "the words of an error"


def invalid_content(case: Case, reply: Reply) -> str:
    """Return the problems with the content of our reply."""
    kind, value = next(iter(case.items()))
    if reply.status != 200 or reply.finish_reason != "stop":
        return ""
    if kind == "choice" and reply.content not in value:
        return "our content is none of the choices"
    if kind == "regex":
        return "" if _matches(value, reply.content) else "our content does not match"
    return _invalid_json(value, reply.content) if kind == "json" else ""


def _matches(pattern: str, text: str) -> bool:
    """Whether the text matches as a whole; patterns that Python reads in another way than xgrammar are not judged.

    The space without a break is one of the spaces of xgrammar.
    """
    if re.search(r".\^|\$.|\\x", pattern):
        return True
    try:
        return (
            re.fullmatch(pattern.replace("(?<n>", "(?:").strip("^$"), text.replace("\xa0", " "), re.ASCII | re.DOTALL)
            is not None
        )
    except re.error:
        return True


def _invalid_json(schema: dict[str, Any], text: str) -> str:
    """Return the problems of JSON under a schema. A schema that no JSON meets is ignored in part by vLLM's backends."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    if not text or '"type": []' in json.dumps(schema):  # no JSON has a type of none, but xgrammar lets any have it
        return ""
    try:
        value = json.loads(text)
    except ValueError:
        return "our content is no JSON"
    try:
        errors = list(Draft202012Validator(schema, registry=Registry()).iter_errors(value))
    except Exception:  # noqa: BLE001  (a schema that the validator does not understand, but vLLM's backends do)
        return ""
    return f"our content is invalid: {errors[0].message}" if errors else ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="structured", description="Our structured outputs against vLLM's own.")
    parser.add_argument("--genuine", required=True, help="URL of the genuine server")
    parser.add_argument("--ours", required=True, help="URL of our server")
    parser.add_argument("--seeds", type=_seeds, default=range(500), help="FIRST:END")
    return parser.parse_args()


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


if __name__ == "__main__":
    run_command(main)
