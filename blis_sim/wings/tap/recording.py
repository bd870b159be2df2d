"""The files of a tap: the requests and steps of an engine, without any text or token."""

import hashlib
import logging
import os
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from blis_sim.options import OptionError
from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.messages import EngineOutput, EngineOutputs, EngineRequest
from blis_sim.wings.tap.forwarding import COMMAND, MORE, Piece, Splitter
from blis_sim.wings.tap.lines import AbortLine, BlocksLine, EngineLine, Line, RequestLine, StepLine
from traces.append_file import AppendFile
from traces.redaction import Redactor
from traces.steps import Step, StepWriter

_logger = logging.getLogger(__name__)

DIGEST_BYTES = 6
MOST_MESSAGE_BYTES = 1 << 25
"""Bytes of a message that is read; what follows a larger one on its stream is not recorded."""
STEPS_TO_LEAVE = 3
"""Steps without a token of a request that its frontend has ended, until it is forgotten: the engine knows later."""
SAME_STEP_S = 0.001
"""Most by which the times of a step's messages to several API servers differ."""
MOST_HELD = 100
"""Steps that are held for outputs to other API servers: what several steps sent to one may come at once."""
COUNTS = Step._fields[2:6]
SUMS = Step._fields[8:13]
FEW_ITEMS = 0x90
"""First byte of an array of up to 15 items, but for their number."""
UNREADABLE = (ValueError, OverflowError, TypeError, IndexError, RecursionError)
"""Errors of msgspec, or of figures out of all bounds."""


@dataclass(slots=True)
class _OpenRequest:
    number: int
    ids: list[int]
    """The prompt and the output so far."""
    salt: str = ""


@dataclass(slots=True, eq=False)
class _HeldStep:
    """A step of which more outputs may come, for other API servers."""

    line: StepLine
    streams: set[int] = field(default_factory=set)
    sums: Counter[str] = field(default_factory=Counter)
    scheduled_s: float = 0.0


@dataclass(slots=True)
class _Rank:
    """An engine since its start."""

    block_size: int = 16
    instance: object = None
    """Name that the engine gives itself at its start."""
    open: dict[str, _OpenRequest] = field(default_factory=dict)
    leaving: dict[str, int] = field(default_factory=dict)
    """Requests that the frontend has ended, with the number of steps without a token until they are forgotten."""
    num_steps: int = 0
    origin_us: int | None = None
    """The instant 0 of the engine's clock, by its first step. Later steps may have passed late."""
    last_s: float = 0.0
    """When the last step ended, on the engine's clock."""
    was_busy: bool = False
    held: list[_HeldStep] = field(default_factory=list)
    servers: set[int] = field(default_factory=set)
    """Open streams to API servers that the engine has reported to."""


class LinkRecorder:
    """Writes `PREFIX.link.jsonl`, a line for each request, abort and step, and `PREFIX.steps.csv` for `blis fit`.

    Prompts are written as digests of their blocks, made with a key that is in no file: equal beginnings show, no text
    does. Names of adapters go through the same rules as texts of the recording proxy.
    """

    def __init__(self, prefix: Path, redact: Sequence[str] = ()) -> None:
        """Raises OptionError for files that exist, and TraceError for those that cannot be made."""
        self._redactor = Redactor(tuple(redact))
        self._key = os.urandom(16)
        self._streams: dict[int, tuple[Splitter, list[bytes]] | None] = {}
        """By number: a stream, and the frames of its message that is not complete; None after one that is too large."""
        self._ranks: dict[int, _Rank] = {}
        self._num_requests = 0
        self.num_steps = 0
        self.num_unreadable = 0
        self.problem: OSError | None = None
        """The error that ended the recording, such as a full disk; messages pass on."""
        self._lines: list[Line] = []
        self._rows: list[Step] = []
        paths = Path(f"{prefix}.link.jsonl"), Path(f"{prefix}.steps.csv")
        for path in paths:
            if path.exists():
                raise OptionError(f"--output {path} exists already")
        self._link, self._table = AppendFile(paths[0]), StepWriter(paths[1])

    def close(self) -> None:
        """Write what is held, and close the files."""
        for rank in self._ranks.values():
            self._end(rank)
        self._write()
        self._link.close()
        self._table.close()

    def take(self, pieces: Sequence[Piece]) -> None:
        """Note what has passed. Messages that cannot be read are counted."""
        if self.problem is not None:
            return
        for piece in pieces:
            if not piece.data:
                self._streams.pop(piece.stream, None)
                self._ranks.setdefault(piece.rank, _Rank()).servers.discard(piece.stream)
                continue
            stream = self._streams.setdefault(piece.stream, (Splitter(MOST_MESSAGE_BYTES), []))
            if stream is None:
                continue
            splitter, frames = stream
            try:
                for _, flags, content in splitter.frames(piece.data):
                    if not flags & COMMAND:
                        frames.append(content)
                        if not flags & MORE:
                            self.read(piece, frames[:])
                            frames.clear()
                        elif sum(map(len, frames)) > MOST_MESSAGE_BYTES:
                            raise messages.MessageError("a message is too large")
            except messages.MessageError:
                self.num_unreadable += 1
                self._streams[piece.stream] = None
        self._write()

    def _write(self) -> None:
        """Write what was noted, in two pieces."""
        encode = msgspec.json.encode
        try:
            if self._lines:
                self._link.write_parts((b"".join(encode(line) + b"\n" for line in self._lines),))
            if self._rows:
                self._table.write(self._rows)
        except OSError as error:
            self.problem = error
            _logger.error("nothing more is recorded: %s", error.strerror)
        self._lines.clear()
        self._rows.clear()

    def read(self, piece: Piece, frames: Sequence[bytes]) -> None:
        """Note a message, whose last bytes came with `piece`."""
        rank = self._ranks.setdefault(piece.rank, _Rank())
        try:
            if piece.to_engine:
                self._to_engine(piece, rank, frames)
            elif frames[0] != messages.ENGINE_DEAD:
                self._from_engine(piece, rank, frames[0])
        except UNREADABLE:
            self.num_unreadable += 1

    def _to_engine(self, piece: Piece, rank: _Rank, frames: Sequence[bytes]) -> None:
        if frames[0] == messages.ADD:
            self._request(piece, rank, messages.read_request(frames[1]))
        elif frames[0] == messages.ABORT:
            aborted = [each for each in messages.read_aborted(frames[1]) if each in rank.open]
            if aborted:
                numbers = [rank.open[each].number for each in aborted]
                self._lines.append(AbortLine(piece.rank, _us(piece.at_s), numbers))
                rank.leaving |= dict.fromkeys(aborted, STEPS_TO_LEAVE)

    def _request(self, piece: Piece, rank: _Rank, request: EngineRequest) -> None:
        ids = request.prompt_token_ids or []
        lora, params = request.lora_request, request.sampling_params or {"max_tokens": None}
        self._num_requests += 1
        rank.open[request.request_id] = _OpenRequest(self._num_requests, ids, request.cache_salt or "")
        self._lines.append(
            RequestLine(
                piece.rank,
                self._num_requests,
                _us(piece.at_s),
                prompt_tokens=len(ids),
                max_tokens=params.get("max_tokens", messages.DEFAULT_MAX_TOKENS),
                priority=request.priority,
                adapter="" if lora is None else self._redactor.text(lora.lora_name),
                media=[(each.mm_position.offset, each.mm_position.length) for each in request.mm_features or ()],
            )
        )

    def _end(self, rank: _Rank) -> None:
        """Write what is held of an engine that has gone."""
        self._end_steps(rank, 0)
        for request in rank.open.values():
            self._ended(rank, request)

    def _ended(self, rank: _Rank, request: _OpenRequest) -> None:
        """Note what its KV blocks are known by, now that all of its tokens are known."""
        content, parent, digests = array("q", request.ids).tobytes(), request.salt.encode(), []
        size = 8 * rank.block_size
        for start in range(0, len(content) - size + 1, size):
            block = parent + content[start : start + size]
            parent = hashlib.blake2b(block, key=self._key, digest_size=DIGEST_BYTES).digest()
            digests.append(parent.hex())
        self._lines.append(BlocksLine(request.number, digests))

    def _from_engine(self, piece: Piece, rank: _Rank, content: bytes) -> None:
        if content[0] & 0xF0 == FEW_ITEMS:
            outputs = messages.read_outputs(content)
            if outputs.outputs or outputs.scheduler_stats is not None:
                self._step(piece, rank, outputs)
            return
        first = msgspec.msgpack.decode(content)  # a map: what the engine was started with
        line = msgspec.convert(first | {"event": "engine", "engine": piece.rank, "at_us": _us(piece.at_s)}, EngineLine)
        if not rank.servers or rank.instance != first.get("instance_id"):  # one that has started, perhaps again
            self._end(rank)
            instance, size = first.get("instance_id"), max(1, line.block_size)
            self._ranks[piece.rank] = rank = _Rank(size, instance, num_steps=rank.num_steps)
            self._lines.append(line)
        rank.servers.add(piece.stream)

    def _step(self, piece: Piece, rank: _Rank, outputs: EngineOutputs) -> None:
        """Note outputs of a step for an API server; those for others have the same time, and one has statistics."""
        stats = outputs.scheduler_stats
        if stats is not None and stats.iteration_details is not None and stats.iteration_details.is_dummy:
            return
        of_same_time = (each for each in rank.held if abs(outputs.timestamp - each.line.ended_s) <= SAME_STEP_S)
        held = next((each for each in of_same_time if piece.stream not in each.streams), None)
        if held is None:
            self._end_steps(rank, MOST_HELD if len(rank.servers) > 1 else 0)
            held = _HeldStep(StepLine(piece.rank, 0, _us(piece.at_s), outputs.timestamp, {}, {}, {}))
            rank.held.append(held)
        held.streams.add(piece.stream)
        if stats is not None:
            held.line.running = stats.num_running_reqs
            held.line.waiting = stats.num_waiting_reqs + stats.num_skipped_waiting_reqs
            held.line.kv_usage = round(stats.kv_cache_usage, 6)
            if (details := stats.iteration_details) is not None:
                prefills = details.num_ctx_requests, details.num_ctx_tokens
                decodes = details.num_generation_requests, details.num_generation_tokens
                held.line.batch = (*prefills, *decodes, round(details.elapsed_ms * 1000))
        try:
            for output in outputs.outputs:
                held.scheduled_s = max(held.scheduled_s, self._output(rank, output, held.line, held.sums))
        except UNREADABLE:
            rank.held.remove(held)
            raise

    def _end_steps(self, rank: _Rank, num_left: int) -> None:
        """Write the earliest steps but for so many."""
        rank.held.sort(key=lambda each: each.line.ended_s)
        while len(rank.held) > num_left:
            held = rank.held.pop(0)
            if held.line.tokens or held.line.batch or held.line.finished:
                self._end_step(rank, held)

    def _end_step(self, rank: _Rank, held: _HeldStep) -> None:
        line = held.line
        line.step = rank.num_steps
        rank.num_steps += 1
        self.num_steps += 1
        self._lines.append(line)
        row = _row(rank, line, held.sums, held.scheduled_s)
        if row is not None:
            self._rows.append(row)
        for each in list(rank.leaving):
            rank.leaving[each] -= 1
            if not rank.leaving[each]:
                del rank.leaving[each]
                if each in rank.open:
                    self._ended(rank, rank.open.pop(each))
        rank.last_s, rank.was_busy = line.ended_s, bool(line.running or line.waiting)

    def _output(self, rank: _Rank, output: EngineOutput, line: StepLine, sums: Counter[str]) -> float:
        """Add an output to a step and its sums. Returns when the request was scheduled, if this step was its first."""
        request = rank.open.get(output.request_id)
        if request is None:
            return 0.0
        number, ids, stats, scheduled_s = request.number, output.new_token_ids, output.prefill_stats, 0.0
        if output.request_id in rank.leaving:
            rank.leaving[output.request_id] = STEPS_TO_LEAVE
        if ids:
            line.tokens[number] = len(ids)
        for event in output.events or ():
            if event.type == messages.EventKind.QUEUED:
                line.queued_s[number] = event.timestamp
            elif event.type == messages.EventKind.SCHEDULED:
                scheduled_s = event.timestamp
        if stats is not None:  # of a prompt that was computed whole in this step, or in pieces
            computed, cached = stats.num_computed_tokens, stats.num_cached_tokens
            line.cached[number] = cached
            sums["prefill_requests"] += 1
            sums["prefill_tokens"] += computed
            sums["prefill_context_tokens"] += cached
            sums["prefill_tokens_squared"] += computed * computed
            sums["prefill_context_work"] += computed * cached
            sums["prefill_prompt_work"] += computed * stats.num_prompt_tokens
        elif ids:
            sums["decode_requests"] += 1
            sums["decode_tokens"] += 1
            sums["decode_context_tokens"] += len(request.ids) - 1
        request.ids += ids
        if output.finish_reason is not None:
            line.finished[number] = output.finish_reason.name.lower()
            self._ended(rank, rank.open.pop(output.request_id))
        return scheduled_s


def _row(rank: _Rank, line: StepLine, sums: Mapping[str, int], scheduled_s: float) -> Step | None:
    """Return a step as `blis fit` reads it; None for one whose beginning is unknown."""
    told = [sums[name] for name in COUNTS]
    if line.batch is not None:
        *counts, duration_us = line.batch
    else:
        began_s = max(scheduled_s, rank.last_s if rank.was_busy else 0.0)
        if not 0 < began_s < line.ended_s:
            return None
        counts, duration_us = told, round((line.ended_s - began_s) * 1e6)
    if rank.origin_us is None:
        rank.origin_us = line.at_us - _us(line.ended_s)
    row = Step(line.step, duration_us, *counts)._replace(
        engine=line.rank, started_us=rank.origin_us + _us(line.ended_s) - duration_us, kv_usage=line.kv_usage
    )
    return row._replace(**{name: sums[name] for name in SUMS}) if counts[:3] == told[:3] else row


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
