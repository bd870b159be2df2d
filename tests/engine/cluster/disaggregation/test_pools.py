import pytest

from blis_sim.engine.cluster.disaggregation.pools import Pools, Role
from blis_sim.engine.errors import EngineError


def test_roles_follow_the_index_of_the_instance() -> None:
    pools = Pools(num_instances=6, num_prefill=2, num_decode=1, num_both=1, num_encode=1)
    assert pools.roles == (Role.PREFILL, Role.PREFILL, Role.DECODE, Role.BOTH, Role.ENCODE, None)
    assert pools.prefill == (0, 1, 3)
    assert pools.decode == (2, 3)


def test_without_pools_nobody_has_a_role() -> None:
    pools = Pools(num_instances=2)
    assert not pools.is_disaggregated
    assert pools.roles == (None, None)


@pytest.mark.parametrize(("prefill", "decode", "encode"), [(1, 0, 0), (0, 2, 0), (0, 0, 1)])
def test_pools_that_cannot_serve_a_request_are_refused(prefill: int, decode: int, encode: int) -> None:
    with pytest.raises(EngineError, match="--prefill-decode-instances"):
        Pools(4, prefill, decode, 0, encode)


def test_shared_instances_suffice() -> None:
    assert Pools(2, num_both=2).decode == (0, 1)


def test_more_roles_than_instances_are_refused() -> None:
    with pytest.raises(EngineError, match=r"at most --num-instances \(3\), got 4"):
        Pools(3, 2, 2)
