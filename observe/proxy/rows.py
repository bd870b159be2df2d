"""Rows of a recording, one for each exchange, and its files, in one part or in several by size and time."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path
from time import monotonic

import orjson

from observe.event_loop import Clock, Nanos
from observe.options import OutputPaths, stem_of
from observe.proxy.exchanges import (
    BYTES_PER_TOKEN,
    Exchange,
    RequestMetadata,
    Round,
    SessionTracker,
    SharedStarts,
    is_generating,
    is_pooling,
    pooling_metadata_of,
    request_metadata_of,
    response_key,
)
from observe.responses import Choice, Reply
from observe.workload import SESSION_COLUMNS
from traces import ItlWriter, TraceHeader, TraceRow, TraceWriter, read_cut_itl, read_cut_rows, write_header
from traces.content import ContentWriter, RecordedExchange, complete_content_lines
from traces.redaction import Redactor, secrets_in, without_secret_headers, without_secret_parameters

COLUMNS = SESSION_COLUMNS | {"vllm_priority", "context_of", "is_part"}


def part_paths(paths: OutputPaths, number: int) -> OutputPaths:
    """The files of a part of the recording at these paths."""
    stem = f"{stem_of(paths.data)}-{number:04d}"
    return OutputPaths(
        Path(f"{stem}.yaml"),
        Path(f"{stem}{''.join(paths.data.suffixes[-2:] if paths.data.suffix == '.gz' else ['.csv'])}"),
        None if paths.itl is None else Path(f"{stem}.itl.csv"),
        None,
        None if paths.content is None else Path(f"{stem}.content.jsonl"),
    )


def part_numbers(paths: OutputPaths) -> list[int]:
    """The parts that are there, in order."""
    stem = Path(stem_of(paths.data))
    pattern = re.compile(re.escape(stem.name) + r"-([0-9]{4,})\.yaml")
    there = [pattern.fullmatch(each.name) for each in stem.parent.glob("*.yaml")]
    return sorted(int(found[1]) for found in there if found is not None)


@dataclass(frozen=True, slots=True)
class EarlierPart:
    """Contents of a part of a recording that is gone on with."""

    rows: list[TraceRow]
    chunks: dict[int, list[int]]
    content: list[str]


def read_part(paths: OutputPaths) -> EarlierPart:
    """Read a part whose writer may have been killed. Raises TraceError."""
    rows = read_cut_rows(paths.data) if paths.data.is_file() else []
    there = {row.request_id for row in rows}
    chunks = read_cut_itl(paths.itl) if paths.itl is not None and paths.itl.is_file() else {}
    content = complete_content_lines(paths.content) if paths.content is not None and paths.content.is_file() else []
    return EarlierPart(rows, {number: times for number, times in chunks.items() if number in there}, content)


@dataclass(slots=True)
class PartWriter:
    """Writes a recording; begins another part when the present one is large or old. Raises TraceError and OSError."""

    paths: OutputPaths
    header: TraceHeader
    redactor: Redactor
    rotate_bytes: float
    rotate_s: float
    number: int = 1
    earlier: EarlierPart | None = None
    num_parts: int = 0
    _num_bytes: int = 0
    _began: float = 0.0
    _rows: TraceWriter = field(init=False)
    _itl: ItlWriter | None = field(init=False, default=None)
    _content: ContentWriter | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._open()

    @property
    def is_rotated(self) -> bool:
        """Whether the recording is written in parts."""
        return bool(self.rotate_bytes or self.rotate_s)

    def write(
        self,
        rows: Sequence[TraceRow],
        chunks: Sequence[tuple[int, Sequence[int]]],
        content: Sequence[Sequence[bytes]],
    ) -> None:
        """Append what has ended; the row is there only when all that belongs to it is.

        Another part begins before if the present one is large or old.
        """
        is_large = self.rotate_bytes and self._num_bytes >= self.rotate_bytes
        is_old = self.rotate_s and monotonic() - self._began >= self.rotate_s
        if self._num_bytes and (is_large or is_old):
            self.close()
            self.number += 1
            self._open()
        if self._content is not None and content:
            self._content.write_lines(content)
        if self._itl is not None and chunks:
            self._itl.write_all(chunks)
        lines = [self._rows.line(row) for row in rows]
        self._rows.write_lines(lines)
        num_chunk_bytes = 28 * sum(len(times) for _, times in chunks) if self._itl is not None else 0
        self._num_bytes += sum(map(len, lines)) + sum(len(part) for line in content for part in line) + num_chunk_bytes

    def close(self) -> None:
        """Close the files of the present part."""
        for writer in (self._rows, self._itl, self._content):
            if writer is not None:
                writer.close()

    def _open(self) -> None:
        paths = part_paths(self.paths, self.number) if self.is_rotated else self.paths
        earlier, self.earlier = self.earlier, None
        if earlier is None:
            write_header(paths.header, replace(self.header), in_place=True)
        if paths.content is not None:
            self._content = ContentWriter(paths.content, self.redactor, earlier.content if earlier else None)
        if paths.itl is not None:
            self._itl = ItlWriter(paths.itl, earlier.chunks if earlier else None)
        self._rows = TraceWriter(paths.data, COLUMNS, earlier.rows if earlier else None)
        there = (paths.data, paths.itl, paths.content) if earlier and earlier.rows else ()
        self._num_bytes = sum(path.stat().st_size for path in there if path is not None and path.is_file())
        self._began = monotonic()
        self.num_parts += 1


_KEYS = ("authorization", "x-api-key", "api-key")
_MAX_LABEL = 64
_NEAR = 0.85
"""Least part of an estimated shared start that the server must have found to be believed: its cache may lack others."""


@dataclass(slots=True)
class TokenScales:
    """Bytes of text per token of a prompt, by model, as replies that counted their tokens have shown."""

    _bytes: dict[str, float] = field(default_factory=dict)
    _tokens: dict[str, float] = field(default_factory=dict)

    def learn(self, model: str, num_bytes: int, num_tokens: int) -> None:
        """Take in a prompt whose tokens were counted; the latest count most."""
        if num_bytes and num_tokens and (model in self._bytes or len(self._bytes) < 1000):
            self._bytes[model] = self._bytes.get(model, 0.0) * 0.99 + num_bytes
            self._tokens[model] = self._tokens.get(model, 0.0) * 0.99 + num_tokens

    def has_model(self, model: str) -> bool:
        """Whether a prompt of the model was counted."""
        return model in self._bytes

    def tokens(self, model: str, num_bytes: int) -> int:
        """Return the estimated number of tokens of a text of this size."""
        per_byte = self._tokens[model] / self._bytes[model] if model in self._bytes else 1 / BYTES_PER_TOKEN
        return max(1, round(num_bytes * per_byte)) if num_bytes else 0


@dataclass(slots=True)
class RowMaker:
    """Makes the rows of one recording; instants count from `origin`."""

    clock: Clock
    origin: Nanos
    tenant_header: str
    tenant_salt: str
    compares_vectors: bool = False
    """Whether the model scores texts by their vectors."""
    sessions: SessionTracker = field(default_factory=SessionTracker)
    starts: SharedStarts = field(default_factory=SharedStarts)
    scales: TokenScales = field(default_factory=TokenScales)
    plain_scales: TokenScales = field(default_factory=TokenScales)
    """Scales of prompts without instructions and tools."""
    _prefix_tokens: dict[str, int] = field(default_factory=dict)

    def facts(self, exchange: Exchange) -> RequestMetadata | None:
        """Facts of a request; None if no prompt is computed for it."""
        method, target, body = exchange.head.method, exchange.head.target, exchange.request_body
        pools = is_pooling(method, target, body)
        if not pools and not is_generating(method, target, body):
            return None
        if not body:
            return RequestMetadata(num_prompt_bytes=exchange.num_body_bytes, is_pooling=pools, has_media=True)
        if pools:
            return pooling_metadata_of(body, compares_vectors=self.compares_vectors)
        return request_metadata_of(body, self._tenant(exchange).encode())

    def row(self, number: int, exchange: Exchange, facts: RequestMetadata) -> TraceRow:
        """The row of an exchange that has ended; later rounds then have its figures."""
        this, before = (None, None) if facts.turns is None else self.sessions.place(facts.turns, exchange.sent)
        reply = exchange.reply
        counted = 0 if reply is None else reply.prompt_tokens or 0
        num_prompt_tokens = counted or self.scales.tokens(facts.model, facts.num_prompt_bytes)
        if counted and not facts.has_media and not facts.is_pooling:
            self.scales.learn(facts.model, facts.num_prompt_bytes, counted)
            if not facts.num_shared_bytes:
                self.plain_scales.learn(facts.model, facts.num_prompt_bytes, counted)
        group, num_shared = self._shared(facts, num_prompt_tokens, is_counted=bool(counted))
        if exchange.status != "ok" and not self.scales.has_model(facts.model):
            self._prefix_tokens.pop(group, None)  # guessed too roughly for others to go by
        num_context, other = 0 if before is None else _num_repeated(before), None
        named = None if before is not None or facts.turns is None else self.sessions.named(facts.turns)
        if named is not None:
            num_context, other = _num_repeated(named), named.number
        elif before is None:
            found = None if reply is None else reply.cached_tokens
            num_context, other = self._begun_alike(facts, num_prompt_tokens, num_shared, found or 0)
        if exchange.status == "ok":
            self.starts.add(facts.starts, number)
        times = [] if reply is None else reply.chunk_times
        # The engine ends a prompt that is only computed with one token, which the server does not count.
        num_output_tokens = 1 if facts.is_pooling and exchange.status == "ok" else _num_output_tokens(exchange)
        if this is not None and exchange.status == "ok" and facts.turns is not None:
            this.ended, this.num_prompt_tokens, this.number = exchange.ended, num_prompt_tokens, number
            is_repeated = reply is not None and reply.is_all_content
            this.num_output_tokens = num_output_tokens // facts.num_parts if is_repeated else 0
            self.sessions.ended(facts.turns, this, b"" if reply is None else reply.content.encode())
            if reply is not None and reply.response_id:
                self.sessions.keep(response_key(reply.response_id), this)
        epoch_us = self.clock.epoch_us
        return TraceRow(
            request_id=number,
            client_id=_label(exchange.head.header("user-agent").partition(" ")[0]),
            tenant_id=self._tenant(exchange),
            vllm_priority=facts.priority,
            session_id="" if this is None else this.session_id,
            round_index=0 if this is None else this.index,
            prefix_group=group,
            prefix_length=num_shared,
            streaming=facts.is_streaming,
            model=facts.model,
            think_time_us=0 if before is None else max(0, exchange.sent - before.ended) // 1000,
            context_tokens=min(num_context, max(0, num_prompt_tokens - 1)),
            context_of="" if other is None else str(other),
            input_tokens=num_prompt_tokens - num_shared,
            output_tokens=num_output_tokens,
            server_input_tokens=counted,
            arrival_time_us=(exchange.sent - self.origin) // 1000,
            send_time_us=epoch_us(exchange.sent),
            first_chunk_time_us=0 if reply is None else epoch_us(reply.first_token),
            last_chunk_time_us=epoch_us(times[-1]) if times else 0,
            num_chunks=0 if reply is None else len(times) if reply.streaming else len(times[:1]),
            deadline_us=(exchange.ended - self.origin) // 1000 if exchange.status == "incomplete" else 0,
            status=exchange.status,
            error_message=_error_message(exchange),
            finish_reason="abort"
            if exchange.status == "incomplete"
            else ""
            if reply is None
            else _label(reply.finish_reason),
            x_request_id=_label(exchange.head.header("x-request-id") or _of_reply(exchange, "x-request-id")),
            first_event_time_us=0 if reply is None else epoch_us(reply.first_event),
        )

    def parts(self, row: TraceRow, facts: RequestMetadata, reply: Reply | None) -> list[TraceRow]:
        """Return the row of an exchange, behind those of its other prompts and choices if there are several.

        The server counts their tokens together. Those of prompts are shared out by the sizes of the texts, and those of
        answers by their events or bytes. The longest answer has the times, for the reply ends with it.
        """
        count, num_tokens = facts.num_parts, row.prefix_length + row.input_tokens
        sizes = facts.part_bytes or (1,)
        is_spread = count > 1 and row.status in ("ok", "incomplete") and num_tokens >= len(sizes)
        # A client that asks for thousands of choices and hangs up at once gets no thousands of rows.
        is_seen = facts.is_pooling or count <= _MOST_UNSEEN or row.output_tokens >= count
        if not is_spread or not is_seen or reply is None:
            return [row]
        prompts = shared_out(num_tokens, sizes)
        lengths = [1] * count if facts.is_pooling else _answer_lengths(reply, row.output_tokens, facts)
        if not facts.is_pooling:
            row = replace(row, output_tokens=max(lengths))
        longest, first = _longest(lengths), row.request_id - count + 1
        order = [place for place in range(count) if place != longest] + [longest]
        ids = {place: first + number for number, place in enumerate(order)}
        last_of = {place // facts.num_choices: ids[place] for place in order}
        rows = []
        for place in order:
            prompt = place // facts.num_choices
            tokens, last = prompts[prompt], last_of[prompt]
            num_shared = min(row.prefix_length, tokens)
            each = replace(
                row,
                prefix_length=num_shared,
                input_tokens=tokens - num_shared,
                server_input_tokens=tokens if row.server_input_tokens else 0,
            )
            if place != longest:
                each = _part_of(each, ids[place], lengths[place])
            if ids[place] != last:  # a choice repeats the prompt of another one
                each = replace(each, context_of=str(last), context_tokens=max(0, tokens - 1))
            elif place != longest and (num_alike := tokens * facts.num_common_bytes // max(1, sizes[prompt])):
                each = replace(each, context_of=str(ids[longest]), context_tokens=num_alike)
            rows.append(each)
        return rows

    def is_guess(self, row: TraceRow, facts: RequestMetadata) -> bool:
        """Whether the tokens of a prompt are guessed, for its client hung up before any of the model was counted.

        One that repeats an earlier request does not count, since its row would stand behind others of its session.
        """
        is_open = row.status == "incomplete" and not row.server_input_tokens and not row.context_tokens
        is_text = not facts.has_media and not facts.is_pooling
        return is_open and is_text and not self.scales.has_model(facts.model)

    def learned_since(self, rows: Sequence[TraceRow], model: str) -> list[TraceRow]:
        """Return the rows of a request whose prompts were guessed, by the scale of those counted since."""
        if not self.scales.has_model(model):
            return list(rows)
        learned = []
        for row in rows:
            guessed = row.prefix_length + row.input_tokens
            num_tokens = self.scales.tokens(model, guessed * BYTES_PER_TOKEN)
            num_shared = row.prefix_length * num_tokens // max(1, guessed)
            num_shared = min(self._prefix_tokens.get(row.prefix_group, num_shared), num_tokens)
            num_context = row.context_tokens * num_tokens // max(1, guessed)
            learned.append(
                replace(row, prefix_length=num_shared, input_tokens=num_tokens - num_shared, context_tokens=num_context)
            )
        return learned

    def chunk_times_us(self, exchange: Exchange, facts: RequestMetadata) -> Sequence[int]:
        """Return the arrival time of each chunk of a stream; empty for other replies.

        Of several choices these are the chunks of the one whose row has the times.
        """
        reply = exchange.reply
        if reply is None or not reply.streaming:
            return ()
        times = reply.chunk_times
        if facts.num_parts > 1 and reply.choices:
            longest = _longest(_answer_lengths(reply, _num_output_tokens(exchange), facts))
            others = {place for index, each in reply.choices.items() if index != longest for place in each.places}
            kept = reply.choices[longest].places if longest else [at for at in range(len(times)) if at not in others]
            times = [times[at] for at in kept]
        return [self.clock.epoch_us(at) for at in times]

    def _shared(self, facts: RequestMetadata, num_prompt_tokens: int, is_counted: bool) -> tuple[str, int]:
        """The shared start of a prompt, and its tokens: as many as the first prompt with it has beyond its turns."""
        if not facts.shared_start:
            return "", 0
        group = f"start-{facts.shared_start.hex()[:12]}"
        known = self._prefix_tokens.get(group)
        if known is None:
            num_turn_bytes = facts.num_prompt_bytes - facts.num_shared_bytes
            known = int(num_prompt_tokens * facts.num_shared_bytes / max(1, facts.num_prompt_bytes))
            if is_counted and self.plain_scales.has_model(facts.model):
                # Templates add words to tools, and other prompts show what the turns take.
                known = max(known, num_prompt_tokens - self.plain_scales.tokens(facts.model, num_turn_bytes))
            if len(self._prefix_tokens) < 100_000:
                self._prefix_tokens[group] = known
        return group, min(known, num_prompt_tokens)

    def _begun_alike(
        self, facts: RequestMetadata, num_prompt_tokens: int, num_shared_tokens: int, num_cached_tokens: int
    ) -> tuple[int, int | None]:
        """Tokens of the prompt that an earlier one began with, and the number of that one, where these are more than
        those of shared instructions.

        They are in proportion to the bytes, unless the server says that it has found about as many.
        """
        num_bytes, number = self.starts.longest(facts.starts)
        num_tokens = num_prompt_tokens * num_bytes // max(1, facts.starts.num_bytes)
        if num_cached_tokens > _NEAR * num_tokens:
            num_tokens = num_cached_tokens
        return (num_tokens, number) if num_tokens > num_shared_tokens else (0, None)

    def _tenant(self, exchange: Exchange) -> str:
        names = (self.tenant_header.lower(),) if self.tenant_header else _KEYS
        value = next(filter(None, map(exchange.head.header, names)), "")
        return "" if not value else f"tenant-{_hashed(value.removeprefix('Bearer ').strip(), self.tenant_salt)}"


_MOST_UNSEEN = 64
"""Choices that are recorded without a token of each."""


def _part_of(row: TraceRow, request_id: int, num_output_tokens: int) -> TraceRow:
    """Return the row of another prompt or choice of a request: one without a session and times."""
    return TraceRow(
        request_id=request_id,
        client_id=row.client_id,
        tenant_id=row.tenant_id,
        vllm_priority=row.vllm_priority,
        prefix_group=row.prefix_group,
        prefix_length=row.prefix_length,
        streaming=row.streaming,
        model=row.model,
        input_tokens=row.input_tokens,
        server_input_tokens=row.server_input_tokens,
        output_tokens=num_output_tokens,
        arrival_time_us=row.arrival_time_us,
        send_time_us=row.send_time_us,
        deadline_us=row.deadline_us,
        status=row.status,
        finish_reason="abort" if row.status == "incomplete" else "",
        is_part=True,
    )


def shared_out(total: int, sizes: Sequence[int]) -> list[int]:
    """Share a total out in proportion to sizes, each with at least one where there are as many."""
    least = 1 if total >= len(sizes) else 0
    spare, whole = total - least * len(sizes), max(1, sum(sizes))
    ends = [least * number + spare * size // whole for number, size in enumerate(accumulate(sizes), 1)]
    return [end - start for start, end in pairwise((0, *ends))]


def _answer_lengths(reply: Reply, total: int, facts: RequestMetadata) -> list[int]:
    """Return the tokens of each of several answers, by their events or bytes.

    Answers that their limit ended are as long as it.
    """
    count, limit = facts.num_parts, facts.max_tokens
    found = [reply.choices.get(place) or Choice() for place in range(count)]
    sizes = [len(each.places) or each.num_bytes for each in found]
    if reply.streaming:
        sizes[0] = max(0, sum(reply.carries_tokens) - sum(sizes[1:]))
    are_cut = [each.finish_reason == "length" and limit > 0 for each in found]
    left = total - limit * sum(are_cut)
    if left < count - sum(are_cut):
        return shared_out(total, sizes)
    lengths = iter(shared_out(left, [size for size, is_cut in zip(sizes, are_cut, strict=True) if not is_cut]))
    return [limit if is_cut else next(lengths) for is_cut in are_cut]


def _longest(lengths: Sequence[int]) -> int:
    """Return the place of the greatest length, the last of equal ones."""
    return max(range(len(lengths)), key=lambda place: (lengths[place], place))


def _num_output_tokens(exchange: Exchange) -> int:
    """Tokens of the reply by the server's count, else the events that carried some."""
    reply = exchange.reply
    if reply is None:
        return 0
    return sum(reply.carries_tokens) if reply.completion_tokens is None else reply.completion_tokens


_NAME = re.compile(r"[A-Za-z]{1,32}(?:_[A-Za-z]{1,32}){0,5}")
_MAX_MESSAGE_CHARS = 2000


def _error_message(exchange: Exchange) -> str:
    """The error of a row; in the server's words only where content is recorded, as they may repeat keys and prompts."""
    detail = exchange.detail if exchange.keeps_content else ", ".join(_error_names(exchange.detail))
    return (f"{exchange.message}: {detail}" if detail else exchange.message)[:_MAX_MESSAGE_CHARS]


def _error_names(text: str) -> list[str]:
    """The type and the code of an error in JSON, where they are plain names."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return []
    error = value.get("error", value) if isinstance(value, dict) else None
    found = [error.get("type"), error.get("code")] if isinstance(error, dict) else []
    return [each for each in dict.fromkeys(found) if isinstance(each, str) and _NAME.fullmatch(each)]


def secrets_of(exchange: Exchange) -> list[str]:
    """The keys that the heads of a request and its reply show."""
    return [
        *secrets_in(exchange.head.headers, exchange.head.target),
        *secrets_in(exchange.reply_fields),
    ]


_BINARY = ("audio/", "image/", "video/", "multipart/", "application/octet-stream")
_CODING = "content-encoding"


def content_of(
    exchange: Exchange, number: int | None, clock: Clock, redactor: Redactor, upstream: str
) -> tuple[RecordedExchange, Redactor]:
    """The content of an exchange as it may be written, without keys and redacted, and the redactor that knows its keys.

    Bodies are written without their content coding; what cannot be read is left out.
    """
    head, found, pieces = exchange.reply_head, exchange.head, exchange.pieces
    removed: list[str] = []
    body = exchange.request_body
    kind = found.header("content-type")
    body = redactor.data(body, kind, removed) if _is_readable(body, kind) else b""
    redactor = redactor.hiding(removed)
    reply = b"".join(piece for _, piece in pieces[:1])
    is_reply_readable = _is_readable(reply, _of_reply(exchange, "content-type"))
    recorded = RecordedExchange(
        request_id=number,
        sent_at_us=clock.epoch_us(exchange.sent),
        method=found.method,
        path=redactor.text(without_secret_parameters(found.target)),
        upstream=redactor.text(upstream),
        headers=_headers(found.headers, redactor, is_decoded=bool(body)),
        body=body,
        status=0 if head is None else head.status,
        reply_headers=_headers(exchange.reply_fields, redactor, is_decoded=not exchange.unread),
        pieces=[((at - exchange.sent) // 1000, piece) for at, piece in pieces] if is_reply_readable else [],
        is_complete=exchange.is_whole and not exchange.unread and not exchange.unkept,
    )
    return recorded.in_pieces(redactor), redactor


def _headers(headers: Iterable[tuple[str, str]], redactor: Redactor, *, is_decoded: bool) -> list[tuple[str, str]]:
    return [
        (name, redactor.text(value))
        for name, value in without_secret_headers(headers)
        if not (is_decoded and name.lower() == _CODING)
    ]


def _is_readable(body: bytes, content_type: str) -> bool:
    """Whether secrets could be found in a body: it is text, or of a kind that has none."""
    return content_type.startswith(_BINARY) or b"\0" not in body


def _num_repeated(before: Round) -> int:
    return before.num_prompt_tokens + before.num_output_tokens


def _hashed(text: str, salt: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), key=salt.encode()[:64], digest_size=6).hexdigest()


def _of_reply(exchange: Exchange, name: str) -> str:
    return "" if exchange.reply_head is None else exchange.reply_head.headers.get(name, "")


def _label(text: str) -> str:
    """A text of a header as it may stand in a row."""
    return text[:_MAX_LABEL] if text.isascii() and text.isprintable() else ""
