"""The two kinds of instances of the prefill-decode example do together what a router would have them do."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import fork_server
from tests.docker.files import container_of, objects
from tests.patience import PATIENCE_S

PROMPT_TOKENS = 96
POD_IP = "10.0.0.7"


@contextmanager
def instance(name: str) -> Iterator[str]:
    """The address of a server as the manifest starts it, on a free port."""
    (deployment,) = (each for each in objects("Deployment") if each["metadata"]["name"] == name)
    container = container_of(deployment)
    command = [sys.executable, "-m", "blis_sim.cli", "serve", *container["args"], "--host", "127.0.0.1", "--port", "0"]
    environment = {**os.environ, **{each["name"]: POD_IP for each in container["env"]}}
    with fork_server.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"http://[\d.]+:\d+", line)
            assert found, line
            yield found[0]
        finally:
            process.kill()


def complete(url: str, **fields: Any) -> Any:
    body = json.dumps({"prompt": list(range(100, 100 + PROMPT_TOKENS)), **fields}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return json.load(reply)


def prompt_tokens_from_elsewhere(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as reply:
        page = reply.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "vllm:prompt_tokens_by_source_total" and sample.labels["source"] == "external_kv_transfer"
    )


@pytest.mark.slow
def test_decode_finds_the_prompt_that_prefill_has_computed() -> None:
    with instance("blis-prefill") as prefill, instance("blis-decode") as decode:
        first = complete(prefill, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
        handover = first["kv_transfer_params"]
        assert handover["remote_host"] == POD_IP
        second = complete(decode, max_tokens=8, ignore_eos=True, kv_transfer_params=handover)
        assert second["usage"]["completion_tokens"] == 8
        assert prompt_tokens_from_elsewhere(decode) >= PROMPT_TOKENS - 1
        assert prompt_tokens_from_elsewhere(prefill) == 0
