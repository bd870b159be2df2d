"""One latency model for one question: the closest that covers all deployments, else the one that covers most."""

from itertools import permutations

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency import registry
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.confidence import expected
from blis_sim.engine.latency.model_operations import KernelPlacement
from blis_sim.engine.latency.registry import one_model
from blis_sim.engine.latency.roofline import Roofline

REAL = dict(registry.LATENCY_MODELS)


def choice(model: str = "qwen3-14b", gpu: str = "H100", tp: int = 1, **settings: object) -> LatencyChoice:
    placement = KernelPlacement(tp=tp)
    return LatencyChoice(model=load_model(model), gpu=load_gpu(gpu), tp=tp, placement=placement, **settings)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _kernels_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels cover up to four GPUs that are no L4, and `fitted` all without data-parallel ranks."""

    def kernels(each: LatencyChoice) -> Roofline:
        if each.gpu.name == "L4" or each.tp > 4:
            raise EngineError(f"no kernels were measured on {each.tp} x {each.gpu.name}")
        return Roofline(each.model, each.gpu, each.tp)

    monkeypatch.setattr(registry, "LATENCY_MODELS", {**REAL, "kernels": kernels})


def test_deployments_that_would_each_take_another_are_timed_by_one() -> None:
    alone = [one_model([each]).name for each in (choice(), choice(tp=2))]
    assert alone == ["fitted", "kernels"]  # learned for the first one, measured kernels are closer for the other
    together = one_model([choice(), choice(tp=2)])
    assert (together.name, together.reasons) == ("kernels", ("", ""))


def test_the_closest_model_that_covers_all_is_taken() -> None:
    found = one_model([choice(tp=2), choice(gpu="L4")])
    assert (found.name, found.reasons) == ("fitted", ("", ""))


def test_the_order_of_the_deployments_makes_no_difference() -> None:
    choices = [choice(), choice(tp=2), choice("mixtral-8x7b", tp=2), choice(gpu="L4")]
    assert {one_model(list(each)).name for each in permutations(choices)} == {"fitted"}


def test_a_deployment_that_no_common_model_covers_is_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: LatencyChoice) -> Roofline:
        raise EngineError("it cannot")

    names = {**registry.LATENCY_MODELS, "fitted": refuse, "trained-physics": refuse}
    monkeypatch.setattr(registry, "LATENCY_MODELS", names)
    found = one_model([choice(tp=2), choice(gpu="L4"), choice(tp=4)])
    assert found.name == "kernels"
    assert found.reasons == ("", "no kernels were measured on 1 x L4", "")
    with pytest.raises(EngineError, match=r"cannot|no kernels"):
        one_model([choice(gpu="L4")])


def test_the_statement_is_that_on_the_least_sure_deployment() -> None:
    found = one_model([choice("gpt-oss-120b", tp=2), choice("gpt-oss-20b", "H20", 2)])
    assert found.least_sure == max(found.sureness, key=lambda each: each.expected_error) == found.sureness[1]


def test_the_statement_counts_drafts_which_choose_no_model() -> None:
    found = one_model([choice(unmeasured=("speculative decoding",))])
    assert (found.name, found.least_sure) == (
        "fitted",
        expected("fitted", choice(unmeasured=("speculative decoding",))),
    )
    assert found.least_sure.expected_error > one_model([choice()]).least_sure.expected_error


def test_data_parallel_ranks_beside_others_are_timed_by_the_model_that_takes_both() -> None:
    found = one_model([choice("mixtral-8x7b", tp=2), choice("mixtral-8x7b", tp=2, dp=2)])
    assert (found.name, found.reasons) == ("kernels", ("", ""))
