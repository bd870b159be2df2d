"""One latency model for one question: the closest that can time every deployment of the question."""

from collections.abc import Sequence
from typing import NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.confidence import Sureness, expected


class OneModel(NamedTuple):
    """The latency model of a question, with the statement on each of its deployments.

    `reasons` are, in the order of the deployments, why the model cannot time one; empty where it can.
    """

    name: str
    sureness: tuple[Sureness, ...]
    reasons: tuple[str, ...]

    @property
    def least_sure(self) -> Sureness:
        """The statement on the covered deployment with the largest expected error."""
        covered = [each for each, reason in zip(self.sureness, self.reasons, strict=True) if not reason]
        return max(covered or self.sureness, key=lambda each: each.expected_error)


def one_model(choices: Sequence[LatencyChoice]) -> OneModel:
    """Return the latency model with the least expected error that covers all deployments, else that which covers most.

    The order of the deployments makes no difference. Raises EngineError where no model covers any.
    """
    from blis_sim.engine.latency.registry import automatic_names

    allowed = [automatic_names(each) for each in choices]
    names = list(dict.fromkeys(name for each in allowed for name in each))
    stated = {name: tuple(expected(name, each) for each in choices) for name in names}
    found = best = OneModel("", (), ("there is no deployment to time",))
    for name in sorted(names, key=lambda each: (_mean_error(stated[each]), each)):
        reasons = tuple(
            _refusal(name, choice) if name in each else f"{name} cannot time it"
            for choice, each in zip(choices, allowed, strict=True)
        )
        found = OneModel(name, stated[name], reasons)
        if not any(reasons):
            return found
        if reasons.count("") > best.reasons.count(""):
            best = found
    if "" not in best.reasons:
        raise EngineError(found.reasons[0])  # of the model that takes most
    return best


def _mean_error(stated: Sequence[Sureness]) -> float:
    return sum(each.expected_error for each in stated) / len(stated)


def _refusal(name: str, choice: LatencyChoice) -> str:
    """Return why a latency model cannot time a deployment; empty where it can."""
    from blis_sim.engine.latency.registry import build

    try:
        build(name, choice)
    except EngineError as error:
        return str(error)
    return ""
