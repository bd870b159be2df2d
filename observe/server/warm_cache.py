"""Warns when the server's prefix cache held far more of the prompts than they share with each other."""

from collections.abc import Mapping, Sequence
from time import perf_counter_ns

from observe.client.client import Client
from observe.http.request import get_bytes
from observe.messages import warn
from observe.requests.schedule import Planned
from observe.server.scraper import Reading, observed_hit_rate, reading_of

_TIMEOUT_S = 1
_SURPRISE = 0.3
"""Share of the prompt tokens beyond the shared ones that the cache may hold: chat templates, blocks that are cut."""


async def metrics_page(client: Client, headers: Mapping[str, str]) -> Reading | None:
    """Return the metrics of the server at this instant, None where there are none."""
    outcome = await client.fetch(get_bytes(client.server, "/metrics", headers), timeout_s=_TIMEOUT_S)
    if outcome.reply.status_code != 200 or not outcome.reply.complete:
        return None
    return reading_of(outcome.reply.text, client.clock.epoch_us(perf_counter_ns()))


def shared_share(plan: Sequence[Planned]) -> float:
    """The largest share of the prompt tokens of a plan that its own requests can leave in a prefix cache."""
    shared = sum(each.prefix_tokens + each.context_tokens for each in plan)
    return shared / max(1, sum(each.prefix_tokens + each.input_tokens for each in plan))


def warn_of_warm_cache(before: Reading | None, after: Reading | None, expected: float, seed: int) -> None:
    """Warn when the share of prompt tokens that the cache held between two readings is far above the expected one."""
    found = None if before is None or after is None else observed_hit_rate(before, after)
    if found is None or found["hit_rate"] <= expected + _SURPRISE:
        return
    warn(
        f"the server's prefix cache held {found['hit_rate']:.0%} of the prompt tokens, of which the requests share at "
        f"most {expected:.0%} with each other: an earlier run with --seed {seed} has sent these prompts, so TTFT is "
        "that of a warm cache; give another --seed, or empty the cache (POST /reset_prefix_cache)"
    )
