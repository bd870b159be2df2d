"""The KV blocks of prompts that repeat earlier prompts and replies, by what each row repeats of which other one."""

from collections.abc import Iterable, Mapping, Sequence

from blis_sim.engine.config import EngineConfig
from replay.arrivals.arrival import ConversationBlocks
from traces import TraceRow
from traces.graph import context_of
from traces.waiting import repeated_places


def prompt_tokens_of_conversations(rows: Iterable[TraceRow]) -> dict[int, int]:
    """Tokens of the whole prompt of each row that repeats another one or may be repeated, by its place among `rows`.

    The numbers are the server's counts, which include the tokens around each turn.
    """
    given = list(rows)
    repeating = [row for row in given if row.context_tokens]
    growing = {row.session_id for row in repeating if row.session_id}
    named = {row.request_id: context_of(row) for row in repeating}
    repeated = {each for each in named.values() if each is not None}
    return {
        place: row.server_input_tokens or row.prefix_length + row.input_tokens
        for place, row in enumerate(given)
        if row.session_id in growing or row.request_id in repeated or named.get(row.request_id) is not None
    }


def blocks_of_conversations(
    rows: Sequence[TraceRow], ids: Sequence[str], prompt_tokens: Mapping[int, int], config: EngineConfig
) -> dict[int, ConversationBlocks]:
    """The blocks of these prompts, by the same places. A row shares its `context_tokens` with the row that it names,
    else with the round before it, and with no other row where that one is missing.
    """
    before = repeated_places(rows)
    found: dict[int, ConversationBlocks] = {}
    for place in prompt_tokens:
        chain: dict[int, None] = {}
        at: int | None = place
        while at is not None and at not in found and at not in chain:
            chain[at] = None
            at = before.get(at)
        for each in reversed(chain):
            parent = found.get(before.get(each, -1)) or ConversationBlocks(f"before {ids[each]}", 0)
            found[each] = _blocks(rows[each], ids[each], prompt_tokens[each], parent, config)
    return found


def _blocks(
    row: TraceRow, request_id: str, prompt_tokens: int, parent: ConversationBlocks, config: EngineConfig
) -> ConversationBlocks:
    num_before = config.num_identified_blocks(min(row.context_tokens, prompt_tokens))
    owners, ends = parent.first(num_before) if num_before else ((), ())
    return ConversationBlocks(
        request_id,
        num_shareable=(prompt_tokens + max(0, row.output_tokens - 1)) // config.block_size_tokens,
        owners=owners,
        ends=ends,
        group=row.prefix_group,
        shared_blocks=config.num_identified_blocks(row.prefix_length) if row.prefix_group else 0,
    )
