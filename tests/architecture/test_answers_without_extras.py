"""Extras change no figure: with their libraries hidden, outputs stay the same."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.test_extras import extras

HIDDEN = frozenset(
    {
        *("brotli", "cbor2", "grpc", "grpc_health", "grpc_reflection", "h11", "jinja2", "matplotlib", "msgspec"),
        *("opentelemetry", "pandas", "pyarrow", "ray", "sklearn", "smg_grpc_proto", "starlette", "tokenizers"),
        *("uvicorn", "xgrammar", "xxhash", "zmq", "zstandard"),
    }
)
"""Modules of all libraries that extras of a feature install."""
BESIDE = {"scikit-learn": "sklearn", "pyzmq": "zmq"}
PROGRAM = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
hidden = set(sys.argv[1].split(",")) - {""}
sys.meta_path.insert(0, Missing())
from blis_sim.cli.main import run
sys.exit(run(sys.argv[2:]))
"""
LOAD = ("--rate", "8", "--prompt-tokens", "500", "--output-tokens", "50", "--num-requests", "60")
COMMANDS = (
    ("run", "--model", "qwen3-14b", *LOAD, "--json"),
    ("plan", "--model", "llama-3.1-8b-instruct", *LOAD, "--ttft-p99", "400ms", "--gpus", "H100", "--tp-sizes", "1",
     "--shapes", "aggregated", "--step-tokens", "0", "--processes", "1"),
    ("sweep", "run", "--model", "deepseek-v3", "--hardware", "H200", *LOAD, "--vary", "tp=8,16", "--processes", "1"),
)  # fmt: skip


def printed(hidden: frozenset[str], command: tuple[str, ...], folder: Path) -> str:
    arguments = [sys.executable, "-c", PROGRAM, ",".join(sorted(hidden)), *command]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=folder).stdout


def test_every_library_of_an_extra_with_a_feature_is_hidden() -> None:
    of_features = extras().keys() - {"clients", "deploy", "docs", "pytest", "test"}
    names = {re.split(r"[<>=]", each)[0] for extra in of_features for each in extras()[extra]}
    modules = {BESIDE.get(name, name.replace("-", "_")) for name in names}
    assert [module for module in sorted(modules) if not module.startswith(tuple(HIDDEN))] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_outputs_do_not_depend_on_what_else_is_installed(command: tuple[str, ...], tmp_path: Path) -> None:
    alone = printed(HIDDEN, command, tmp_path)
    assert alone
    assert alone == printed(frozenset(), command, tmp_path)
