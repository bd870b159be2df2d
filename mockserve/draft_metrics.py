"""What vLLM's metrics say of speculative decoding. Without it they are not there."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from engine.stats import EngineCounters


def draft_families(counters: EngineCounters, labels: Mapping[str, str], created: float) -> Iterator[Metric]:
    """The counters, the last of which has a sample for each place in a draft."""
    rows = (
        ("num_drafts", "Times that drafted tokens of a request were verified.", counters.num_drafts),
        ("num_draft_tokens", "Tokens drafted.", counters.num_draft_tokens),
        ("num_accepted_tokens", "Drafted tokens accepted.", counters.num_accepted_tokens),
    )
    for name, help_text, value in rows:
        family = CounterMetricFamily(f"vllm:spec_decode_{name}", help_text, labels=list(labels))
        family.add_metric(list(labels.values()), value, created=created)
        yield family
    family = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Drafted tokens accepted, by their place in the draft.",
        labels=[*labels, "position"],
    )
    for position, count in enumerate(counters.num_accepted_per_position):
        family.add_metric([*labels.values(), str(position)], count, created=created)
    yield family
