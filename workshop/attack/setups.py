"""The servers that are attacked: how each is started, and which routes it has."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from workshop.attack import costly, valid_bodies
from workshop.attack.valid_bodies import ValidRequest

START_TIMEOUT_S = 120.0
STEP_US = 10_000
MAX_MODEL_LEN = 40_960
COMMON = (
    "--served-model-name", "m", "--host", "127.0.0.1", "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "1024",
    "--latency-model", "blackbox", "--alpha-coeffs", "0,0,0", "--beta-coeffs", f"{STEP_US},0,0",
    "--total-kv-blocks", "200000",
)  # fmt: skip
GENERATING = valid_bodies.EVERYWHERE + valid_bodies.GENERATING
POOLING = valid_bodies.EVERYWHERE + valid_bodies.POOLING


GATED_DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "draft_cost": 0.1, "gates": {}}
ENGINES: Mapping[str, tuple[str, ...]] = {
    "adaptive": (),
    "sarathi": ("--max-num-seqs", "256"),
    "orca": (),
    "vidur-vllm": (),
    "lightllm": (),
    "faster-transformer": (),
}
"""Engines beside vLLM's, with the flags that each needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One way to start the server."""

    name: str
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    routes: tuple[ValidRequest, ...] = GENERATING
    heavy_needs: frozenset[str] = frozenset({costly.GENERATION})
    takes_uploads: bool = False
    api_key: str | None = None
    shares_steps: bool = True
    """Whether every running request is in every step; where prompts or urgent requests go first, streams wait."""

    @property
    def generates(self) -> bool:
        """Whether there is a stream to watch."""
        return costly.GENERATION in self.heavy_needs


def _pooling(name: str, convert: str, routes: tuple[ValidRequest, ...], *flags: str, scores: bool = True) -> Setup:
    needs = frozenset({costly.POOLING, costly.SCORING} if scores else {costly.POOLING})
    return Setup(
        name=name,
        flags=("--runner", "pooling", "--convert", convert, *flags),
        routes=POOLING + routes,
        heavy_needs=needs,
    )


SETUPS = (
    Setup(name="plain"),
    Setup(
        name="parsers",
        flags=("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "deepseek_r1"),
    ),
    _pooling("embed", "embed", valid_bodies.EMBEDDING + valid_bodies.SCORING),
    _pooling("classify", "classify", valid_bodies.CLASSIFYING, scores=False),
    _pooling(
        "score", "classify", valid_bodies.CLASSIFYING + valid_bodies.SCORING, "--hf-overrides", '{"num_labels": 1}'
    ),
    Setup(
        name="scale-out",
        flags=("--enable-scale-out",),
        routes=GENERATING + valid_bodies.SCALING_OUT,
        heavy_needs=frozenset({costly.GENERATION, costly.SCALE_OUT}),
    ),
    Setup(
        name="dev",
        flags=("--enable-fault-control",),
        environment={"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_RESPONSES_API_STORE": "1"},
        routes=GENERATING + valid_bodies.DEVELOPING + valid_bodies.FAULTY,
    ),
    Setup(
        name="lora",
        flags=("--enable-lora", "--lora-modules", "ad0=./ad0"),
        environment={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"},
        routes=GENERATING + valid_bodies.ADAPTING * 2,
    ),
    Setup(name="key", flags=("--api-key", "k1"), api_key="k1"),
    Setup(
        name="instances",
        flags=("--num-instances", "3", "--enable-instance-control"),
        routes=GENERATING + valid_bodies.CONTROLLING,
    ),
    Setup(
        name="urgency",
        flags=(
            *("--num-instances", "2", "--enable-instance-control", "--enable-fault-control"),
            *("--priority-policy", "slo-urgency", "--preemption-policy", "gap", "--slo-deadlines"),
            *("critical=500,batch=5000", "--routing-policy", "weighted", "--routing-scorers", "cache-utilisation:1"),
            *("--speculative-config", json.dumps(GATED_DRAFTS)),
        ),
        routes=GENERATING + valid_bodies.CONTROLLING + valid_bodies.FAULTY + valid_bodies.URGENT * 3,
    ),
    *(
        Setup(
            name=engine,
            flags=("--engine", engine, *flags),
            routes=GENERATING + valid_bodies.URGENT,
            shares_steps=False,
        )
        for engine, flags in ENGINES.items()
    ),
    Setup(name="processes", flags=("--api-processes", "2")),
    Setup(name="audio", flags=("--task", "transcription,generate"), takes_uploads=True),
)


@dataclass(frozen=True, slots=True)
class Running:
    """A server that listens; `pid` and `errors` are unknown of one that was running before."""

    host: str
    port: int
    pid: int | None = None
    errors: Path | None = None

    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        if self.pid is None:
            return True
        with suppress(OSError, IndexError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False


@contextmanager
def running(setup: Setup) -> Iterator[Running]:
    """The server of a set-up on a free port, with its standard error in a file; killed at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    blis = str(Path(sys.executable).with_name("blis"))
    command = [blis, "serve", "qwen/qwen3-14b", *COMMON, "--port", str(port), *setup.flags]
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "stderr.txt"
        with errors.open("wb") as file:
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=file, env={**os.environ, **setup.environment},
                start_new_session=True, cwd=folder,
            )  # fmt: skip
        try:
            _wait_for(process, port, errors)
            yield Running("127.0.0.1", port, process.pid, errors)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(process: "subprocess.Popen[bytes]", port: int, errors: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise SystemExit(f"the server ended at once: {errors.read_text(errors='replace')[-2000:]}")
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return
        time.sleep(0.1)
    raise SystemExit(f"the server did not answer within {START_TIMEOUT_S:g} s")
