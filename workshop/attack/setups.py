"""The servers that are attacked: how each is started, and which routes it has."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 120.0
GENERATION, POOLING, SCORING, SCALE_OUT = "generation", "pooling", "scoring", "scale-out"
BLIS = (sys.executable, "-m", "blis_sim.cli")
STEPS = ("--latency-model", "blackbox", "--alpha-coeffs", "0,0,0", "--beta-coeffs", "10000,0,0")
COMMON = (
    *("serve", "qwen/qwen3-14b", "--served-model-name", "m", "--host", "127.0.0.1", "--port", "0", *STEPS),
    *("--max-model-len", "40960", "--max-num-seqs", "1024", "--total-kv-blocks", "200000"),
)
POOLING_FLAGS = ("--runner", "pooling", "--convert")
ADDRESS = re.compile(r"(?:serving|recording) .*?://([\d.]+):(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One way to start a server. `needs` names its routes, as costly requests do."""

    name: str
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: frozenset[str] = frozenset({GENERATION})
    takes_uploads: bool = False
    api_key: str | None = None
    has_even_streams: bool = True
    """Whether streams are even: an operator, or an engine whose prompts go first, may stop them by its rules."""

    @property
    def generates(self) -> bool:
        """Whether there is a stream to watch."""
        return GENERATION in self.needs

    @property
    def command(self) -> tuple[str, ...]:
        """The command line after `blis`."""
        return (*COMMON, *self.flags)


URGENCY = (
    *("--num-instances", "2", "--enable-instance-control", "--enable-fault-control", "--priority-policy"),
    *("slo-urgency", "--preemption-policy", "gap", "--slo-deadlines", "critical=500,batch=5000", "--routing-policy"),
    *("weighted", "--routing-scorers", "cache-utilisation:1", "--speculative-config"),
    json.dumps({"method": "ngram", "num_speculative_tokens": 4, "draft_cost": 0.1, "gates": {}}),
)
DEVELOPING = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_RESPONSES_API_STORE": "1"}
PARSERS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
ADAPTERS = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
SETUPS = (
    Setup(name="plain"),
    Setup(name="parsers", flags=(*PARSERS, "--reasoning-parser", "deepseek_r1")),
    Setup(name="embed", flags=(*POOLING_FLAGS, "embed"), needs=frozenset({POOLING, SCORING})),
    Setup(name="classify", flags=(*POOLING_FLAGS, "classify"), needs=frozenset({POOLING})),
    Setup(
        name="score",
        flags=(*POOLING_FLAGS, "classify", "--hf-overrides", '{"num_labels": 1}'),
        needs=frozenset({POOLING, SCORING}),
    ),
    Setup(name="scale-out", flags=("--enable-scale-out",), needs=frozenset({GENERATION, SCALE_OUT})),
    Setup(name="dev", flags=("--enable-fault-control",), environment=DEVELOPING, has_even_streams=False),
    Setup(name="lora", flags=("--enable-lora", "--lora-modules", "ad0=./ad0"), environment=ADAPTERS),
    Setup(name="key", flags=("--api-key", "k1"), api_key="k1"),
    Setup(name="instances", flags=("--num-instances", "3", "--enable-instance-control"), has_even_streams=False),
    Setup(name="urgency", flags=URGENCY, has_even_streams=False),
    *(
        Setup(name=engine, flags=("--engine", engine), has_even_streams=False)
        for engine in ("adaptive", "orca", "vidur-vllm", "lightllm", "faster-transformer")
    ),
    Setup(name="sarathi", flags=("--engine", "sarathi", "--max-num-seqs", "256"), has_even_streams=False),
    Setup(name="processes", flags=("--api-processes", "2")),
    Setup(name="playback", flags=("--enable-playback-control",), has_even_streams=False),
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

    def tracebacks(self) -> list[str]:
        """The last line of each traceback on standard error."""
        text = "" if self.errors is None else self.errors.read_text(errors="replace")
        blocks = re.split(r"(?=^Traceback )", text, flags=re.MULTILINE)[1:]
        return [next((line for line in each.splitlines()[1:] if line[:1].strip()), "")[:300] for each in blocks]


def running(setup: Setup, popen: Callable[..., Any] = subprocess.Popen) -> AbstractContextManager[Running]:
    """The server of a set-up on a free port; `popen` starts it."""
    return started([*BLIS, *setup.command], setup.environment, popen)


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str] | None = None, popen: Callable[..., Any] = subprocess.Popen
) -> Iterator[Running]:
    """The server of a command, with its standard error in a file; killed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "stderr.txt"
        with errors.open("wb") as file:
            process = popen(
                command, stdout=subprocess.DEVNULL, stderr=file, env={**os.environ, **(environment or {})},
                start_new_session=True, cwd=folder,
            )  # fmt: skip
        try:
            yield _listening(process, errors)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _listening(process: "subprocess.Popen[bytes]", errors: Path) -> Running:
    """The server once it has named its address."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        text = errors.read_text(errors="replace")
        if (found := ADDRESS.search(text)) is not None:
            return Running(found[1], int(found[2]), process.pid, errors)
        if process.poll() is not None:
            raise SystemExit(f"the server ended at once: {text[-2000:]}")
        time.sleep(0.05)
    raise SystemExit(f"the server did not listen within {START_TIMEOUT_S:g} s")
