"""Traces of agents: a question, helpers side by side that repeat it, and a join, as often as a test needs it."""

from random import Random
from typing import Any

from tests.replay.small_traces import row
from traces import TraceRow


def agent(
    first_id: int, start_us: int, random: Random, *, num_helpers: int = 3, question_tokens: int = 80
) -> list[TraceRow]:
    """One agent: a question, helpers that go on from its reply, and two more turns behind all of them."""
    rows: list[TraceRow] = []

    def ask(at_us: int, parents: list[TraceRow], context: TraceRow | None, own_tokens: int, pause_us: int) -> TraceRow:
        context_tokens = 0 if context is None else context.prefix_length + context.input_tokens + context.output_tokens
        named: dict[str, Any] = {} if context is None else {"context_of": str(context.request_id)}
        made = row(
            first_id + len(rows),
            start_us + at_us,
            session_id=f"agent-{first_id}",
            input_tokens=context_tokens + own_tokens,
            output_tokens=random.randint(6, 30),
            parents=" ".join(str(each.request_id) for each in parents),
            think_time_us=pause_us if parents else 0,
            context_tokens=context_tokens,
            **named,
        )
        rows.append(made)
        return made

    question = ask(0, [], None, question_tokens, 0)
    helpers = [ask(900_000, [question], question, random.randint(10, 60), 5_000 * n) for n in range(num_helpers)]
    deeper = ask(1_500_000, helpers[:1], helpers[0], 25, 10_000)
    join = ask(2_400_000, [*helpers[1:], deeper], question, 70, 20_000)
    ask(3_200_000, [join], join, 30, 15_000)
    return rows


def agents(count: int, seed: int = 1, **settings: int) -> list[TraceRow]:
    """Return this number of agents, begun a fifth of a second after each other."""
    random, rows = Random(seed), list[TraceRow]()
    for number in range(count):
        rows += agent(len(rows), number * 200_000, random, **settings)
    return rows
