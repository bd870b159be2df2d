"""Compares KV events, adapters and their gauge of two genuine frontends: before vLLM's engine, and before ours.

    python -m workshop.vllm_oracle.engine_events --url http://127.0.0.1:18800 --events 18890 --write vllm.json
    python -m workshop.vllm_oracle.engine_events --url http://127.0.0.1:18850 --events 18891 --compare vllm.json

Both servers need VLLM_SERVER_DEV_MODE=1, VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, PYTHONHASHSEED=0, `--enable-lora
--max-loras 2 --no-async-scheduling --num-gpu-blocks-override 60 --max-model-len 512` and `--kv-events-config` with a
port of ZeroMQ for `--events`. Requests that belong together come while the scheduler is paused, so their order is one.
What is compared: each reply, the events in it with their hashes and batches, and all values that the gauge has had.
Exit code 1 if anything differs.
"""

import argparse
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import zmq

from workshop.ending import check_reachable, run_command
from workshop.vllm_oracle.wire_search.exchange import Server

SETTLE_S, GAP_S = 0.4, 0.15
TOKEN = 2023
"""The token that both engines say."""
PROMPT = list(range(2000, 2050))
GAUGE = re.compile(r'lora_requests_info\{max_lora="(.*?)".*running.*?="(.*?)".*waiting.*?="(.*?)"')
Step: TypeAlias = tuple[str, Callable[[Server], Any]]


def main() -> int:
    """Ask, and write or compare what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--events", type=int, required=True, help="port of the engine's KV events")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="what --write has written of another server")
    given = parser.parse_args()
    check_reachable(given.url)
    found = _told(Server.at(given.url), given.events)
    if given.write is not None:
        given.write.write_text(json.dumps(found, indent=0))
    if given.compare is None:
        return 0
    other = json.loads(given.compare.read_text())
    unequal = [name for name in other if other[name] != json.loads(json.dumps(found.get(name)))]
    for name in unequal:
        sys.stdout.write(f"{name}\n  there {str(other[name])[:700]}\n  here  {str(found.get(name))[:700]}\n")
    num_events = sum(len(batch) for each in found.values() for batch in each["batches"])
    sys.stdout.write(f"{len(other)} steps with {num_events} events, {len(unequal)} different\n")
    return int(bool(unequal))


def _told(server: Server, port: int) -> dict[str, dict[str, Any]]:
    """Return the reply and the batches of events of each step."""
    batches: list[Any] = []

    def listen() -> None:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.subscribe(b"")
        while True:
            batches.append(msgspec.msgpack.decode(socket.recv_multipart()[2])[1])

    threading.Thread(target=listen, daemon=True).start()
    time.sleep(1.0)
    found = {}
    for number, (name, step) in enumerate(_steps()):
        first = len(batches)
        reply = step(server)
        time.sleep(SETTLE_S)
        found[f"{number} {name}"] = {"reply": reply, "batches": batches[first:]}
    return found


def _steps() -> Iterator[Step]:
    yield "reset", _post("/reset_prefix_cache")
    for name, ids, count, fields in (
        ("prompt", PROMPT, 4, {}),
        ("again", PROMPT, 4, {}),
        ("other end", [*PROMPT[:32], *range(3000, 3040)], 20, {}),
        ("salt", PROMPT, 4, {"cache_salt": "s1"}),
        ("other salt", PROMPT, 4, {"cache_salt": "s2"}),
        ("whole blocks", list(range(4000, 4032)), 17, {}),
        ("whole blocks again", list(range(4000, 4032)), 1, {}),
    ):
        yield name, _completion(ids, count, **fields)
    for adapter in ("ad1", "ad1", "ad2", "ad3"):
        yield f"load {adapter}", _post("/v1/load_lora_adapter", lora_name=adapter, lora_path=f"./{adapter}")
    for model in ("ad1", "ad1", "ad2", "m"):
        yield f"prompt of {model}", _completion(PROMPT, 4, model=model)
    yield "salt of ad2", _completion(PROMPT, 4, model="ad2", cache_salt="s1")
    yield "in place", _post("/v1/load_lora_adapter", lora_name="ad1", lora_path="./ad1", load_inplace=True)
    yield "after in place", _completion(PROMPT, 4, model="ad1")
    together = [
        _completion(list(range(6000 + 100 * place, 6032 + 100 * place)), 80, model=model)
        for place, model in enumerate(("ad1", "ad2", "ad3", "ad3", "m"))
    ]
    yield "gauge", _gauged(_held(together))
    yield "unload ad1", _post("/v1/unload_lora_adapter", lora_name="ad1")
    yield "unload nothing", _post("/v1/unload_lora_adapter", lora_name="none")
    yield "ad1 is gone", _completion(PROMPT, 4, model="ad1")
    yield "reset again", _post("/reset_prefix_cache")
    yield "after the reset", _completion(PROMPT, 4)
    for place in range(5):
        yield f"evict {place}", _completion(list(range(7000 + 300 * place, 7260 + 300 * place)), 30)
    yield "was evicted", _completion(PROMPT, 4)
    yield "preempt", _held([_completion(list(range(at, at + 200)), 120) for at in range(10_000, 11_800, 300)])


def _post(path: str, **members: Any) -> Callable[[Server], Any]:
    def ask(server: Server) -> Any:
        reply = server.ask(path, members)
        return reply.status, reply.text

    return ask


def _completion(ids: Sequence[int], count: int, **fields: Any) -> Callable[[Server], Any]:
    fixed = {"temperature": 0, "ignore_eos": True, "allowed_token_ids": [TOKEN], "vllm_xargs": {"fx_tokens": [TOKEN]}}
    body = {"model": "m", "prompt": list(ids), "max_tokens": count, "return_token_ids": True, **fixed, **fields}

    def ask(server: Server) -> Any:
        reply = server.ask("/v1/completions", body)
        said = reply.json
        return reply.status, said.get("usage") or said, [each.get("token_ids") for each in said.get("choices", ())]

    return ask


def _held(steps: Sequence[Callable[[Server], Any]]) -> Callable[[Server], Any]:
    """Send requests one after the other while the scheduler is paused, so that one order of them is computed."""

    def ask(server: Server) -> Any:
        with ThreadPoolExecutor(len(steps)) as pool:
            server.ask("/pause?mode=keep&clear_cache=false", {})
            replies = []
            for each in steps:
                replies.append(pool.submit(each, server))
                time.sleep(GAP_S)
            server.ask("/resume", {})
            return [each.result() for each in replies]

    return ask


def _gauged(step: Callable[[Server], Any]) -> Callable[[Server], Any]:
    """Return, beside the reply, all values that the gauge of adapters has had: the page keeps a sample of each."""

    def ask(server: Server) -> Any:
        reply = step(server)
        page = server.ask("/metrics", None, method="GET").text
        return reply, sorted(each.groups() for line in page.splitlines() if (each := GAUGE.search(line)))

    return ask


if __name__ == "__main__":
    run_command(main)
