"""The files of a tap: the requests and steps of an engine, without any text or token."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from blis_sim.options import OptionError
from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.messages import EngineOutput, EngineOutputs, EngineRequest
from blis_sim.wings.engine_core.tap import Seen
from traces.append_file import AppendFile
from traces.redaction import Redactor

_logger = logging.getLogger(__name__)

STEP_COLUMNS = (
    *("step", "engine", "started_us", "duration_us", "prefill_requests", "prefill_tokens", "decode_requests"),
    *("decode_tokens", "prefill_context_tokens", "decode_context_tokens", "prefill_tokens_squared"),
    *("prefill_context_work", "prefill_prompt_work", "kv_usage", "num_running", "num_waiting"),
)
DIGEST_BYTES = 6
STEPS_TO_LEAVE = 3
"""Steps without a token of a request that its frontend has ended, until it is forgotten: the engine knows later."""
_READY = msgspec.msgpack.Decoder(messages.ReadyResponse)


@dataclass(slots=True)
class _OpenRequest:
    number: int
    num_prompt: int
    ids: list[int]
    """The prompt and the output so far."""
    salt: str = ""

    @property
    def num_tokens(self) -> int:
        """Output tokens so far."""
        return len(self.ids) - self.num_prompt


@dataclass(slots=True)
class _Rank:
    block_size: int = 16
    open: dict[str, _OpenRequest] = field(default_factory=dict)
    leaving: dict[str, int] = field(default_factory=dict)
    """Requests that the frontend has ended, with the number of steps without a token until they are forgotten."""
    num_steps: int = 0
    last_at_s: float | None = None
    """When the last step ended, on the engine's clock."""
    was_busy: bool = False


class LinkRecorder:
    """Writes `PREFIX.link.jsonl`, a line for each request, abort and step, and `PREFIX.steps.csv` for `blis fit`.

    Prompts are written as digests of their blocks, made with a key that is in no file: equal beginnings show, no text
    does. Names of adapters go through the same rules as texts of the recording proxy.
    """

    def __init__(self, prefix: Path, redact: Sequence[str] = ()) -> None:
        """Raises OptionError for files that exist, and TraceError for those that cannot be made."""
        self._redactor = Redactor(tuple(redact))
        self._key = os.urandom(16)
        self._ranks: dict[int, _Rank] = {}
        self._num_requests = 0
        self.num_steps = 0
        self.num_unreadable = 0
        self.problem: OSError | None = None
        """The error that ended the recording, such as a full disk; messages pass on."""
        self._link = _new_file(Path(f"{prefix}.link.jsonl"))
        self._table = _new_file(Path(f"{prefix}.steps.csv"))
        self._table.write(",".join(STEP_COLUMNS) + "\n")

    def close(self) -> None:
        """Close the files."""
        self._link.close()
        self._table.close()

    def read(self, seen: Seen) -> None:
        """Note a message that has passed. One that cannot be read is counted."""
        if self.problem is not None:
            return
        try:
            if seen.to_engine:
                self._to_engine(seen)
            elif seen.frames[0] != messages.ENGINE_DEAD:
                self._from_engine(seen, seen.frames[0])
        except (ValueError, OverflowError, TypeError, IndexError):  # of msgspec, or of figures out of all bounds
            self.num_unreadable += 1
        except OSError as error:
            self.problem = error
            _logger.error("nothing more is recorded: %s", error.strerror)

    def _to_engine(self, seen: Seen) -> None:
        frames = seen.frames
        rank = self._ranks.setdefault(seen.rank, _Rank())
        if frames[0] == messages.ADD:
            self._request(seen, rank, messages.read_request(frames[1]))
        elif frames[0] == messages.ABORT:
            aborted = [each for each in messages.read_aborted(frames[1]) if each in rank.open]
            if aborted:
                numbers = [rank.open[each].number for each in aborted]
                self._write(event="abort", engine=seen.rank, at_us=_us(seen.at_s), requests=numbers)
                rank.leaving |= dict.fromkeys(aborted, STEPS_TO_LEAVE)

    def _request(self, seen: Seen, rank: _Rank, request: EngineRequest) -> None:
        ids = request.prompt_token_ids or []
        params, lora = request.sampling_params, request.lora_request
        self._num_requests += 1
        rank.open[request.request_id] = _OpenRequest(self._num_requests, len(ids), list(ids), request.cache_salt or "")
        self._write(
            event="request",
            engine=seen.rank,
            request=self._num_requests,
            at_us=_us(seen.at_s),
            prompt_tokens=len(ids),
            max_tokens=None if params is None else params.max_tokens,
            priority=request.priority,
            adapter="" if lora is None else self._redactor.text(lora.lora_name),
            media=[[each.mm_position.offset, each.mm_position.length] for each in request.mm_features or ()],
        )

    def _ended(self, rank: _Rank, request: _OpenRequest) -> None:
        """Write what its KV blocks are known by, now that all of its tokens are known."""
        blocks = self._digests(request.ids, rank.block_size, request.salt)
        self._write(event="blocks", request=request.number, blocks=blocks)

    def _digests(self, ids: list[int], size: int, salt: str) -> list[str]:
        """Return a digest of each full block and all before it."""
        digests, parent = [], salt.encode()
        for start in range(0, len(ids) - size + 1, size):
            content = parent + b"".join(each.to_bytes(8, "little", signed=True) for each in ids[start : start + size])
            parent = hashlib.blake2b(content, key=self._key, digest_size=DIGEST_BYTES).digest()
            digests.append(parent.hex())
        return digests

    def _from_engine(self, seen: Seen, content: bytes) -> None:
        rank = self._ranks.setdefault(seen.rank, _Rank())
        if messages.array_length(content) < 0:  # the first message of an engine is a map
            ready = _READY.decode(content)
            rank.block_size = max(1, ready.block_size)
            self._write(
                event="engine",
                engine=seen.rank,
                at_us=_us(seen.at_s),
                vllm_version=ready.vllm_version,
                max_model_len=ready.max_model_len,
                num_gpu_blocks=ready.num_gpu_blocks,
                block_size=ready.block_size,
                max_num_seqs=ready.max_num_seqs,
                max_num_batched_tokens=ready.max_num_batched_tokens,
                tensor_parallel_size=ready.tensor_parallel_size,
                pipeline_parallel_size=ready.pipeline_parallel_size,
            )
            return
        outputs = messages.read_outputs(content)
        if outputs.outputs or outputs.scheduler_stats is not None:
            self._step(seen, rank, outputs)

    def _step(self, seen: Seen, rank: _Rank, outputs: EngineOutputs) -> None:
        """Write a step. The outputs of a step for other API servers than the first belong to the step before."""
        stats = outputs.scheduler_stats
        details = None if stats is None else stats.iteration_details
        if details is not None and details.is_dummy:
            return
        tokens: dict[int, int] = {}
        found = _Found()
        for output in outputs.outputs:
            self._output(rank, output, tokens, found)
        if not tokens and details is None and not found.finished:
            return
        running = None if stats is None else stats.num_running_reqs
        waiting = None if stats is None else stats.num_waiting_reqs + stats.num_skipped_waiting_reqs
        step = rank.num_steps
        rank.num_steps += 1
        self.num_steps += 1
        self._write(
            event="step",
            engine=seen.rank,
            step=step,
            at_us=_us(seen.at_s),
            ended_s=outputs.timestamp,
            tokens=tokens,
            queued_s=found.queued_s,
            cached=found.cached,
            finished=found.finished,
            batch=None
            if details is None
            else [
                details.num_ctx_requests,
                details.num_ctx_tokens,
                details.num_generation_requests,
                details.num_generation_tokens,
                round(details.elapsed_ms * 1000),
            ],
            running=running,
            waiting=waiting,
            kv_usage=None if stats is None else round(stats.kv_cache_usage, 6),
        )
        self._row(seen, rank, outputs, found, step)
        for each in list(rank.leaving):
            rank.leaving[each] -= 1
            if not rank.leaving[each]:
                del rank.leaving[each]
                if each in rank.open:
                    self._ended(rank, rank.open.pop(each))
        rank.last_at_s, rank.was_busy = outputs.timestamp, bool(running or waiting)

    def _output(self, rank: _Rank, output: EngineOutput, tokens: dict[int, int], found: "_Found") -> None:
        request = rank.open.get(output.request_id)
        if request is None:
            return
        number = request.number
        if output.request_id in rank.leaving:
            rank.leaving[output.request_id] = STEPS_TO_LEAVE
        if output.new_token_ids:
            tokens[number] = len(output.new_token_ids)
        for event in output.events or ():
            if event.type == messages.EventKind.QUEUED:
                found.queued_s[number] = event.timestamp
            elif event.type == messages.EventKind.SCHEDULED:
                found.scheduled_s = max(found.scheduled_s, event.timestamp)
        stats = output.prefill_stats
        if stats is not None:
            found.cached[number] = stats.num_cached_tokens
            found.add_prefill(stats.num_computed_tokens, stats.num_cached_tokens, stats.num_prompt_tokens)
        elif output.new_token_ids:
            found.num_decodes += 1
            found.decode_context += request.num_prompt + request.num_tokens - 1
        request.ids += output.new_token_ids
        if output.finish_reason is not None:
            found.finished[number] = output.finish_reason.name.lower()
            self._ended(rank, rank.open.pop(output.request_id))

    def _row(self, seen: Seen, rank: _Rank, outputs: EngineOutputs, found: "_Found", step: int) -> None:
        stats = outputs.scheduler_stats
        details = None if stats is None else stats.iteration_details
        if details is not None:
            duration_us = round(details.elapsed_ms * 1000)
            prefills = details.num_ctx_requests, details.num_ctx_tokens
            decodes = details.num_generation_requests, details.num_generation_tokens
        else:
            began_s = found.scheduled_s
            if rank.was_busy and rank.last_at_s is not None:
                began_s = max(began_s, rank.last_at_s)
            if not 0 < began_s < outputs.timestamp:
                return  # a step whose beginning nothing tells
            duration_us = round((outputs.timestamp - began_s) * 1e6)
            prefills, decodes = (found.num_prefills, found.prefill_tokens), (found.num_decodes, found.num_decodes)
        row: dict[str, Any] = {
            "step": step,
            "engine": seen.rank,
            "started_us": _us(seen.at_s) - duration_us,
            "duration_us": duration_us,
            "prefill_requests": prefills[0],
            "prefill_tokens": prefills[1],
            "decode_requests": decodes[0],
            "decode_tokens": decodes[1],
            "kv_usage": None if stats is None else round(stats.kv_cache_usage, 6),
            "num_running": None if stats is None else stats.num_running_reqs,
            "num_waiting": None if stats is None else stats.num_waiting_reqs,
        }
        if prefills == (found.num_prefills, found.prefill_tokens) and decodes[0] == found.num_decodes:
            row |= found.sums()
        cells = (row.get(name) for name in STEP_COLUMNS)
        self._table.write(",".join("" if cell is None else str(cell) for cell in cells) + "\n")

    def _write(self, **fields: Any) -> None:
        self._link.write(json.dumps(fields, separators=(",", ":")) + "\n")


@dataclass(slots=True)
class _Found:
    """The contents of one step's outputs."""

    queued_s: dict[int, float] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    finished: dict[int, str] = field(default_factory=dict)
    scheduled_s: float = 0.0
    num_prefills: int = 0
    prefill_tokens: int = 0
    context: int = 0
    squared: int = 0
    context_work: int = 0
    prompt_work: int = 0
    num_decodes: int = 0
    decode_context: int = 0

    def add_prefill(self, computed: int, cached: int, prompt: int) -> None:
        """Add a prompt that was computed whole in this step."""
        self.num_prefills += 1
        self.prefill_tokens += computed
        self.context += cached
        self.squared += computed * computed
        self.context_work += computed * cached
        self.prompt_work += computed * prompt

    def sums(self) -> Mapping[str, int]:
        """The sums of a step in which each prompt was computed whole."""
        return {
            "prefill_context_tokens": self.context,
            "decode_context_tokens": self.decode_context,
            "prefill_tokens_squared": self.squared,
            "prefill_context_work": self.context_work,
            "prefill_prompt_work": self.prompt_work,
        }


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _new_file(path: Path) -> AppendFile:
    if path.exists():
        raise OptionError(f"--output {path} exists already")
    return AppendFile(path)
