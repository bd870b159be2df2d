"""The lines of `PREFIX.link.jsonl`: what a tap writes, and `blis tap-check` reads."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from blis_sim.options import OptionError


class EngineLine(msgspec.Struct, tag="engine", tag_field="event", rename={"rank": "engine"}):
    """The limits of an engine, as its first message has them."""

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


class RequestLine(msgspec.Struct, tag="request", tag_field="event", rename={"rank": "engine"}):
    """A request, when it passed the tap. Its media are offsets and lengths."""

    rank: int
    request: int
    at_us: int
    prompt_tokens: int
    max_tokens: int | None = None
    priority: int = 0
    adapter: str = ""
    media: list[tuple[int, int]] = []


class AbortLine(msgspec.Struct, tag="abort", tag_field="event", rename={"rank": "engine"}):
    """Requests that the frontend ended."""

    rank: int
    at_us: int
    requests: list[int]


class BlocksLine(msgspec.Struct, tag="blocks", tag_field="event"):
    """Digests of the full blocks of a request that has ended."""

    request: int
    blocks: list[Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$")]]


class StepLine(msgspec.Struct, tag="step", tag_field="event", rename={"rank": "engine"}):
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
    """The lines of one engine."""

    limits: EngineLine | None = None
    requests: dict[int, RequestLine] = field(default_factory=dict)
    aborts: list[AbortLine] = field(default_factory=list)
    blocks: dict[int, list[str]] = field(default_factory=dict)
    steps: list[StepLine] = field(default_factory=list)


def read_recordings(path: Path) -> dict[int, LinkRecording]:
    """Return what a tap recorded, by rank. Raises OptionError, with the line, for a file that is none."""
    found: defaultdict[int, LinkRecording] = defaultdict(LinkRecording)
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
        elif isinstance(line, EngineLine):
            found[line.rank].limits = line
        elif isinstance(line, RequestLine):
            found[line.rank].requests[line.request] = line
        elif isinstance(line, AbortLine):
            found[line.rank].aborts.append(line)
        else:
            found[line.rank].steps.append(line)
    for each in found.values():
        each.blocks = {number: blocks[number] for number in each.requests if number in blocks}
    return dict(sorted(found.items()))
