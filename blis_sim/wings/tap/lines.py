"""The lines of `PREFIX.link.jsonl`: what a tap writes, and `blis tap-check` reads."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from blis_sim.options import OptionError


class _Line(msgspec.Struct, tag_field="event", rename={"rank": "engine"}):
    """Fields that all lines have."""


class EngineLine(_Line, tag="engine"):
    """The limits of an engine that has started, as its first message has them."""

    rank: int
    max_model_len: int
    num_gpu_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    vllm_version: str = ""
    at_us: int = 0


class RequestLine(_Line, tag="request"):
    """A request, when it passed the tap. Its media are offsets and lengths."""

    rank: int
    request: int
    at_us: int
    prompt_tokens: int
    max_tokens: int | None = None
    priority: int = 0
    adapter: str = ""
    media: list[tuple[int, int]] = []


class AbortLine(_Line, tag="abort"):
    """Requests that the frontend ended."""

    rank: int
    at_us: int
    requests: list[int]


class BlocksLine(_Line, tag="blocks"):
    """Digests of the full blocks of a request that has ended."""

    request: int
    blocks: list[Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$")]]


class StepLine(_Line, tag="step"):
    """A step of the engine: by request its new tokens, the cached ones of its prompt, and why it finished."""

    rank: int
    step: int
    at_us: int
    ended_s: float
    """On the clock of the engine, as the times in `queued_s`."""
    tokens: dict[int, int]
    queued_s: dict[int, float]
    finished: dict[int, str]
    batch: tuple[int, int, int, int, int] | None = None
    """Prompts and their tokens, all other sequences and their tokens, and microseconds."""
    cached: dict[int, int] = {}
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None


Line = EngineLine | RequestLine | AbortLine | BlocksLine | StepLine


@dataclass(slots=True)
class LinkRecording:
    """The lines of one engine from its start to its end."""

    rank: int
    limits: EngineLine | None = None
    requests: dict[int, RequestLine] = field(default_factory=dict)
    aborts: list[AbortLine] = field(default_factory=list)
    blocks: dict[int, list[str]] = field(default_factory=dict)
    steps: list[StepLine] = field(default_factory=list)

    def add(self, line: EngineLine | RequestLine | AbortLine | StepLine) -> None:
        """Add a line about it."""
        match line:
            case EngineLine():
                self.limits = line
            case RequestLine():
                self.requests[line.request] = line
            case AbortLine():
                self.aborts.append(line)
            case StepLine():
                self.steps.append(line)


def read_recordings(path: Path) -> list[LinkRecording]:
    """Return what a tap recorded of each engine, in the order of their starts, whose ranks may be the same.

    Raises OptionError, with the line, for a file that is no recording.
    """
    found: list[LinkRecording] = []
    latest: dict[int, LinkRecording] = {}
    blocks: dict[int, list[str]] = {}
    decoder = msgspec.json.Decoder(Line)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from None
    for number, text in enumerate(lines, 1):
        try:
            line = decoder.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            if number == len(lines):
                break  # the tap was killed while it wrote
            raise OptionError(f"{path} line {number}: {error}") from None
        if isinstance(line, BlocksLine):
            blocks[line.request] = line.blocks
            continue
        if isinstance(line, EngineLine) or line.rank not in latest:
            latest[line.rank] = LinkRecording(line.rank)
            found.append(latest[line.rank])
        latest[line.rank].add(line)
    for each in found:
        each.blocks = {number: blocks[number] for number in each.requests if number in blocks}
    return found
