"""Calls of agents with begin and end as rows of a graph: dependencies follow from times and from nesting."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from traces.graph import ids_text
from traces.rows import TraceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request of an agent, in microseconds from the start of its session.

    `path` names what it was made inside, the session first, then agents and tools from the outermost one on.
    """

    start_us: int
    end_us: int
    path: tuple[str, ...]
    input_tokens: int
    output_tokens: int
    model: str = ""
    streaming: bool = False
    hash_ids: tuple[int, ...] = ()


@dataclass(slots=True)
class _Node:
    """A place in the tree of block hashes, with the first request that has these blocks."""

    owner: int
    children: dict[int, "_Node"] = field(default_factory=dict)


class BlockHashTree:
    """Finds the earlier request with which the hashes of a request's blocks have most in common from the start."""

    def __init__(self) -> None:
        self._root = _Node(-1)

    def add(self, number: int, hash_ids: Sequence[int]) -> tuple[int | None, int]:
        """Add a request; return the earlier one, and how many blocks both begin with."""
        node, depth = self._root, 0
        while depth < len(hash_ids) and hash_ids[depth] in node.children:
            node = node.children[hash_ids[depth]]
            depth += 1
        found = (node.owner, depth) if depth else (None, 0)
        for each in hash_ids[depth:]:
            node.children[each] = _Node(number)
            node = node.children[each]
        return found

    def repeated(
        self, number: int, hash_ids: Sequence[int], prompt_tokens: int, block_tokens: int
    ) -> tuple[int | None, int]:
        """Add a request; return the earlier one, and how many tokens of it this one begins with.

        At least one token is the request's own. Without a common token there is no earlier one.
        """
        other, num_blocks = self.add(number, hash_ids)
        tokens = min(num_blocks * block_tokens, max(0, prompt_tokens - 1))
        return other if tokens else None, tokens


def rows_of(calls: Sequence[Call], session_id: str, first_id: int, start_us: int, block_tokens: int) -> list[TraceRow]:
    """The rows of one session, by begin, numbered from `first_id`.

    A call waits for those that had ended when it began, as far as these were made in the same place. The innermost
    place around it with an ended call counts. Those that others of them have waited for are not named. With hashes
    prompts repeat what these say; without, the call before in the same place, where they are longer.
    """
    in_order = sorted(calls, key=lambda call: (call.start_us, call.end_us))
    ancestors: list[int] = []  # of each call, as bits
    shared = BlockHashTree()
    rows = []
    for place, call in enumerate(in_order):
        parents = _parents(in_order[:place], call, ancestors)
        ancestors.append(sum(1 << each for each in parents) | _joined(parents, ancestors))
        context, tokens = _context(in_order, place, parents, shared, block_tokens)
        ended_us = max((in_order[each].end_us for each in parents), default=call.start_us)
        rows.append(
            TraceRow(
                request_id=first_id + place,
                session_id=session_id,
                round_index=place,
                model=call.model,
                streaming=call.streaming,
                arrival_time_us=start_us + call.start_us,
                input_tokens=call.input_tokens,
                output_tokens=call.output_tokens,
                parents=ids_text(first_id + each for each in parents),
                think_time_us=max(0, call.start_us - ended_us),
                context_of="" if context is None else str(first_id + context),
                context_tokens=0 if context is None else tokens,
            )
        )
    return rows


def _joined(parents: Sequence[int], ancestors: Sequence[int]) -> int:
    joined = 0
    for each in parents:
        joined |= ancestors[each]
    return joined


def _parents(before: Sequence[Call], call: Call, ancestors: Sequence[int]) -> list[int]:
    for depth in range(len(call.path), 0, -1):
        inside = call.path[:depth]
        ended = [
            place for place, each in enumerate(before) if each.end_us <= call.start_us and each.path[:depth] == inside
        ]
        if ended:
            waited_for = _joined(ended, ancestors)
            return [each for each in ended if not waited_for >> each & 1]
    return []


def _context(
    calls: Sequence[Call], place: int, parents: Sequence[int], shared: BlockHashTree, block_tokens: int
) -> tuple[int | None, int]:
    """The call whose text this one repeats, and how many tokens of it."""
    call = calls[place]
    if not call.hash_ids:
        same = [each for each in range(place) if calls[each].path == call.path and calls[each].end_us <= call.start_us]
        last = max(same, key=lambda each: calls[each].end_us, default=None)
        said = 0 if last is None else calls[last].input_tokens + calls[last].output_tokens
        return (last, said) if 0 < said < call.input_tokens else (None, 0)
    other, num_blocks = shared.add(place, call.hash_ids)
    if other is None:
        return None, 0
    before = calls[other]
    said = before.input_tokens + before.output_tokens
    if (
        before.end_us <= call.start_us
        and num_blocks >= before.input_tokens // block_tokens
        and said < call.input_tokens
    ):
        return other, said  # the hashes of a prompt end before its reply, which is in this one all the same
    return other, min(num_blocks * block_tokens, call.input_tokens - 1)
