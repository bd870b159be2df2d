"""Sessions recognised in requests: one whose turns begin with those of an earlier one goes on with it."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from observe.clock import Nanos

_MOST_ROUNDS = 100_000
_MOST_OF_ONE_KEY = 8
_MOST_TEXTS = 128


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
class SessionBook:
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
                while len(self._texts) > _MOST_TEXTS:
                    self._texts.popitem(last=False)
            return
        this.reply_digest = digest(reply.strip())
        key = _chain(turns.start, turns.digests)[-1]
        rounds = self._rounds.setdefault(key, [])
        self._rounds.move_to_end(key)
        rounds.append(this)
        del rounds[:-_MOST_OF_ONE_KEY]
        while len(self._rounds) > _MOST_ROUNDS:
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
