"""The requests that `blis tap` recorded before a real engine (`PREFIX.link.jsonl`): a recording made at the engine."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from blis_sim.wings.tap.lines import LinkRecording, RequestLine, read_recordings
from traces.importers.agent_calls import BlockHashTree
from traces.importers.registry import ConvertOptions, Imported, recording
from traces.rows import TraceRow
from traces.text_file import TraceError

_NOTE = (
    "times are those at the engine, without what the API server takes: coefficients that blis fit learns of this "
    "recording leave it out, too"
)


def convert(options: ConvertOptions) -> Imported:
    """The requests of all engines, each from when it passed until its last tokens passed. Raises BlisError."""
    engines = read_recordings(options.path)
    limits = [each.limits for each in engines if each.limits is not None]
    if not limits:
        raise TraceError(f"{options.path}: expected a line about an engine, got none: the tap came after its start")
    left_out: Counter[str] = Counter()
    notes = [_NOTE]
    num_with_media = sum(bool(line.media) for each in engines for line in each.requests.values())
    if num_with_media:
        notes.append(f"media of {num_with_media} requests count as text")
    imported = recording(options, _requests(engines), tuple(notes), left_out)
    first = limits[0]
    settings = {
        "version": first.vllm_version,
        "tensor_parallel": first.tensor_parallel_size,
        "pipeline_parallel": first.pipeline_parallel_size,
        "data_parallel": len({each.rank for each in limits}),
        "max_num_seqs": first.max_num_seqs,
        "max_num_batched_tokens": first.max_num_batched_tokens,
        "block_size": first.block_size,
        "num_gpu_blocks": first.num_gpu_blocks,
        "max_model_len": first.max_model_len,
    }
    return replace(imported, settings={name: value for name, value in settings.items() if value})


def _requests(engines: Sequence[LinkRecording]) -> Iterator[tuple[TraceRow, list[int]]]:
    """Yield all requests in the order in which they came, with the times of their tokens."""
    told = [(each, _Told(each)) for each in engines]
    lines = [(line, *each) for each in told for line in each[0].requests.values()]
    lines.sort(key=lambda each: each[0].at_us)
    start_us = lines[0][0].at_us if lines else 0
    shared = {each.rank: BlockHashTree() for each in engines}
    for number, (line, engine, tokens_of) in enumerate(lines):
        size = 1 if engine.limits is None else engine.limits.block_size
        digests = [int(each, 16) for each in engine.blocks.get(line.request, ())]
        context, tokens = shared[line.rank].repeated(number, digests, line.prompt_tokens, size)
        row, times = tokens_of.row(line, start_us)
        yield (
            replace(row, request_id=number, context_of="" if context is None else str(context), context_tokens=tokens),
            times,
        )


class _Told:
    """The requests of an engine, reconstructed from its steps."""

    def __init__(self, engine: LinkRecording) -> None:
        self._times: defaultdict[int, list[int]] = defaultdict(list)
        self._num_tokens: Counter[int] = Counter()
        self._finished: dict[int, str] = {}
        for step in engine.steps:
            for number, tokens in step.tokens.items():
                self._times[number].append(step.at_us)
                self._num_tokens[number] += tokens
            self._finished |= step.finished
        self._left_us = {number: line.at_us for line in engine.aborts for number in line.requests}
        self._end_us = engine.steps[-1].at_us if engine.steps else 0

    def row(self, line: RequestLine, start_us: int) -> tuple[TraceRow, list[int]]:
        """Return the row of a request, and when its tokens came; one that had not ended ends with the recording."""
        times, reason = self._times[line.request], self._finished.get(line.request, "")
        left_us = 0 if reason else self._left_us.get(line.request, max(self._end_us, line.at_us + 1))
        status = "error" if reason == "error" else "incomplete" if left_us else "ok"
        row = TraceRow(
            request_id=0,
            streaming=True,
            vllm_priority=line.priority if line.priority > 0 else None,
            input_tokens=line.prompt_tokens,
            server_input_tokens=line.prompt_tokens,
            output_tokens=self._num_tokens[line.request],
            adapter=line.adapter,
            deadline_us=left_us - start_us if left_us else 0,
            arrival_time_us=line.at_us,
            send_time_us=line.at_us,
            first_chunk_time_us=times[0] if times else 0,
            last_chunk_time_us=times[-1] if times else 0,
            num_chunks=len(times),
            status=status,
            finish_reason=reason or "abort",
        )
        return row, times
