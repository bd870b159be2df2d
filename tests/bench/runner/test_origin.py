"""The origin of a sweep states what all of its points share."""

from blis_sim.bench.points import origin_of, plan_of
from blis_sim.bench.sweep_command import SweepOptions
from blis_sim.options import options_from
from blis_sim.options.provenance import Provenance

SIMULATION = ("--model", "qwen3-14b", "--seed", "5")


def origin(*vary: str) -> Provenance:
    options = options_from(SweepOptions, simulation=SIMULATION, vary=vary)
    plan = plan_of(SIMULATION, vary, None, SweepOptions)
    return origin_of("blis sweep", options, plan, plan.points())


def test_a_sweep_of_rates_states_the_whole_deployment() -> None:
    found = origin("rate=1,2")
    assert (found.model, found.gpu, found.gpus_per_instance, found.instances) == ("qwen3-14b", "H100", 1, 1)
    assert (found.engine, found.latency_model, found.seed) == ("vllm", "fitted", 5)
    assert found.step_error == found.sureness["itl"]["median"]
    assert found.sureness["measured_on"].startswith("qwen3-14b ")
    assert found.title == f"qwen3-14b on 1 x H100, vllm engine, fitted step times ({found.sureness['summary']})"


def test_varying_settings_and_failed_points_are_left_out() -> None:
    found = origin("hardware=H100,A100-SXM,none-such", "num_instances=1,2")
    assert (found.gpu, found.instances, found.step_error) == ("", None, None)
    assert (found.gpus_per_instance, found.engine) == (1, "vllm")
