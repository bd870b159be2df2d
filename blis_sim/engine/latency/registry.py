"""The latency models by name, and the choice of one for a deployment, with a note and the errors to expect.

An engine has one of them, and only that is imported. `LATENCY_MODELS` feeds the choices of `--latency-model` and its
error text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from blis_sim.engine.engine_defaults import AUTO
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.choice import TABLES, LatencyChoice
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.options.registry import Registry

if TYPE_CHECKING:
    from blis_sim.engine.latency.collectives import Network
    from blis_sim.engine.latency.confidence import Sureness
    from blis_sim.engine.latency.model_operations import KernelPlacement

DEFAULT_LATENCY_MODEL = "trained-physics"


_WITH_COLLECTIVES = ("kernels", "operators", "trained-physics", "roofline")
"""Latency models whose exchanges can be replaced, or that have none. Others are learned from whole steps."""
_WITH_COLLECTIVES_TEXT = f"{', '.join(_WITH_COLLECTIVES[:-1])} or {_WITH_COLLECTIVES[-1]}"


def build(name: str, choice: LatencyChoice) -> LatencyModel:
    """The latency model called `name` for `choice`. Raises EngineError when it cannot time that."""
    if name not in LATENCY_MODELS:
        raise EngineError(f"latency_model must be one of {', '.join(LATENCY_MODELS)}, got {name!r}")
    if bool(choice.alpha) != bool(choice.beta):
        raise EngineError("alpha_coeffs and beta_coeffs must be given together")
    if choice.network.collectives != TABLES and name not in _WITH_COLLECTIVES:
        raise EngineError(f"--collectives needs --latency-model {_WITH_COLLECTIVES_TEXT}, the model is {name}")
    latency: object = LATENCY_MODELS[name](choice)
    if not isinstance(latency, LatencyModel):
        found = type(latency).__name__
        raise EngineError(
            f"latency model {name}: expected a subclass of {LatencyModel.__module__}.LatencyModel, got {found}"
        )
    return latency


def _trained_physics(choice: LatencyChoice) -> LatencyModel:
    from blis_sim.engine.latency.catalogue_reader import trained_coefficients
    from blis_sim.engine.latency.trained_physics import TrainedPhysics

    model, tp = choice.model, choice.tp
    if choice.engine == "blis" and model.num_heads % tp == 0 and model.num_kv_heads % tp:
        raise EngineError(f"{model.name} has {model.num_kv_heads} KV heads, which tp {tp} does not divide")
    alpha, beta = (choice.alpha, choice.beta) if choice.beta else trained_coefficients("trained-physics")
    network = _network(choice)
    if network is not None:  # in place of its own exchanges, which the fourth and the last beta weigh
        beta = tuple(0.0 if place in (3, 10) else value for place, value in enumerate(beta))
    physics = TrainedPhysics(model, choice.gpu, tp, alpha, beta, choice.dp, choice.moe_comm_backend)
    return _exchanging(physics, choice, network)


def _roofline(choice: LatencyChoice) -> LatencyModel:
    from blis_sim.engine.latency.roofline import Roofline

    if choice.beta:
        raise EngineError(
            "the roofline model takes no alpha_coeffs and beta_coeffs; it computes from sizes and rates alone"
        )
    _check_no_dp("roofline", choice)
    return _exchanging(Roofline(choice.model, choice.gpu, choice.tp), choice, _network(choice))


def _blackbox(choice: LatencyChoice) -> LatencyModel:
    from blis_sim.engine.latency.blackbox import Blackbox
    from blis_sim.engine.latency.catalogue_reader import blackbox_coefficients

    _check_no_dp("blackbox", choice)
    if choice.beta:
        return Blackbox(choice.alpha, choice.beta)
    return Blackbox(*blackbox_coefficients(choice.model.name, choice.gpu.name, choice.tp))


def _check_no_dp(name: str, choice: LatencyChoice) -> None:
    if choice.dp > 1:
        raise EngineError(
            f"the {name} model does not support dp, only trained-physics and kernels do; dp must be 1, got {choice.dp}"
        )


def _fitted(choice: LatencyChoice) -> LatencyModel:
    from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS
    from blis_sim.engine.latency.coefficients_file import SHIPPED, read_coefficients
    from blis_sim.engine.latency.fitted import Fitted
    from blis_sim.engine.latency.wrapped import RangeWatch

    if choice.beta:
        raise EngineError("the fitted model takes no alpha_coeffs and beta_coeffs, it has a file of coefficients")
    _check_no_dp("fitted", choice)
    path = LEARNED_COEFFICIENTS if choice.coefficients is None else choice.coefficients
    learned = read_coefficients(path, choice.learned)
    fitted = Fitted(choice.model, choice.gpu, choice.tp, learned.step, learned.request, learned.growth_requests)
    origin = SHIPPED if choice.coefficients is None else "--coefficients"
    return RangeWatch(fitted, learned.seen, learned.seen_prompts, origin, learned.learned_for)


def _kernels(choice: LatencyChoice) -> LatencyModel:
    from blis_sim.engine.latency.kernel_profiles import (
        UNHIDDEN_HOST_US,
        UNHIDDEN_SEQUENCE_US,
        decode_rows,
        grids_of,
        has_one_attention_call,
        latent_layers,
        read_learned,
        shipped_learned,
    )
    from blis_sim.engine.latency.kernels import EAGER_LAUNCH_US, KernelSteps, graph_sizes
    from blis_sim.engine.latency.model_operations import KernelPlacement, operations_of

    if choice.beta:
        raise EngineError("the kernels model takes no alpha_coeffs and beta_coeffs, it has measured kernels")
    placement = choice.placement or KernelPlacement(tp=choice.tp, dp=choice.dp)
    if placement.dp != choice.dp or choice.network.collectives != TABLES:  # steps of all ranks at once, or their own
        _check_no_dp("kernels", choice)
    path = choice.coefficients
    host, scales = shipped_learned(choice.model) if path is None else read_learned(path, choice.learned)
    operations = operations_of(choice.model, placement)
    sequence_us = 0.0
    if path is None:
        unhidden_us = 0.0
        if not placement.composes_ahead:
            unhidden_us, sequence_us = UNHIDDEN_HOST_US, UNHIDDEN_SEQUENCE_US
        latent_us = placement.latent_host_us * latent_layers(operations)
        host = replace(host, step_us=host.step_us + unhidden_us + latent_us)
    grids = grids_of(choice.model, choice.gpu, placement)
    network = _network(choice)
    if network is not None:
        from blis_sim.engine.latency.collectives import with_exchanges

        grids = with_exchanges(grids, network, choice.model, choice.tp)
    sizes = () if placement.eager else graph_sizes(choice.gpu.compute_capability, choice.max_num_seqs)
    return KernelSteps(
        grids,
        host,
        scales,
        sizes,
        launch_us=EAGER_LAUNCH_US if placement.eager else 0.0,
        decode_rows=decode_rows(operations, choice.gpu),
        has_one_attention_call=has_one_attention_call(operations, choice.gpu),
        sequence_us=sequence_us,
    )


def _operators(choice: LatencyChoice) -> LatencyModel:
    from blis_sim.engine.latency.operator_sources import build_operators

    return build_operators(choice, _network(choice))


def _network(choice: LatencyChoice) -> "Network | None":
    """Return the network of --collectives; None where the times are those of tables."""
    if choice.network.collectives == TABLES:
        return None
    from blis_sim.engine.latency.collectives import network_of

    return network_of(choice.network, choice.gpu, choice.tp, choice.pp)


def _exchanging(latency: LatencyModel, choice: LatencyChoice, network: "Network | None") -> LatencyModel:
    """Return a latency model without exchanges with those of a network, if there is one. Raises EngineError."""
    if network is None:
        return latency
    from blis_sim.engine.latency.collectives import ExchangingSteps, StepExchanges

    exchanges = StepExchanges(network, choice.model, choice.tp, choice.dp, choice.moe_comm_backend)
    exchanges.micros(choice.dp)  # a bandwidth that is missing is reported before the run
    return ExchangingSteps(latency, exchanges)


def _adaptive_toy(_choice: LatencyChoice) -> LatencyModel:
    from blis_sim.engine.latency.blackbox import AdaptiveToy

    return AdaptiveToy()


LATENCY_MODELS = Registry[Callable[[LatencyChoice], LatencyModel]]("blis.latency_models", "step_time") | {
    "trained-physics": _trained_physics,
    "roofline": _roofline,
    "blackbox": _blackbox,
    "fitted": _fitted,
    "kernels": _kernels,
    "operators": _operators,
    "adaptive-toy": _adaptive_toy,
}


class LatencySelection(NamedTuple):
    """A latency model with its name, and notes on it."""

    name: str
    latency: LatencyModel
    notes: tuple[str, ...]


def choose(step_times: str, choice: LatencyChoice) -> LatencySelection:
    """Return the latency model called `step_times`, for `auto` the one that is closest by what was measured.

    Raises EngineError when it cannot time the deployment.
    """
    notes: list[str] = []
    name = step_times
    if step_times == AUTO:
        name = one_model([choice]).name
    latency = build(name, choice)
    if name == "fitted":
        latency = _fitted_notes(latency, choice, step_times == AUTO, notes)
    elif name == "kernels":
        notes.extend(_kernel_notes(latency))
    elif name == "operators":
        from blis_sim.engine.latency.operator_sources import notes_on_tables

        notes.extend(notes_on_tables(latency))
    if choice.placement is not None:
        notes.extend(_placement_notes(choice.placement, name))
    return LatencySelection(name, latency, tuple(notes))


def watched_choice(chosen: LatencySelection, choice: LatencyChoice, max_tokens: int) -> LatencyModel:
    """Return a latency model with a watch for steps that beat the peak rates of the GPU, where it needs one.

    Coefficients from the command line are not watched.
    """
    from blis_sim.engine.latency.model_operations import operations_of
    from blis_sim.engine.latency.wrapped import step_peaks, watched

    if choice.dp > 1 or choice.beta or choice.placement is None or chosen.name == "adaptive-toy":
        return chosen.latency
    try:
        peaks = step_peaks(operations_of(choice.model, choice.placement), choice.gpu)
    except EngineError:  # without its layers nothing is known of the least time of a step
        return chosen.latency
    latency = watched(chosen.latency, chosen.name, peaks, max_tokens, choice.max_num_seqs)
    chosen.latency.reset_maxima()
    return latency


def automatic_names(choice: LatencyChoice) -> tuple[str, ...]:
    """Return the latency models that `auto` may take for a deployment; the least expected error decides."""
    if choice.beta:  # no other takes these
        return (DEFAULT_LATENCY_MODEL,)
    if choice.dp > 1:
        return ("kernels", DEFAULT_LATENCY_MODEL) if choice.engine == "vllm" else (DEFAULT_LATENCY_MODEL,)
    if choice.coefficients is not None:
        from blis_sim.engine.latency.coefficients_file import latency_model_of

        return (latency_model_of(choice.coefficients, choice.learned or {}),)
    if choice.engine != "vllm":  # how long kernels of vLLM take is another question
        return ("fitted", DEFAULT_LATENCY_MODEL)
    return ("kernels", "fitted", DEFAULT_LATENCY_MODEL)


def _fitted_notes(latency: LatencyModel, choice: LatencyChoice, is_automatic: bool, notes: list[str]) -> LatencyModel:
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


def _placement_notes(placement: "KernelPlacement", name: str) -> Iterator[str]:
    """Yield a line on each flag about kernels that has no effect."""
    from blis_sim.engine.latency.operations import AUTO, MARLIN

    if placement.eager and name != "kernels":
        yield f"warning: --enforce-eager has no effect on step times of {name}, only on those of kernels"
    acts = name == "kernels" and (placement.moe_backend == MARLIN or not placement.has_triton_experts)
    if placement.moe_backend != AUTO and not acts:
        yield (
            f"warning: --moe-backend {placement.moe_backend} has no effect on step times of {name}, "
            f"only {MARLIN} on those of kernels"
        )


def _kernel_notes(latency: LatencyModel) -> Iterator[str]:
    from blis_sim.engine.latency.kernels import KernelSteps

    if isinstance(latency, KernelSteps) and latency.grids.scaling:
        yield latency.grids.scaling
    if isinstance(latency, KernelSteps) and latency.grids.notes:
        yield f"kernel times were repaired: {'; '.join(latency.grids.notes)}"


# One latency model for one question: the closest that can time every deployment of the question.


class OneModel(NamedTuple):
    """The latency model of a question, with the statement on each of its deployments.

    `reasons` are, in the order of the deployments, why the model cannot time one; empty where it can.
    """

    name: str
    sureness: "tuple[Sureness, ...]"
    reasons: tuple[str, ...]

    @property
    def least_sure(self) -> "Sureness":
        """The statement on the covered deployment with the largest expected error."""
        covered = [each for each, reason in zip(self.sureness, self.reasons, strict=True) if not reason]
        return max(covered or self.sureness, key=lambda each: each.expected_error)


def one_model(choices: Sequence[LatencyChoice]) -> OneModel:
    """Return the latency model with the least expected error that covers all deployments, else that which covers most.

    The order of the deployments makes no difference. Raises EngineError where no model covers any.
    """
    from blis_sim.engine.latency.confidence import expected

    allowed = [automatic_names(each) for each in choices]
    names = list(dict.fromkeys(name for each in allowed for name in each))
    # No recording says which model is closest to servers that draft: they take the model of those that do not.
    plain = [replace(each, unmeasured=()) for each in choices]
    errors = {name: sum(expected(name, each).expected_error for each in plain) for name in names}
    found = best = OneModel("", (), ("there is no deployment to time",))
    for name in sorted(names, key=lambda each: (errors[each], each)):
        reasons = tuple(
            _refusal(name, choice) if name in each else f"{name} cannot time it"
            for choice, each in zip(choices, allowed, strict=True)
        )
        found = OneModel(name, tuple(expected(name, each) for each in choices), reasons)
        if not any(reasons):
            return found
        if reasons.count("") > best.reasons.count(""):
            best = found
    if "" not in best.reasons:
        raise EngineError(found.reasons[0])  # of the model that takes most
    return best


def _refusal(name: str, choice: LatencyChoice) -> str:
    """Return why a latency model cannot time a deployment; empty where it can."""
    try:
        build(name, choice)
    except EngineError as error:
        return str(error)
    return ""
