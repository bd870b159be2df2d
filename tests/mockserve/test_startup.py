import subprocess
import sys
from typing import Any

import pytest

from blis_sim.engine.deployment import resolve
from blis_sim.options import options_from
from mockserve.listening import startup_line
from mockserve.options.serve import ServeOptions

DEPLOYED = "H100, tp 1, 17,676 KV blocks"

FIRST_REQUESTS = """
import codecs, json, sys
from mockserve.protocol.responses import item_forms
from mockserve.routes.control import dashboard_page
from mockserve.listening import keep_what_exists

import mockserve.routes.responses  # its first request loads it on a thread

opened = []
keep_what_exists()
sys.addaudithook(lambda event, arguments: opened.append(arguments[0]) if event == "open" else None)
texts = ["{}".encode(name) for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")]
assert [json.loads(text) for text in (*texts, codecs.BOM_UTF8 + b"{}")] == [{}] * 7
item_forms()
dashboard_page()
print(opened)
"""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, f"serving qwen/qwen3-14b on there ({DEPLOYED}, fitted)"),
        ({"num_instances": 3}, f"serving qwen/qwen3-14b on there (3 instances, {DEPLOYED}, fitted)"),
        ({"served_model_name": ("a", "b")}, f"serving a on there ({DEPLOYED}, fitted)"),
        ({"latency_calculator": "constant"}, "serving qwen/qwen3-14b on there (17,676 KV blocks, set times)"),
    ],
)
def test_the_first_line_names_the_model_and_the_source_of_times(given: dict[str, Any], said: str) -> None:
    options = options_from(ServeOptions, model="qwen/qwen3-14b", **given)
    assert startup_line(options, resolve(options.deployment), "there") == said


def test_first_requests_read_no_files() -> None:
    run = subprocess.run([sys.executable, "-c", FIRST_REQUESTS], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
