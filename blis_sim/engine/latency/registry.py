"""The latency models by name. This table feeds the choices of `--latency-model` and its error text.

An engine has one of them, and only that is imported.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.network_options import TABLES
from blis_sim.options.registry import Registry

if TYPE_CHECKING:
    from blis_sim.engine.latency.collectives.network import Network

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
    return LATENCY_MODELS[name](choice)


def _trained_physics(choice: LatencyChoice) -> LatencyModel:
    from blis_sim.engine.latency.catalogue.reader import trained_coefficients
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
    from blis_sim.engine.latency.catalogue.reader import blackbox_coefficients

    _check_no_dp("blackbox", choice)
    if choice.beta:
        return Blackbox(choice.alpha, choice.beta)
    return Blackbox(*blackbox_coefficients(choice.model.name, choice.gpu.name, choice.tp))


def _check_no_dp(name: str, choice: LatencyChoice) -> None:
    if choice.dp > 1:
        raise EngineError(
            f"the {name} model does not support dp, only trained-physics does; dp must be 1, got {choice.dp}"
        )


def _fitted(choice: LatencyChoice) -> LatencyModel:
    from blis_sim.engine.latency.catalogue.reader import LEARNED_COEFFICIENTS
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
    from blis_sim.engine.latency.kernel_steps import EAGER_LAUNCH_US, KernelSteps
    from blis_sim.engine.latency.kernels.grids import graph_sizes
    from blis_sim.engine.latency.kernels.learned import read_learned, shipped_learned
    from blis_sim.engine.latency.kernels.mixed_steps import decode_rows, has_one_call
    from blis_sim.engine.latency.kernels.placing import KernelPlacement, operations_of
    from blis_sim.engine.latency.kernels.sources import grids_of

    if choice.beta:
        raise EngineError("the kernels model takes no alpha_coeffs and beta_coeffs, it has measured kernels")
    _check_no_dp("kernels", choice)
    placement = choice.placement or KernelPlacement(tp=choice.tp)
    path = choice.coefficients
    host, scales = shipped_learned(choice.model) if path is None else read_learned(path, choice.learned)
    grids = grids_of(choice.model, choice.gpu, placement)
    network = _network(choice)
    if network is not None:
        from blis_sim.engine.latency.collectives.sources import with_exchanges

        grids = with_exchanges(grids, network, choice.model, choice.tp)
    operations = operations_of(choice.model, placement)
    sizes = () if placement.eager else graph_sizes(choice.gpu.compute_capability, choice.max_num_seqs)
    return KernelSteps(
        grids,
        host,
        scales,
        sizes,
        launch_us=EAGER_LAUNCH_US if placement.eager else 0.0,
        decode_rows=decode_rows(operations, choice.gpu),
        has_one_call=has_one_call(operations, choice.gpu),
    )


def _operators(choice: LatencyChoice) -> LatencyModel:
    from blis_sim.engine.latency.operators.sources import build_operators

    return build_operators(choice, _network(choice))


def _network(choice: LatencyChoice) -> "Network | None":
    """Return what --collectives asks for; None where the times are those of tables."""
    if choice.network.collectives == TABLES:
        return None
    from blis_sim.engine.latency.collectives.sources import network_of

    return network_of(choice.network, choice.gpu, choice.tp, choice.pp)


def _exchanging(latency: LatencyModel, choice: LatencyChoice, network: "Network | None") -> LatencyModel:
    """Return a latency model without exchanges with those of a network, if there is one. Raises EngineError."""
    if network is None:
        return latency
    from blis_sim.engine.latency.collectives.exchanging import ExchangingSteps, StepExchanges

    exchanges = StepExchanges(network, choice.model, choice.tp, choice.dp, choice.moe_comm_backend)
    exchanges.micros(choice.dp)  # a bandwidth that is missing is reported before the run
    return ExchangingSteps(latency, exchanges)


def _adaptive_toy(_choice: LatencyChoice) -> LatencyModel:
    from blis_sim.engine.latency.adaptive_toy import AdaptiveToy

    return AdaptiveToy()


LATENCY_MODELS = Registry[Callable[[LatencyChoice], LatencyModel]]("blis.latency_models") | {
    "trained-physics": _trained_physics,
    "roofline": _roofline,
    "blackbox": _blackbox,
    "fitted": _fitted,
    "kernels": _kernels,
    "operators": _operators,
    "adaptive-toy": _adaptive_toy,
}
