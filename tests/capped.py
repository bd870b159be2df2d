"""A recording by a client with a cap on requests in flight, made up: a server that takes 100 ms for each request."""

from typing import Any

from traces import TraceRow


def capped_rows(count: int, cap: int, due_every_us: int = 10_000, **fields: Any) -> list[TraceRow]:
    """Requests due at even intervals and sent in this order, as soon as less than `cap` are in flight."""
    rows: list[TraceRow] = []
    ends = [0] * cap
    for number in range(count):
        due_us = number * due_every_us
        sent_us = 5_000_000 + max(due_us, ends[number % cap] + 30)
        ends[number % cap] = sent_us - 5_000_000 + 100_000
        times = {"first_chunk_time_us": sent_us + 20_000, "last_chunk_time_us": sent_us + 100_000}
        given = {"request_id": number, "input_tokens": 10, "output_tokens": 5, "status": "ok", **times, **fields}
        rows.append(TraceRow(arrival_time_us=due_us, send_time_us=sent_us, **given))
    return rows
