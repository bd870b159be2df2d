"""Admission of requests."""

from blis_sim.engine.cluster.admission import ADMISSIONS, AdmissionPolicy, AdmissionSettings, TenantBudgets
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.urgency import DEFAULT_SLO_PRIORITIES
from tests.engine.cluster.small_clusters import snapshot, state
from tests.fakes import request


def policy(name: str, **settings: int) -> AdmissionPolicy:
    return ADMISSIONS[name](AdmissionSettings(**settings))  # type: ignore[arg-type]


def admitted(made: AdmissionPolicy, slo_class: str, *waiting: int, kv: float = 0.0) -> bool:
    seen = state(*(snapshot(number, waiting=each, kv=kv) for number, each in enumerate(waiting)))
    return made.admits(request(slo_class=slo_class), seen)


def test_a_bucket_begins_full_and_fills_up_at_its_rate() -> None:
    bucket = policy("token-bucket", token_bucket_capacity=25, token_bucket_refill_rate=10)

    def admits_at(now: int) -> bool:
        return bucket.admits(request(input_tokens=10), state(now=now))

    assert [admits_at(0), admits_at(0), admits_at(0)] == [True, True, False]
    assert admits_at(499_999) is False
    assert admits_at(500_000) is True
    assert [admits_at(10_000_000) for _ in range(3)] == [True, True, False], "never more than it holds"


def test_all_are_admitted_or_none() -> None:
    assert admitted(policy("always-admit"), "background", 999)
    assert not admitted(policy("reject-all"), "critical", 0)


def test_under_load_tiers_below_the_least_are_shed() -> None:
    shed = policy("tier-shed", tier_shed_threshold=4)
    assert admitted(shed, "batch", 4, 0)
    assert not admitted(shed, "batch", 5, 0), "one instance with too much is enough"
    assert admitted(shed, "standard", 5, 0)
    assert admitted(shed, "", 5, 0)


def test_saturation_turns_away_the_sheddable_only() -> None:
    legacy = policy("gaie-legacy")
    assert admitted(legacy, "batch", 5, 4)
    assert not admitted(legacy, "batch", 5, 5)
    assert admitted(legacy, "critical", 5, 5)
    assert not admitted(legacy, "sheddable", 0, kv=0.8)
    assert not admitted(legacy, "sheddable")


def test_a_tenant_above_its_budget_keeps_its_important_requests() -> None:
    budgets = TenantBudgets(policy("always-admit"), {"t": 0.25}, 8, DEFAULT_SLO_PRIORITIES)
    running = [Sequence(request(f"r{number}")._replace(tenant="t"), 0) for number in range(3)]
    for sequence in running:
        budgets.routed(sequence)

    def admits(slo_class: str, tenant: str) -> bool:
        return budgets.admits(request(slo_class=slo_class)._replace(tenant=tenant), state())

    assert not admits("batch", "t")
    assert admits("standard", "t")
    assert admits("batch", "other")
    running[0].outcome = Outcome.COMPLETED
    assert admits("batch", "t"), "two of eight seats are a quarter"


def test_budgets_admit_no_request_that_the_inner_policy_rejects() -> None:
    budgets = TenantBudgets(policy("reject-all"), {"t": 1.0}, 8, DEFAULT_SLO_PRIORITIES)
    assert not budgets.admits(request(), state())
