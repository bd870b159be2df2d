"""Facts that the body of a request shows: model, size and shared start of the prompt, and its session."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

from observe.clock import Nanos

_MAX_ROUNDS = 100_000
_MAX_OF_ONE_KEY = 8
_MAX_TEXTS = 128


@dataclass(slots=True)
class Round:
    """A request of a session, with its figures once it has ended."""

    session_id: str
    index: int
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


def digest(*parts: bytes) -> bytes:
    """Sixteen bytes that stand for these parts."""
    made = blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8, "big"))
        made.update(part)
    return made.digest()


@dataclass(slots=True)
class SessionTracker:
    """Finds the latest requests by their turns, at most 100,000 of them. Sessions are numbered from `num_sessions`."""

    num_sessions: int = 0
    _rounds: "OrderedDict[bytes, list[Round]]" = field(default_factory=OrderedDict)
    _texts: "OrderedDict[tuple[bytes, bytes], tuple[int, Round]]" = field(default_factory=OrderedDict)

    def place(self, turns: Turns, sent: Nanos) -> tuple[Round, Round | None]:
        """The round of a request sent at this instant, and the one that it goes on with; None where it begins a
        session."""
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


def _chain(start: bytes, digests: Sequence[bytes]) -> list[bytes]:
    """The digest of nothing, of the first turn, of the first two, and so on."""
    chain = [start]
    for each in digests:
        chain.append(digest(chain[-1], each))
    return chain


GENERATING = ("/chat/completions", "/completions", "/responses", "/messages")
"""Ends of the paths at which tokens are generated."""

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
    has_media: bool = False
    """Whether the prompt has images, sounds or files, whose tokens do not follow from bytes."""
    shared_start: bytes = b""
    """Digest of that start; empty without one."""
    turns: Turns | None = None


def is_generating(method: str, target: str) -> bool:
    """Return whether a request to this target generates tokens."""
    return method == "POST" and target.partition("?")[0].rstrip("/").endswith(GENERATING)


def request_metadata_of(body: bytes, client: bytes) -> RequestMetadata:
    """The facts of a body, as far as it is JSON; `client` keeps conversations of different clients apart."""
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError:
        return RequestMetadata(num_prompt_bytes=len(body))
    if not isinstance(members, dict):
        return RequestMetadata(num_prompt_bytes=len(body))
    model = members.get("model")
    priority = members.get("priority")
    name = model if isinstance(model, str) else ""
    common: dict[str, Any] = {
        "model": name,
        "is_streaming": members.get("stream") is True,
        "priority": priority if type(priority) is int and 0 <= priority < 2**31 else None,
    }
    if "prompt" in members and "messages" not in members:
        return _of_prompt(members["prompt"], digest(client, name.encode()), common)
    items = _items(members)
    start = [members[key] for key in ("system", "instructions", "tools") if members.get(key)]
    num_leading = next((at for at, each in enumerate(items) if each.get("role") not in _INSTRUCTING), len(items))
    shared = [*start, *items[:num_leading]]
    key = _dump(shared)
    turns = items[num_leading:]
    # Tools come into the prompt as JSON, names of members included.
    tools = members.get("tools")
    num_shared_bytes = _num_bytes([each for each in shared if each is not tools]) + (len(_dump(tools)) if tools else 0)
    bare = not members.get("previous_response_id")
    return RequestMetadata(
        **common,
        num_prompt_bytes=num_shared_bytes + _num_bytes(turns),
        num_shared_bytes=num_shared_bytes,
        has_media=_has_media(items),
        shared_start=digest(name.encode(), key) if shared else b"",
        turns=_turns(digest(client, name.encode(), key), turns) if turns and bare else None,
    )


def _of_prompt(prompt: Any, start: bytes, common: Mapping[str, Any]) -> RequestMetadata:
    prompts = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
    if len(prompts) == 1 and isinstance(prompts[0], str):
        text = prompts[0].encode("utf-8", "replace")
        return RequestMetadata(**common, num_prompt_bytes=len(text), turns=Turns(start, text=text) if text else None)
    num_ids = sum(len(each) for each in prompts if isinstance(each, list))
    return RequestMetadata(**common, num_prompt_bytes=_num_bytes(prompts) + num_ids * BYTES_PER_TOKEN)


BYTES_PER_TOKEN = 4
"""Bytes of text that stand for a token where no reply has shown how many there are."""


def _items(members: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a conversation in any of the interfaces."""
    found = members.get("messages", members.get("input"))
    if isinstance(found, str):
        return [{"role": "user", "content": found}]
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _turns(start: bytes, items: Sequence[dict[str, Any]]) -> Turns:
    replies = [digest(_text(each).strip()) if each.get("role") == "assistant" else b"" for each in items]
    return Turns(start, [digest(_dump(each)) for each in items], replies)


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
