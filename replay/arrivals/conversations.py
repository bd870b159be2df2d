"""Which rows of a trace go on where others ended: the rounds of conversations that send back what was said."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from blis_sim.engine.config import EngineConfig
from replay.arrivals.conversation_blocks import ConversationBlocks
from traces import TraceRow


def prompt_tokens_of_conversations(rows: Iterable[TraceRow]) -> dict[int, int]:
    """Tokens of the whole prompt of each row that is part of such a conversation, by its place among `rows`.

    They are as the server counted them, for it counts what surrounds each turn, too.
    """
    given = list(rows)
    growing = {row.session_id for row in given if row.session_id and row.context_tokens}
    return {
        place: row.server_input_tokens or row.prefix_length + row.input_tokens
        for place, row in enumerate(given)
        if row.session_id in growing
    }


def blocks_of_conversations(
    rows: list[TraceRow], ids: list[str], prompt_tokens: Mapping[int, int], config: EngineConfig
) -> dict[int, ConversationBlocks]:
    """The blocks of these prompts, by the same places. What a row says that it has in common with the round before it,
    it has in common with that row, and with nobody where that row is missing.
    """
    sessions: dict[str, list[int]] = defaultdict(list)
    for place in prompt_tokens:
        sessions[rows[place].session_id].append(place)
    found: dict[int, ConversationBlocks] = {}
    for places in sessions.values():
        places.sort(key=lambda place: rows[place].round_index)
        before: tuple[int, ConversationBlocks] | None = None
        for place in places:
            row = rows[place]
            follows = before is not None and before[0] == row.round_index - 1
            parent = before[1] if before is not None and follows else ConversationBlocks(f"before {ids[place]}", 0)
            blocks = _blocks(row, ids[place], prompt_tokens[place], parent, config)
            found[place] = blocks
            before = (row.round_index, blocks)
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
