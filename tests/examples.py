"""Numbers of random examples, by hypothesis profile: `daily` by default, `nightly` with a hundred times as many."""

from hypothesis import settings

DAILY, NIGHTLY = 100, 10_000
"""Examples of a test that states no number."""
# A slow machine is no bug: examples have no deadline of their own.
settings.register_profile("daily", deadline=None, max_examples=DAILY)
settings.register_profile("nightly", deadline=None, max_examples=NIGHTLY)


def examples(daily: int) -> int:
    """Return how many examples the profile in use has for a test with `daily` of them every day."""
    return daily * settings().max_examples // DAILY


def is_nightly() -> bool:
    """Return whether the nightly profile is in use."""
    return settings().max_examples >= NIGHTLY
