"""Searches for differences between a genuine vLLM server and ours, parser by parser.

    python -m workshop.vllm_oracle.wire_search --genuine URL --model FOLDER
        [--tool-parsers a,b] [--reasoning-parsers c,d] [--pairs a+c,b+d] [--no-plain] [--seed N]
        [--flags='--structured-outputs-config.backend guidance']

The model of the genuine server must take its words from `vllm_xargs` (`fx_tokens`, `fx_eos_at`), and its parsers must
follow a header: see `switch.py`. FOLDER is the model folder of both, made by `folder.py`. Ours is started for each pair
of parsers, or found at `--ours` when only one pair is searched. Each question is asked of ours first; then the model of
the genuine server writes the same in the markup that its parser reads, and the shapes of both replies are compared.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

from tokenizers import Tokenizer

from blis_sim.testing import serving
from mockserve.options.parsers import REASONING_PARSERS
from workshop.ending import check_reachable, run_command
from workshop.vllm_oracle.wire_search.exchange import Reply, Server, differences
from workshop.vllm_oracle.wire_search.fields import field_questions
from workshop.vllm_oracle.wire_search.markup import CALLS, PAIRED, WITHOUT_MARKUP
from workshop.vllm_oracle.wire_search.questions import CHAT, SearchRequest, questions
from workshop.vllm_oracle.wire_search.said import AnswerParts, Parsers, read_chat

SHOWN_PER_QUESTION = 3
MOST_TRIES = 3
"""A loaded machine joins events of a stream, so what differs is asked again."""
MAX_MODEL_LEN = 2048
UNKNOWN_STATUS = 599
"""Shape for a genuine server that cannot have a parser."""
WORDS = " the of and"


def main() -> int:
    """Exit code 1 if there is a difference."""
    arguments = _arguments()
    check_reachable(arguments.genuine)
    tokenizer = Tokenizer.from_file(str(Path(arguments.model) / "tokenizer.json"))
    genuine = Server.at(arguments.genuine)
    seen: Counter[str] = Counter()
    for parsers in _pairs(arguments):
        if arguments.ours is None:
            with our_server(arguments.model, parsers, flags=arguments.flags.split()) as ours:
                _search(parsers, genuine, ours, tokenizer, seen, arguments.seed)
        else:
            _search(parsers, genuine, Server.at(arguments.ours), tokenizer, seen, arguments.seed)
    print(f"{seen['questions']} requests, {seen['different']} with differences, {seen['skipped']} skipped")
    return 1 if seen["different"] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="wire_search", description="A genuine vLLM server against ours.")
    parser.add_argument("--genuine", required=True, help="URL of the genuine server")
    parser.add_argument("--ours", help="URL of our server, for one pair of parsers")
    parser.add_argument("--model", required=True, help="model folder of both servers")
    parser.add_argument(
        "--tool-parsers", default=",".join(sorted(CALLS.keys() - PAIRED)), help="parsers of function calls to search"
    )
    readable = ",".join(readable_reasoning_parsers())
    parser.add_argument("--reasoning-parsers", default=readable, help="parsers of reasoning to search")
    parser.add_argument(
        "--plain", action=argparse.BooleanOptionalAction, default=True, help="search without parsers, too"
    )
    parser.add_argument("--pairs", default="", help="parsers of both kinds to search together: calls+reasoning,...")
    parser.add_argument("--seed", type=int, default=0, help="added to the seeds of the requests")
    parser.add_argument("--flags", default="", help="further flags of our server, which the genuine one was given, too")
    return parser.parse_args()


def readable_reasoning_parsers() -> list[str]:
    """Return the reasoning parsers whose marks the search can write."""
    return [each for each in REASONING_PARSERS if each not in WITHOUT_MARKUP]


def _pairs(arguments: argparse.Namespace) -> Iterator[Parsers]:
    if arguments.plain:
        yield Parsers()
    yield from (Parsers(tool=each) for each in arguments.tool_parsers.split(",") if each)
    yield from (Parsers(reasoning=each) for each in arguments.reasoning_parsers.split(",") if each)
    yield from (Parsers(*each.split("+")) for each in arguments.pairs.split(",") if each)


def _search(
    parsers: Parsers, genuine: Server, ours: Server, tokenizer: Tokenizer, seen: Counter[str], seed: int
) -> None:
    name = parsers.name or "plain"
    asked = questions(parsers, seed) if any(parsers) else field_questions()
    for question in asked:
        found = _found(question, parsers, genuine, ours, tokenizer)
        seen["questions"] += 1
        if found is None:
            seen["skipped"] += 1
            continue
        seen["different"] += bool(found)
        if found:
            print(f"{name} / {question.name} ({len(found)})", flush=True)
            for each in found[:SHOWN_PER_QUESTION]:
                print(f"    {each}", flush=True)


def _found(
    question: SearchRequest, parsers: Parsers, genuine: Server, ours: Server, tokenizer: Tokenizer
) -> list[str] | None:
    """Return the differences in every try; None where the genuine server cannot have the parsers."""
    found: list[str] = []
    for _ in range(MOST_TRIES):
        theirs = reply_of_genuine(question, parsers, genuine, ours, tokenizer)
        if theirs.status == UNKNOWN_STATUS:
            return None
        found = differences(theirs, ours.ask(question.path, question.body))
        if not found:
            break
    return found


def reply_of_genuine(
    question: SearchRequest, parsers: Parsers, genuine: Server, ours: Server, tokenizer: Tokenizer
) -> Reply:
    """Return the reply of the genuine server, whose model writes our server's answer."""
    words = _words(question, parsers, ours, tokenizer)
    asked_body = dict(question.body)
    if "sampling_params" in asked_body:
        asked_body["sampling_params"] = {**asked_body["sampling_params"], "extra_args": words}
    elif question.path.startswith("/v1/") and not question.path.endswith(("render", "count_tokens")):
        given = asked_body.get("vllm_xargs", {})
        asked_body["vllm_xargs"] = {**given, **words} if isinstance(given, dict) else given
    return genuine.ask(question.path, asked_body, parsers.headers)


def _words(question: SearchRequest, parsers: Parsers, ours: Server, tokenizer: Tokenizer) -> dict[str, object]:
    """Return the words of the model: the answer of ours in the markup of its parser, or words without an end."""
    if not any(parsers):
        return {"fx_tokens": tokenizer.encode(WORDS, add_special_tokens=False).ids}
    seen_by_all = {"stream": False, "stream_options": None, "include_reasoning": True}
    whole = ours.ask(CHAT, {**question.chat, **seen_by_all})
    said = read_chat(whole.json) if whole.status == HTTPStatus.OK else AnswerParts()
    ids = tokenizer.encode(said.written(parsers, question.choice, question.has_grammar), add_special_tokens=False).ids
    return {"fx_tokens": ids or [0], "fx_eos_at": len(ids), "fx_reasoner": parsers.reasoning}


@contextmanager
def our_server(
    model: str, parsers: Parsers, extra_call_probability: float = 0.5, flags: Sequence[str] = ()
) -> Iterator[Server]:
    """Our server with these parsers and flags, on a free port."""
    own = f"{model} --served-model-name m --host 127.0.0.1 --port 0 --hardware H100 --tp 1".split()
    own += f"--max-model-len {MAX_MODEL_LEN} --trust-request-chat-template --enable-scale-out".split()
    own += ["--default-output-tokens", "6", "--default-reasoning-tokens", "5"]
    own += ["--tool-call-extra-probability", str(extra_call_probability)]
    if parsers.tool:
        own += ["--enable-auto-tool-choice", "--tool-call-parser", parsers.tool]
    if parsers.reasoning:
        own += ["--reasoning-parser", parsers.reasoning]
    with serving(["-m", "blis_sim.cli", "serve", *own, *flags]) as running:
        yield Server.at(running.url)


if __name__ == "__main__":
    run_command(main)
