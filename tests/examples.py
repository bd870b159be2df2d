"""Numbers of random examples, by hypothesis profile: `daily`, which has half of those that a test states, by default.

`nightly` has a hundred times as many as stated, and `tenth` is for what another run of the same tests shows as well.
Examples are the same in every run, but in those of `nightly`, which look for cases that were not seen yet: a second
half of the same examples shows less in a suite than it costs.
"""

from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

STATED, DAILY, NIGHTLY, TENTH = 100, 50, 10_000, 10
"""Examples of a test that states no number: as if it stated the first, and by profile."""
# A slow machine is no bug: examples have no deadline of their own. Under a CI's variables hypothesis derandomizes what
# does not say otherwise.
settings.register_profile("daily", deadline=None, max_examples=DAILY, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=NIGHTLY, derandomize=False)
settings.register_profile("tenth", deadline=None, max_examples=TENTH, derandomize=True)


def examples(stated: int) -> int:
    """Return how many examples the profile in use has for a test that states so many."""
    return max(1, stated * settings().max_examples // STATED)


def is_nightly() -> bool:
    """Return whether the nightly profile is in use."""
    return settings().max_examples >= NIGHTLY


_constants_of_loaded_modules = providers._get_local_constants
_NO_CONSTANTS = Constants()


def _constants() -> Constants:
    """Numbers and words that hypothesis mixes into what it draws.

    By itself it takes those of all modules that are loaded. What one test draws would depend on the tests before it and
    on every change of a module, so the nightly profile alone has them.
    """
    return _constants_of_loaded_modules() if is_nightly() else _NO_CONSTANTS


providers._get_local_constants = _constants
