"""Chooses the latency model of a deployment, with a note on the choice and the errors to expect."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from blis_sim.engine.engine_defaults import AUTO
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.registry import DEFAULT_LATENCY_MODEL, build

if TYPE_CHECKING:
    from blis_sim.engine.latency.kernels.placing import KernelPlacement


class Chosen(NamedTuple):
    """A latency model with its name, and what is to be said of it."""

    name: str
    latency: LatencyModel
    notes: tuple[str, ...]


def choose(step_times: str, choice: LatencyChoice) -> Chosen:
    """Return the latency model called `step_times`, for `auto` the one that is closest by what was measured.

    Raises EngineError when it cannot time the deployment.
    """
    notes: list[str] = []
    if step_times == AUTO and choice.coefficients is not None:
        from blis_sim.engine.latency.coefficients_file import read_content

        choice = replace(choice, learned=read_content(choice.coefficients))  # once: it may be a pipe
    name = _automatic(choice, notes) if step_times == AUTO else step_times
    latency = build(name, choice)
    if name == "fitted":
        latency = _said_of_fitted(latency, choice, step_times == AUTO, notes)
    elif name == "kernels":
        notes.extend(_said_of_kernels(latency))
    elif name == "operators":
        from blis_sim.engine.latency.operators.sources import notes_on_tables

        notes.extend(notes_on_tables(latency))
    if choice.placement is not None:
        notes.extend(_said_of_placement(choice.placement, name))
    return Chosen(name, latency, tuple(notes))


def watched_choice(chosen: Chosen, choice: LatencyChoice, max_tokens: int) -> LatencyModel:
    """Return a latency model with a watch for steps that beat the peak rates of the GPU, where it needs one.

    Coefficients from the command line are taken at their word.
    """
    from blis_sim.engine.latency.kernels.peaks import step_peaks
    from blis_sim.engine.latency.kernels.placing import operations_of
    from blis_sim.engine.latency.operators.asked import HasTables
    from blis_sim.engine.latency.peak_watch import watched

    if choice.dp > 1 or choice.beta or choice.placement is None or chosen.name == "adaptive-toy":
        return chosen.latency
    try:
        peaks = step_peaks(operations_of(choice.model, choice.placement), choice.gpu)
    except EngineError:  # without its layers nothing is known of the least time of a step
        return chosen.latency
    latency = watched(chosen.latency, chosen.name, peaks, max_tokens, choice.max_num_seqs)
    if isinstance(chosen.latency, HasTables):
        chosen.latency.forget_asked()
    return latency


def _automatic(choice: LatencyChoice, notes: list[str]) -> str:
    """The name of the model that predicts a deployment best."""
    if choice.beta:
        return DEFAULT_LATENCY_MODEL
    if choice.dp > 1:
        notes.append(
            f"step times are those of {DEFAULT_LATENCY_MODEL}: nothing was learned with --data-parallel-size above 1"
        )
        return DEFAULT_LATENCY_MODEL
    if choice.coefficients is not None:
        from blis_sim.engine.latency.coefficients_file import latency_model_of

        return latency_model_of(choice.coefficients, choice.learned or {})
    placement = choice.placement
    if placement is None:
        return "fitted"
    if placement.profile is None and not _speaks_for_kernels(choice):
        return "fitted"
    return "kernels" if _are_covered(choice, placement, notes) else "fitted"


def _speaks_for_kernels(choice: LatencyChoice) -> bool:
    """Whether what was measured of servers of this kind speaks for kernels."""
    from blis_sim.engine.latency.kernels.evidence import kernels_are_closer

    return choice.engine == "vllm" and kernels_are_closer(choice.model, choice.gpu, choice.tp)


def _are_covered(choice: LatencyChoice, placement: "KernelPlacement", notes: list[str]) -> bool:
    """Whether there are kernel times of the deployment; one line states their expected error."""
    from blis_sim.engine.latency.kernels.evidence import expectation
    from blis_sim.engine.latency.kernels.placing import operations_of
    from blis_sim.engine.latency.kernels.sources import grids_of

    try:
        grids_of(choice.model, choice.gpu, placement)
        expected = expectation(operations_of(choice.model, placement))
    except EngineError:
        if placement.profile is not None:
            raise
        return False
    notes.append(f"step times are those of measured kernels: {expected}")
    return True


def _said_of_fitted(latency: LatencyModel, choice: LatencyChoice, is_automatic: bool, notes: list[str]) -> LatencyModel:
    from blis_sim.engine.latency.coefficients_file import notes_on_coefficients
    from blis_sim.engine.latency.wrapped import RangeWatch

    assert isinstance(latency, RangeWatch)
    learned_elsewhere = list(
        notes_on_coefficients(
            latency.learned_for, choice.coefficients, choice.model, choice.gpu, choice.tp, choice.engine
        )
    )
    notes.extend(learned_elsewhere)
    if learned_elsewhere and is_automatic:
        return latency.model  # the note above covers more than a line on each range that a run leaves
    return latency


def _said_of_placement(placement: "KernelPlacement", name: str) -> Iterator[str]:
    """Yield a line on each flag about kernels that does not act."""
    from blis_sim.engine.latency.kernels.operations import AUTO, MARLIN

    if name != "kernels" and placement.eager:
        yield f"warning: --enforce-eager has no effect on step times of {name}, only on those of kernels"
    if placement.moe_backend != AUTO and (name, placement.moe_backend) != ("kernels", MARLIN):
        yield (
            f"warning: --moe-backend {placement.moe_backend} has no effect on step times of {name}, "
            f"only {MARLIN} on those of kernels"
        )


def _said_of_kernels(latency: LatencyModel) -> Iterator[str]:
    from blis_sim.engine.latency.kernel_steps import KernelSteps

    if isinstance(latency, KernelSteps) and latency.grids.notes:
        yield f"kernel times were repaired: {'; '.join(latency.grids.notes)}"
