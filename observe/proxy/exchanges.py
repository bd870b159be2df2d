"""Exchanges of a request and its reply from the bytes of connections, decoded, with the facts that bodies show."""

import re
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from blis_sim.installation import install_command
from observe.errors import ResponseError
from observe.event_loop import Nanos
from observe.http import Head, HeadCache, ResponseParser
from observe.proxy.tap import EventKind, Message
from observe.responses import Reply

# Bodies as text: content codings taken off within a limit, so that a small body never becomes a large one.

MAX_BODY_BYTES = 16 << 20
"""Longer bodies are not read, and longer streams are not kept."""
MAX_STREAM_BYTES = 64 << 20
"""Longer streams of events are not read: each event is read by itself."""
MAX_JSON_BYTES = 64 << 20
"""JSON whose values would take more memory is not parsed."""
MAX_LINES = 400_000
"""An event takes two or three lines, and more time to read than many bytes do."""
_MAX_HELD_BYTES = 64 << 20
_PIECE_BYTES = 128
"""Memory of a piece beside its bytes."""
_JSON_BYTES = ((b",", 40), (b'"', 28), (b"[", 72), (b"{", 200))
"""Memory of the values of JSON, by the characters that begin or part them."""
_SLICE_BYTES = 512
"""A slice of this size of Zstandard's blocks becomes 16 MB at most."""


class UnreadableBodyError(Exception):
    """A body in a coding that is not known, damaged, or too large."""


class Decoder:
    """Takes a content coding off, piece by piece. Raises UnreadableBodyError."""

    def __init__(self, coding: str, limit: int = MAX_BODY_BYTES) -> None:
        self._limit = self._left = limit
        names = [each for each in re.split(r"[,\s]+", coding.lower()) if each and each != "identity"]
        if len(names) > 1:
            raise UnreadableBodyError(f"it has several codings, {coding[:60]}")
        self._decode = _decoder_of(names[0]) if names else None

    def feed(self, data: bytes) -> bytes:
        """The bytes that these add to the body."""
        if self._decode is None:
            decoded = data
            self._left -= len(data)
        else:
            decoded = self._decode(data, self._left + 1)
            self._left -= len(decoded)
        if self._left < 0:
            raise UnreadableBodyError(f"it is longer than {self._limit >> 20} MB")
        return decoded


def decoded(coding: str, data: bytes) -> bytes:
    """A whole body without its content coding. Raises UnreadableBodyError."""
    return Decoder(coding).feed(data)


def json_bytes(data: bytes) -> int:
    """Memory that the values of a text of JSON take beside the text, at most."""
    return sum(data.count(character) * num_bytes for character, num_bytes in _JSON_BYTES)


class MemoryBudget:
    """Bytes that all bodies under way may take together."""

    def __init__(self, limit: int = _MAX_HELD_BYTES) -> None:
        self._left = limit

    def take(self, num_bytes: int) -> bool:
        """Reserve so many; false where there are not as many left."""
        if num_bytes > self._left:
            return False
        self._left -= num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """Return what was reserved."""
        self._left += num_bytes


def _decoder_of(name: str) -> Callable[[bytes, int], bytes]:
    if name in ("gzip", "x-gzip", "deflate"):
        return _Inflation(is_raw_allowed=name == "deflate").feed
    if name in ("br", "zstd"):
        try:
            return _Brotli().feed if name == "br" else _Zstandard().feed
        except ImportError as error:
            raise UnreadableBodyError(f"reading {name} needs {install_command('encodings')}") from error
    raise UnreadableBodyError(f"its coding {name[:20]!r} is not known")


class _Inflation:
    """gzip, also in several members, zlib, and the bare deflate that some servers send."""

    def __init__(self, *, is_raw_allowed: bool) -> None:
        self._window_bits = zlib.MAX_WBITS | 32
        self._inflating: Any = None
        self._is_raw_allowed = is_raw_allowed
        self._head = b""

    def feed(self, data: bytes, limit: int) -> bytes:
        pieces: list[bytes] = []
        data, self._head = self._head + data, b""
        if self._inflating is None and len(data) < 2:
            self._head = data
            return b""
        while data and limit > 0:
            if self._inflating is None:
                is_raw = self._is_raw_allowed and (data[0] & 15 != 8 or int.from_bytes(data[:2], "big") % 31)
                self._inflating = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else self._window_bits)
            elif self._inflating.eof:
                self._inflating = zlib.decompressobj(self._window_bits)
            try:
                piece = self._inflating.decompress(data, limit)
            except zlib.error as error:
                raise UnreadableBodyError("its coding is damaged") from error
            pieces.append(piece)
            limit -= len(piece)
            data = self._inflating.unused_data if self._inflating.eof else b""
        return b"".join(pieces)


class _Brotli:
    def __init__(self) -> None:
        import brotli

        self._decompressor = brotli.Decompressor()
        self._error: type[Exception] = brotli.error

    def feed(self, data: bytes, limit: int) -> bytes:
        pieces: list[bytes] = []
        try:
            while limit > 0:
                piece: bytes = self._decompressor.process(data, output_buffer_limit=limit)
                pieces.append(piece)
                limit -= len(piece)
                data = b""
                if not piece or self._decompressor.can_accept_more_data():
                    break
        except self._error as error:
            raise UnreadableBodyError("its coding is damaged") from error
        return b"".join(pieces)


class _Zstandard:
    def __init__(self) -> None:
        import zstandard

        self._decompressor: Any = zstandard.ZstdDecompressor(max_window_size=MAX_BODY_BYTES).decompressobj(
            read_across_frames=True
        )
        self._error: type[Exception] = zstandard.ZstdError

    def feed(self, data: bytes, limit: int) -> bytes:
        pieces: list[bytes] = []
        try:
            for start in range(0, len(data), _SLICE_BYTES):
                if limit <= 0:
                    break
                piece: bytes = self._decompressor.decompress(data[start : start + _SLICE_BYTES])
                pieces.append(piece)
                limit -= len(piece)
        except self._error as error:
            raise UnreadableBodyError("its coding is damaged") from error
        return b"".join(pieces)


# Facts that the body of a request shows: model, size and shared start of the prompt, and its session.

_MAX_ROUNDS = 100_000
_MAX_OF_ONE_KEY = 8
_MAX_TEXTS = 128


@dataclass(slots=True)
class Round:
    """A request of a session, with its figures once it has ended."""

    session_id: str
    index: int
    number: int = 0
    """Number of its row."""
    ended: Nanos = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    reply_digest: bytes = b""
    is_continued: bool = False

    def can_go_on(self, at: Nanos) -> bool:
        """Whether a request sent at this instant can be the next of the session: its reply was there by then."""
        return not self.is_continued and self.ended <= at


@dataclass(frozen=True, slots=True)
class Turns:
    """A conversation as its digests: `start` of what stands before the turns, one digest for each turn.

    `replies` has the digest of the text of each turn that is a reply, empty for the others. A prompt that is a bare
    text has `text` instead of turns.
    """

    start: bytes
    digests: Sequence[bytes] = ()
    replies: Sequence[bytes] = ()
    text: bytes = b""
    previous: bytes = b""
    """Stands for the reply that the request goes on with by its id."""


def digest(*parts: bytes) -> bytes:
    """Sixteen bytes that stand for these parts."""
    made = blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8, "big"))
        made.update(part)
    return made.digest()


_START_BYTES = 64
_START_DIGEST_BYTES = 8


class PromptStarts(NamedTuple):
    """Ever longer starts of a prompt, by which others that begin alike are found.

    They are the bytes of the whole, and digests one behind the other. Each digest is of a start, and of what else a
    shared KV block depends on.
    """

    num_bytes: int
    digests: bytes

    def ends(self) -> Iterator[tuple[int, bytes]]:
        """Where each start ends, with its digest."""
        at = 0
        for place in range(0, len(self.digests), _START_DIGEST_BYTES):
            at = _next_start(at, self.num_bytes)
            yield at, self.digests[place : place + _START_DIGEST_BYTES]


def _next_start(at: int, num_bytes: int) -> int:
    """Where the start behind this one ends: 64 bytes later, or a thousandth of what is before it."""
    return min(num_bytes, at + max(_START_BYTES, at // 1024 // _START_BYTES * _START_BYTES))


def prompt_starts(root: bytes, text: bytes) -> PromptStarts:
    """The starts of a prompt with this text; `root` stands for what else its KV blocks depend on."""
    made = blake2b(root, digest_size=_START_DIGEST_BYTES)
    digests: list[bytes] = []
    at = 0
    while at < len(text):
        end = _next_start(at, len(text))
        made.update(text[at:end])
        digests.append(made.digest())
        at = end
    return PromptStarts(len(text), b"".join(digests))


_NO_STARTS = PromptStarts(0, b"")


@dataclass(slots=True)
class SessionTracker:
    """Finds the latest requests by their turns, at most 100,000 of them. Sessions are numbered from `num_sessions`."""

    num_sessions: int = 0
    _rounds: "OrderedDict[bytes, list[Round]]" = field(default_factory=OrderedDict)
    _texts: "OrderedDict[tuple[bytes, bytes], tuple[int, Round]]" = field(default_factory=OrderedDict)
    _by_id: "OrderedDict[bytes, Round]" = field(default_factory=OrderedDict)

    def named(self, turns: Turns) -> Round | None:
        """Return the round whose reply the request names by its id."""
        return self._by_id.get(turns.previous) if turns.previous else None

    def keep(self, key: bytes, this: Round) -> None:
        """Keep a round under the id of its reply."""
        self._by_id[key] = this
        while len(self._by_id) > _MAX_ROUNDS:
            self._by_id.popitem(last=False)

    def place(self, turns: Turns, sent: Nanos) -> tuple[Round, Round | None]:
        """The round of a request sent at this instant, and the one that it goes on with; None where it begins a
        session."""
        if turns.previous:
            named = self.named(turns)
            before = named if named is not None and named.can_go_on(sent) else None
        else:
            before = self._before_text(turns, sent) if turns.text else self._before(turns, sent)
        if before is None:
            self.num_sessions += 1
            return Round(f"session-{self.num_sessions}", 0), None
        before.is_continued = True
        return Round(before.session_id, before.index + 1), before

    def ended(self, turns: Turns, this: Round, reply: bytes) -> None:
        """Keep a request that got this reply in full: later ones may go on with it."""
        if turns.text:
            whole = turns.text + reply
            if reply:
                self._texts[(turns.start, digest(whole))] = (len(whole), this)
                while len(self._texts) > _MAX_TEXTS:
                    self._texts.popitem(last=False)
            return
        if turns.previous:
            return
        this.reply_digest = digest(reply.strip())
        key = _chain(turns.start, turns.digests)[-1]
        rounds = self._rounds.setdefault(key, [])
        self._rounds.move_to_end(key)
        rounds.append(this)
        del rounds[:-_MAX_OF_ONE_KEY]
        while len(self._rounds) > _MAX_ROUNDS:
            self._rounds.popitem(last=False)

    def _before(self, turns: Turns, sent: Nanos) -> Round | None:
        chain = _chain(turns.start, turns.digests)
        for length in range(len(turns.digests) - 1, 0, -1):
            rounds = [each for each in self._rounds.get(chain[length], ()) if each.can_go_on(sent)]
            if rounds:
                reply = turns.replies[length]
                return next((each for each in reversed(rounds) if reply and each.reply_digest == reply), rounds[-1])
        return None

    def _before_text(self, turns: Turns, sent: Nanos) -> Round | None:
        lengths = {length for length, _ in self._texts.values() if length < len(turns.text)}
        for length in sorted(lengths, reverse=True):
            found = self._texts.get((turns.start, digest(turns.text[:length])))
            if found is not None and found[1].can_go_on(sent):
                return found[1]
        return None


class SharedStarts:
    """Finds the request that began as another one does, by starts of prompts: at most the latest 100,000 of them."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[bytes, int] = OrderedDict()

    def longest(self, starts: PromptStarts) -> tuple[int, int | None]:
        """The bytes of the longest start that an earlier request had, and the number of that request."""
        found: tuple[int, int | None] = (0, None)
        for end, digest_of_start in starts.ends():
            number = self._numbers.get(digest_of_start)
            if number is None:
                break
            found = end, number
        return found

    def add(self, starts: PromptStarts, number: int) -> None:
        """Keep the starts of a request; those that an earlier one had stay that one's."""
        # The shortest come last, as a longer one is only looked for where they are found.
        for _, digest_of_start in reversed(list(starts.ends())):
            self._numbers.setdefault(digest_of_start, number)
            self._numbers.move_to_end(digest_of_start)
        while len(self._numbers) > _MAX_ROUNDS:
            self._numbers.popitem(last=False)

    def clear(self) -> None:
        """Forget all: what comes next is in another file."""
        self._numbers.clear()


def _chain(start: bytes, digests: Sequence[bytes]) -> list[bytes]:
    """The digest of nothing, of the first turn, of the first two, and so on."""
    chain = [start]
    for each in digests:
        chain.append(digest(chain[-1], each))
    return chain


GENERATING = (
    "/chat/completions", "/completions", "/responses", "/messages", "/chat/completions/batch", "/inference/v1/generate",
)  # fmt: skip
"""Ends of the paths at which tokens are generated."""
POOLING = ("/embeddings", "/pooling", "/classify", "/score", "/rerank", "/generative_scoring")
"""Ends of the paths at which prompts are computed, and none is answered in tokens."""

_INVOCATIONS = "/invocations"
"""End of the path at which the members of a body say what it is."""
_INSTRUCTING = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetadata:
    """Record of a request for tokens besides its times. Sizes are bytes of text."""

    model: str = ""
    is_streaming: bool = False
    priority: int | None = None
    num_prompt_bytes: int = 0
    num_shared_bytes: int = 0
    """Bytes of instructions and tools at its start, which other requests may share."""
    is_pooling: bool = False
    """Whether the prompt is only computed, for a vector or a score."""
    part_bytes: tuple[int, ...] = ()
    """Sizes of the prompts of a request that has several, each of which the engine computes apart."""
    num_common_bytes: int = 0
    """Bytes with which each of these prompts begins: a query that several texts are scored for."""
    num_choices: int = 1
    """Answers to each prompt, each of which the engine computes apart, too."""
    max_tokens: int = 0
    """Limit of each answer, 0 if the request has none."""
    has_media: bool = False
    """Whether the prompt has images, sounds or files, or was not read, so that its tokens do not follow from bytes."""
    shared_start: bytes = b""
    """Digest of that start; empty without one."""
    turns: Turns | None = None
    starts: PromptStarts = _NO_STARTS

    @property
    def num_parts(self) -> int:
        """Prompts times answers to each; 1 for more than are recorded apart."""
        count = max(1, len(self.part_bytes)) * self.num_choices
        return count if count <= MOST_PARTS else 1


def is_generating(method: str, target: str, body: bytes = b"") -> bool:
    """Return whether a request to this target generates tokens."""
    return method == "POST" and (_ends_with(target, GENERATING) or _invokes(target, body, _ANSWERED))


def is_pooling(method: str, target: str, body: bytes = b"") -> bool:
    """Return whether a request to this target has the prompt computed without an answer in tokens."""
    return method == "POST" and (_ends_with(target, POOLING) or _invokes(target, body, _ONLY_POOLED))


def _ends_with(target: str, ends: tuple[str, ...]) -> bool:
    return target.partition("?")[0].rstrip("/").endswith(ends)


def _invokes(target: str, body: bytes, names: tuple[str, ...]) -> bool:
    """Return whether the first member of a body that says what it is has one of these names."""
    if not _ends_with(target, (_INVOCATIONS,)):
        return False
    members = _members_of(body) or {}
    return next((name for name in (*_ANSWERED, *_ONLY_POOLED) if name in members), None) in names


def _members_of(body: bytes) -> dict[str, Any] | None:
    """Return the members of a JSON object; None for any other body."""
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return members if isinstance(members, dict) else None


def pooling_metadata_of(body: bytes, *, compares_vectors: bool = False) -> RequestMetadata:
    """The facts of a body whose texts are computed, as far as it is JSON.

    A model that compares vectors computes each text of a score by itself, others compute it with its query.
    """
    members = _members_of(body)
    if members is None:
        return RequestMetadata(is_pooling=True, num_prompt_bytes=len(body))
    model = members.pop("model", None)
    common: dict[str, Any] = {
        "is_pooling": True,
        "model": model if isinstance(model, str) else "",
        "has_media": _has_media(members),
    }
    if "input" in members:
        root = digest(b"pooling", str(model).encode("utf-8", "replace"))
        return _of_prompt(members["input"], root, common, root)
    texts = [members[key] for key in _POOLED if key in members]
    if compares_vectors and (sizes := _compared_bytes(members)):
        return RequestMetadata(**common, num_prompt_bytes=sum(sizes), part_bytes=sizes)
    part_bytes, num_common_bytes = _pair_bytes(members)
    return RequestMetadata(
        **common, num_prompt_bytes=_num_bytes(texts), part_bytes=part_bytes, num_common_bytes=num_common_bytes
    )


def _compared_bytes(members: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the sizes of queries and of the texts that they are compared with.

    Nothing where these are no pairs, or more than are recorded apart.
    """
    first, second = _compared(members)
    if first is None or second is None:
        return ()
    queries, texts = (each if isinstance(each, list) else [each] for each in (first, second))
    if len(queries) not in (1, len(texts)) or len(queries) + len(texts) > MOST_PARTS:
        return ()
    return tuple(_num_bytes([each]) for each in (*queries, *texts))


def _compared(members: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the two sides of a score; None for one that is not there."""
    first, second = (
        next((members[key] for key in keys if key in members), None)
        for keys in (("query", "queries", "text_1", "data_1"), ("documents", "items", "text_2", "data_2"))
    )
    return first, second


def _pair_bytes(members: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    """Return the sizes of the pairs of texts that are scored, nothing for a single one, and what all begin with."""
    first, second = _compared(members)
    if not isinstance(second, list) or not 1 < len(second) <= MOST_PARTS:
        return (), 0
    has_queries = False
    queries = [first] * len(second)
    if isinstance(first, list) and len(first) == len(second):
        queries, has_queries = first, True
    sizes = tuple(_num_bytes([query]) + _num_bytes([text]) for query, text in zip(queries, second, strict=True))
    begins_alike = not has_queries and not members.get("item_first")
    return sizes, _num_bytes([first]) if begins_alike else 0


_POOLED = ("messages", "query", "queries", "documents", "items", "text_1", "text_2", "data_1", "data_2")
"""Members of bodies with texts to be computed, beside `input`."""
_ANSWERED = ("messages", "prompt")
"""Members of bodies that are answered in tokens."""
_ONLY_POOLED = ("input", *(name for name in _POOLED if name not in _ANSWERED))
MOST_PARTS = 10_000
"""A request of more prompts is recorded as one long prompt."""


def request_metadata_of(body: bytes, client: bytes) -> RequestMetadata:
    """The facts of a body, as far as it is JSON; `client` keeps conversations of different clients apart."""
    members = _members_of(body)
    if members is None:
        return RequestMetadata(num_prompt_bytes=len(body))
    model = members.get("model")
    priority = members.get("priority")
    inner = members.get("sampling_params")
    sampling = inner if isinstance(inner, dict) else members
    name = model if isinstance(model, str) else ""
    common: dict[str, Any] = {
        "model": name,
        "is_streaming": members.get("stream") is True,
        "priority": priority if type(priority) is int and 0 <= priority < 2**31 else None,
        "num_choices": _positive(sampling, "n") or 1,
        "max_tokens": _positive(sampling, "max_completion_tokens") or _positive(sampling, "max_tokens"),
    }
    # What has another model or salt shares no KV block.
    root = digest(name.encode(), str(members.get("cache_salt")).encode("utf-8", "replace"))
    prompt = members.get("prompt", members.get("token_ids"))
    if prompt is not None and "messages" not in members:
        return _of_prompt(prompt, digest(client, root), common, root)
    conversations = members.get("messages")
    if isinstance(conversations, list) and conversations and isinstance(conversations[0], list):
        sizes = tuple(map(_num_bytes, conversations))
        return RequestMetadata(
            **common, num_prompt_bytes=sum(sizes), part_bytes=sizes, has_media=_has_media(conversations)
        )
    items = _items(members)
    start = [members[key] for key in ("system", "instructions", "tools") if members.get(key)]
    num_leading = next((at for at, each in enumerate(items) if each.get("role") not in _INSTRUCTING), len(items))
    shared = [*start, *items[:num_leading]]
    key = _dump(shared)
    turns = items[num_leading:]
    # Tools come into the prompt as JSON, names of members included.
    tools = members.get("tools")
    num_shared_bytes = _num_bytes([each for each in shared if each is not tools]) + (len(_dump(tools)) if tools else 0)
    previous = members.get("previous_response_id")
    bare = not previous
    dumps = [_dump(each) for each in turns]
    has_media = _has_media(items)
    return RequestMetadata(
        **common,
        num_prompt_bytes=num_shared_bytes + _num_bytes(turns),
        num_shared_bytes=num_shared_bytes,
        has_media=has_media,
        shared_start=digest(root, key) if shared else b"",
        turns=_turns(digest(client, root, key), turns, dumps, previous) if turns else None,
        starts=prompt_starts(root, b"".join((key, *dumps))) if bare and not has_media else _NO_STARTS,
    )


def _of_prompt(prompt: Any, start: bytes, common: Mapping[str, Any], root: bytes) -> RequestMetadata:
    prompts = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
    if len(prompts) == 1 and isinstance(prompts[0], str):
        text = prompts[0].encode("utf-8", "replace")
        turns = Turns(start, text=text) if text else None
        return RequestMetadata(**common, num_prompt_bytes=len(text), turns=turns, starts=prompt_starts(root, text))
    num_ids = sum(len(each) for each in prompts if isinstance(each, list))
    ids = prompts[0] if len(prompts) == 1 and isinstance(prompts[0], list) else ()
    has_parts = 1 < len(prompts) <= MOST_PARTS
    return RequestMetadata(
        **common,
        num_prompt_bytes=_num_bytes(prompts) + num_ids * BYTES_PER_TOKEN,
        part_bytes=tuple(map(_part_bytes, prompts)) if has_parts else (),
        starts=prompt_starts(root, b"".join(map(_id_bytes, ids))),
    )


def _positive(members: Mapping[str, Any], name: str) -> int:
    """Return a whole number above 0; 0 for anything else."""
    value = members.get(name)
    return value if type(value) is int and 0 < value < 2**31 else 0


def _part_bytes(prompt: Any) -> int:
    """Return the size of one of several prompts: a text, or ids."""
    return len(prompt) * BYTES_PER_TOKEN if isinstance(prompt, list) else _num_bytes([prompt])


def _id_bytes(token_id: Any) -> bytes:
    """A token's id in as many bytes as a token counts."""
    number = token_id if isinstance(token_id, int) else 0
    return (number % 2**32).to_bytes(BYTES_PER_TOKEN)


BYTES_PER_TOKEN = 4
"""Bytes of text that stand for a token where no reply has shown how many there are."""


def _items(members: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a conversation in any of the interfaces."""
    found = members.get("messages", members.get("input"))
    if isinstance(found, str):
        return [{"role": "user", "content": found}]
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def response_key(name: str) -> bytes:
    """Return what stands for the id of a response."""
    return digest(b"response", name.encode("utf-8", "replace"))


def _turns(start: bytes, items: Sequence[dict[str, Any]], dumps: Iterable[bytes], previous: Any) -> Turns:
    if previous:
        return Turns(start, previous=response_key(str(previous)))
    replies = [digest(_text(each).strip()) if each.get("role") == "assistant" else b"" for each in items]
    return Turns(start, [digest(each) for each in dumps], replies)


def _text(message: Mapping[str, Any]) -> bytes:
    content = message.get("content")
    if isinstance(content, str):
        return content.encode("utf-8", "replace")
    parts = content if isinstance(content, list) else []
    texts = [each.get("text") for each in parts if isinstance(each, dict)]
    return "".join(each for each in texts if isinstance(each, str)).encode("utf-8", "replace")


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


_MEDIA = ("image", "audio", "video", "file")


def _is_media(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and any(word in kind for word in _MEDIA)


def _num_bytes(value: Any) -> int:
    """Bytes of all texts inside a value, those of images and other media left out: they are no words."""
    return sum(len(each.encode("utf-8", "replace")) for each in _leaves(value) if isinstance(each, str))


def _has_media(value: Any) -> bool:
    return any(isinstance(each, dict) for each in _leaves(value))


def _leaves(value: Any) -> Iterator[Any]:
    """All texts and numbers inside a value, and the parts that are media."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict) and not _is_media(each):
            left += each.values()
        elif isinstance(each, list):
            left += each
        else:
            yield each


# Exchanges of a request and its reply, from the bytes of connections as a proxy sees them, kept as they came.

_MAX_HEAD_BYTES = 1 << 18
_MAX_LINE_BYTES = 1 << 14
_LINE_START = re.compile(rb"\r|[!#-'*+.\-0-9A-Z^_`a-z|~]*( [!-~\x80-\xff]*( [HTP/.01]{0,8}\r?)?)?")
_REQUEST_LINE = re.compile(rb"([!#-'*+.\-0-9A-Z^_`a-z|~]+) ([!-~\x80-\xff]+) HTTP/1\.[01]")


class UnreadableError(Exception):
    """The bytes are no HTTP/1.1 request, or one whose end cannot be found for sure."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The first line and the headers of a request, as text in Latin-1."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]

    def header(self, name: str) -> str:
        """The value of a header by its name in lower case, empty where there is none."""
        return next((value for each, value in self.headers if each.lower() == name), "")


@dataclass(slots=True)
class Part:
    """A piece of a request: `raw` as it came. The first has the head, `body` is what it adds to the body, and the last
    is the end."""

    raw: bytes
    head: RequestHead | None = None
    body: bytes = b""
    is_end: bool = False


class _State(Enum):
    HEAD = auto()
    SIZED_BODY = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()


class RequestReader:
    """Takes the requests of one connection apart, fed in pieces cut anywhere.

    After UnreadableError, `rest` has the bytes that are not in a part yet, and nothing more can be fed.
    """

    __slots__ = ("_left", "_state", "rest")

    def __init__(self) -> None:
        self._state = _State.HEAD
        self._left = 0
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[Part]:
        """The parts that these bytes complete. Raises UnreadableError."""
        data = self.rest + data if self.rest else data
        self.rest = data
        start = 0
        while start < len(data):
            part, end = self._step(data, start)
            self.rest = data[end:]
            if part is None:
                return
            start = end
            yield part

    def _step(self, data: bytes, start: int) -> tuple[Part | None, int]:
        if self._state is _State.HEAD:
            return self._take_head(data, start)
        if self._state in (_State.SIZED_BODY, _State.CHUNK):
            piece = data[start : start + self._left]
            self._left -= len(piece)
            is_end = self._state is _State.SIZED_BODY and not self._left
            if not self._left:
                self._state = _State.HEAD if is_end else _State.CHUNK_END
            return Part(piece, body=piece, is_end=is_end), start + len(piece)
        return self._take_line(data, start)

    def _take_head(self, data: bytes, start: int) -> tuple[Part | None, int]:
        if data.startswith(b"\r\n", start):  # empty lines before a request are allowed
            return Part(data[start : start + 2]), start + 2
        end = data.find(b"\r\n\r\n", start)
        if end < 0:
            if len(data) - start > _MAX_HEAD_BYTES or not _may_begin(data[start : start + _MAX_LINE_BYTES]):
                raise UnreadableError
            return None, start
        raw = data[start : end + 4]
        head = _parsed(raw)
        self._left, is_chunked = _length(head)
        self._state = _State.CHUNK_SIZE if is_chunked else _State.SIZED_BODY if self._left else _State.HEAD
        return Part(raw, head=head, is_end=self._state is _State.HEAD), end + 4

    def _take_line(self, data: bytes, start: int) -> tuple[Part | None, int]:
        end = data.find(b"\r\n", start)
        if end < 0:
            if len(data) - start > _MAX_LINE_BYTES:
                raise UnreadableError
            return None, start
        line, raw = data[start:end], data[start : end + 2]
        is_end = False
        if self._state is _State.CHUNK_SIZE:
            size = line.partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", size):
                raise UnreadableError
            self._left = int(size, 16)
            self._state = _State.CHUNK if self._left else _State.TRAILERS
        elif self._state is _State.CHUNK_END:
            if line:
                raise UnreadableError
            self._state = _State.CHUNK_SIZE
        elif not line:
            self._state = _State.HEAD
            is_end = True
        return Part(raw, is_end=is_end), end + 2


def _may_begin(data: bytes) -> bool:
    """Whether bytes without the end of a head can be the beginning of one."""
    first, newline, _ = data.partition(b"\n")
    if newline:
        return _REQUEST_LINE.fullmatch(first.rstrip(b"\r")) is not None
    return _LINE_START.fullmatch(first) is not None


def _parsed(raw: bytes) -> RequestHead:
    first, *lines = raw[:-4].split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise UnreadableError
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise UnreadableError
        headers.append((name.decode("latin-1"), value.strip().decode("latin-1")))
    return RequestHead(found[1].decode("latin-1"), found[2].decode("latin-1"), tuple(headers))


def _length(head: RequestHead) -> tuple[int, bool]:
    """The length of the body, and whether it comes in chunks. Raises UnreadableError where servers may differ."""
    lengths = {value for name, value in head.headers if name.lower() == "content-length"}
    encodings = [value.lower() for name, value in head.headers if name.lower() == "transfer-encoding"]
    if head.method == "CONNECT" or head.header("upgrade").lower() == "websocket" or len(lengths) > 1:
        raise UnreadableError
    if encodings:
        if lengths or encodings != ["chunked"]:
            raise UnreadableError
        return 0, True
    length = next(iter(lengths), "0")
    if not re.fullmatch(r"[0-9]{1,18}", length):
        raise UnreadableError
    return int(length), False


def with_host(raw: bytes, authority: str, prefix: str) -> bytes:
    """The head of a request for the server behind a proxy: its host, and the path in front of its routes.

    Every other byte stays as it is. A target that names a server, as for a forward proxy, stays, too.
    """
    if prefix:
        method, _, rest = raw.partition(b" ")
        raw = method + b" " + prefix.encode() + rest if rest.startswith(b"/") else raw
    first, end, fields = raw.partition(b"\r\n")
    return first + end + _HOST.sub(lambda found: found[1] + authority.encode(), fields, count=1)


_HOST = re.compile(rb"^([Hh][Oo][Ss][Tt]:[ \t]*)[^\r\n]*", re.MULTILINE)


@dataclass(slots=True)
class Exchange:
    """A request and its reply, as far as they have come.

    `sent` is when the last byte of the request came. `status` and `message` are those of a row once it has ended;
    `detail` has the server's own words about it.
    """

    upstream: int
    head: RequestHead
    begun: Nanos
    keeps_content: bool
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    sent: Nanos = 0
    num_body_bytes: int = 0
    reply_head: Head | None = None
    reply_fields: list[tuple[str, str]] = field(default_factory=list)
    reply: Reply | None = None
    status: str = ""
    message: str = ""
    detail: str = ""
    ended: Nanos = 0
    is_whole: bool = False
    """Whether the reply came to its end."""
    unread: str = ""
    """Why the rest of the reply was not read; empty if it was."""
    unkept: str = ""
    """Why the reply was read, but its content was not kept; empty if it was."""
    facts: RequestMetadata | None = None
    """Facts of a request that generates tokens, from its end or the beginning of its reply on."""
    parser: ResponseParser = field(default_factory=ResponseParser)
    _body: bytearray = field(default_factory=bytearray)
    _pieces: list[tuple[Nanos, bytearray]] = field(default_factory=list)
    _num_piece_bytes: int = 0
    _last_piece: Nanos = 0
    _decoder: Decoder | None = None
    _num_held_bytes: int = 0
    _num_json_bytes: int = 0
    _num_reply_lines: int = 0
    _request_body: bytes | None = None

    def take_body(self, part: bytes) -> None:
        """Take in a piece of the request's body; one that is too long is not kept."""
        self.num_body_bytes += len(part)
        self._body += part
        if self.num_body_bytes > MAX_BODY_BYTES or not self._hold():
            self.num_body_bytes = max(self.num_body_bytes, MAX_BODY_BYTES + 1)
            self._body.clear()
            self._hold()

    @property
    def request_body(self) -> bytes:
        """The body of the request without its content coding; empty if it cannot be read."""
        if self._request_body is not None:
            return self._request_body
        try:
            coded = bytes(self._body) if self.num_body_bytes <= MAX_BODY_BYTES else b""
            self._body.clear()
            body = decoded(self.head.header("content-encoding"), coded)
        except UnreadableBodyError:
            body = b""
        self._request_body = body if json_bytes(body) <= MAX_JSON_BYTES else b""
        if not self._hold():
            self._request_body = b""
            self._hold()
        return self._request_body

    def read_request(self, facts: Callable[["Exchange"], RequestMetadata | None], *, is_body_needed: bool) -> None:
        """Have the facts of the request read from its body, which is kept no longer unless it is needed."""
        self.facts = facts(self)
        if not is_body_needed:
            self._request_body = b""
            self._hold()

    def take(self, part: bytes, at: Nanos) -> None:
        """Take in a piece of the reply's body."""
        if not part or self.unread:
            return
        try:
            part = part if self._decoder is None else self._decoder.feed(part)
            self._check(part)
            if self.reply is not None and part:
                self.reply.feed(part, at)
            if self.keeps_content:
                self._keep(part, at)
            if not self._hold():
                raise UnreadableBodyError("the memory for bodies is full")
        except (UnreadableBodyError, ResponseError) as error:
            self._give_up(str(error))

    @property
    def pieces(self) -> list[tuple[Nanos, bytes]]:
        """The body of the reply in its pieces, each with its instant, as far as content is kept."""
        if self.reply is not None and self._is_body_in_reply:
            return [(self._last_piece, self.reply.body)] if self._last_piece else []
        return [(at, bytes(piece)) for at, piece in self._pieces]

    @property
    def _is_body_in_reply(self) -> bool:
        """Whether the reply itself holds its body."""
        reply = self.reply
        return reply is not None and not reply.streaming and reply.status_code == 200

    def _keep(self, part: bytes, at: Nanos) -> None:
        self._last_piece = at
        if self._is_body_in_reply or self.unkept:
            return
        self._num_piece_bytes += len(part)
        if self._num_piece_bytes > MAX_BODY_BYTES:
            self.unkept = f"it is longer than {MAX_BODY_BYTES >> 20} MB"
            self._forget_pieces()
        elif self._pieces and self._pieces[-1][0] == at:
            self._pieces[-1][1].extend(part)
        else:
            self._num_piece_bytes += _PIECE_BYTES
            self._pieces.append((at, bytearray(part)))

    def _forget_pieces(self) -> None:
        self._pieces.clear()
        self._num_piece_bytes = 0

    def _check(self, part: bytes) -> None:
        num_lines = part.count(b"\n")
        self._num_reply_lines += num_lines
        if self._num_reply_lines > MAX_LINES:
            raise UnreadableBodyError(f"it has more than {MAX_LINES} lines")
        # Events are parsed one by one, so only what the last line of a piece began is added up.
        if num_lines and self.reply is not None and self.reply.streaming:
            self._num_json_bytes = json_bytes(part[part.rfind(b"\n") :])
        else:
            self._num_json_bytes += json_bytes(part)
        if self._num_json_bytes > MAX_JSON_BYTES:
            raise UnreadableBodyError(f"its values take more than {MAX_JSON_BYTES >> 20} MB")

    def begin_reply(self, head: Head) -> None:
        """The head of the reply has come."""
        self.reply_head = head
        if self.facts is not None:
            kind = head.headers.get("content-type", "")
            self.reply = Reply(streaming=kind.startswith("text/event-stream"))
            fields = f"HTTP/1.1 {head.status} \r\ncontent-type: {kind}\r\n\r\n"
            self.reply.feed(fields.encode("latin-1", "replace"), self.begun)
            self.reply.first_byte = 0
        try:
            is_stream = self.reply is not None and self.reply.streaming
            limit = MAX_STREAM_BYTES if is_stream else MAX_BODY_BYTES
            self._decoder = Decoder(head.headers.get("content-encoding", ""), limit)
        except UnreadableBodyError as error:
            self._give_up(str(error))

    def end(self, at: Nanos, *, is_whole: bool, by_client: bool = False, reason: str = "") -> None:
        """The reply is complete, or one side has hung up; the proxy itself where there is a reason."""
        reply = self.reply
        self.ended = at
        self.sent = self.sent or at
        was_done = reply is not None and reply.done and not reply.problem
        self.is_whole = is_whole or was_done
        if reply is not None and is_whole and not self.unread:
            reply.end(at)
        status = 0 if self.reply_head is None else self.reply_head.status
        if self.is_whole and status != 200:
            self.status, self.message = "error", f"HTTP {status}"
            self.detail = "" if reply is None else reply.text
        elif self.is_whole:
            self.status = "ok"
            if reply is not None and reply.problem and not self.unread:
                self.status, self.message = "error", "streaming error" if reply.streaming else "malformed answer"
                if reply.is_server_problem:
                    self.detail = reply.problem
                else:
                    self.message += f": {reply.problem}"
        elif by_client:
            self.status, self.message = "incomplete", "the client closed the connection"
        elif reason:
            self.status, self.message = "incomplete", reason
        else:
            self.status, self.message = "error", "the server closed the connection"

    def free(self) -> None:
        """Give the memory of the bodies back."""
        self.memory.give_back(self._num_held_bytes)
        self._num_held_bytes = 0

    def _give_up(self, reason: str) -> None:
        self.unread = reason
        self._forget_pieces()
        if self.reply is not None and not self.reply.streaming:
            self.reply = None
        self._hold()

    def _hold(self) -> bool:
        """Reserve memory for what is held now, or give some back; false where there is not as much."""
        num_bytes = len(self._body) + len(self._request_body or b"") + self._num_piece_bytes
        num_bytes += self.reply.num_held_bytes if self.reply is not None else 0
        num_bytes += len(self.facts.turns.text) if self.facts is not None and self.facts.turns is not None else 0
        if not self.memory.take(num_bytes - self._num_held_bytes):
            return False
        self._num_held_bytes = num_bytes
        return True


_LONG_OUTPUT_TOKENS = 1024


class Conversation:
    """One connection of a client: its requests in turn, and the replies in the same order."""

    def __init__(
        self,
        upstream: int,
        heads: HeadCache,
        *,
        keeps_content: bool,
        keeps_requests: bool,
        memory: MemoryBudget,
        facts: Callable[[Exchange], RequestMetadata | None],
        ended: Callable[[Exchange], None],
    ) -> None:
        self._upstream = upstream
        self._heads = heads
        self._keeps_content = keeps_content
        self._keeps_requests = keeps_requests
        self._memory = memory
        self._has_client_ended = False
        self._facts = facts
        self._ended = ended
        self._reader: RequestReader | None = RequestReader()
        self._open: deque[Exchange] = deque()

    def take(self, message: Message) -> None:
        """Take in what happened on the connection."""
        kind, at = message.kind, message.at
        if kind is EventKind.REQUEST:
            self._take_request(message.payload, at)
        elif kind is EventKind.REPLY:
            self._take_reply(message.payload, at)
        elif kind is EventKind.CLIENT_ENDED:
            self._has_client_ended = True
        elif kind is EventKind.CLIENT_GONE:
            self._end_all(at, by_client=True)
        elif kind is EventKind.STOPPED:
            self.close(at)
        elif kind is EventKind.SERVER_GONE:
            if self._open and self._open[0].reply_head is not None:
                exchange = self._open[0]
                exchange.parser.end()
                if exchange.parser.complete:
                    self._end(at, is_whole=True)
            # A server that closes after its client has done so only follows.
            self._end_all(at, by_client=self._has_client_ended)
        elif kind is EventKind.DROPPED:
            self._give_up()

    @property
    def in_flight_tokens(self) -> int:
        """Tokens of the requests under way, estimated above what they have."""
        return sum(each.num_body_bytes // 2 + _LONG_OUTPUT_TOKENS for each in self._open if each.head.method == "POST")

    def close(self, at: Nanos) -> None:
        """End what is under way: the proxy has stopped."""
        self._end_all(at, reason="the proxy was stopped")

    def _take_request(self, data: bytes, at: Nanos) -> None:
        if self._reader is None:
            return
        try:
            for part in self._reader.feed(data):
                if part.head is not None:
                    keeps = self._keeps_content and part.head.method == "POST"
                    parser = ResponseParser(self._heads)
                    self._open.append(Exchange(self._upstream, part.head, at, keeps, self._memory, parser=parser))
                elif not self._open:
                    continue
                exchange = self._open[-1]
                exchange.take_body(part.body)
                if part.is_end:
                    exchange.sent = at
                    self._read_request(exchange)
        except UnreadableError:
            self._reader = None

    def _take_reply(self, data: bytes, at: Nanos) -> None:
        start = 0
        self._has_client_ended = False  # a client that has only ended its side still reads
        while start < len(data) and self._open:
            exchange = self._open[0]
            parser = exchange.parser
            had_head = exchange.reply_head is not None
            try:
                piece, start = parser.step(data, start)
                head = parser.head
                if head is not None and not had_head:
                    self._begin(exchange, head)
                exchange.take(piece, at)
            except ResponseError:
                self._give_up()
                return
            if head is not None and head.status == 101:
                self._give_up()
            elif parser.complete or (head is not None and exchange.head.method == "HEAD"):
                self._end(at, is_whole=True)

    def _begin(self, exchange: Exchange, head: Head) -> None:
        if not exchange.sent:
            self._read_request(exchange)
        exchange.begin_reply(head)
        exchange.reply_fields = list(head.headers.items())

    def _read_request(self, exchange: Exchange) -> None:
        exchange.read_request(self._facts, is_body_needed=exchange.keeps_content or self._keeps_requests)

    def _end_all(self, at: Nanos, *, by_client: bool = False, reason: str = "") -> None:
        while self._open:
            self._end(at, is_whole=False, by_client=by_client, reason=reason)

    def _end(self, at: Nanos, *, is_whole: bool, by_client: bool = False, reason: str = "") -> None:
        exchange = self._open.popleft()
        exchange.end(at, is_whole=is_whole, by_client=by_client, reason=reason)
        self._ended(exchange)
        exchange.free()

    def _give_up(self) -> None:
        self._reader = None
        while self._open:
            self._open.popleft().free()
