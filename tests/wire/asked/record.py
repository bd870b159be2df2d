"""Sends all requests of a setup to a genuine vLLM server and stores its replies.

python -m tests.wire.asked.record SETUP URL; without arguments it prints how each server is to be started.
"""

import http.client
import json
import sys
from typing import Any
from urllib.parse import urlsplit

from tests.wire.asked.folders import byte_tokenizer
from tests.wire.asked.replies import BROKEN_OFF, Reply, write_replies
from tests.wire.asked.setups import Asked
from tests.wire.asked.table import SETUPS

TIMEOUT_S = 120


def main() -> int:
    """Record one setup."""
    if len(sys.argv) != 3:
        for setup in SETUPS:
            flags = " ".join(setup.flags("FOLDERS"))
            sys.stdout.write(f"{setup.name}: {dict(setup.environment)} serve FOLDERS/{setup.folder} {flags}\n")
        return 2
    (setup,) = (each for each in SETUPS if each.name == sys.argv[1])
    address = urlsplit(sys.argv[2])
    replies = [_ask(str(address.hostname), int(address.port or 80), each) for each in setup.cases()]
    write_replies(setup.name, replies)
    sys.stdout.write(f"{setup.name}: {len(replies)} replies\n")
    return 0


def _ask(host: str, port: int, asked: Asked) -> Reply:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    headers = {} if asked.body is None else {"content-type": "application/json"}
    data = None if asked.body is None else json.dumps(_with_words(asked))
    connection.request(asked.method, asked.path, data, {**headers, **asked.headers})
    reply = connection.getresponse()
    try:
        text = reply.read()
    except http.client.IncompleteRead as cut:
        text = cut.partial + BROKEN_OFF
    return Reply(asked.name, reply.status, reply.getheader("content-type") or "", text.decode())


def _with_words(asked: Asked) -> dict[str, Any]:
    """Return the body with the output for the model, where its route passes that on."""
    body = dict(asked.body or {})
    words = {"fx_tokens": byte_tokenizer().encode(asked.said).ids}
    if "sampling_params" in body:
        body["sampling_params"] = {**body["sampling_params"], "extra_args": words}
    elif asked.path.startswith("/v1/") and "render" not in asked.path and "count" not in asked.path:
        body["vllm_xargs"] = words
    return body


if __name__ == "__main__":
    sys.exit(main())
