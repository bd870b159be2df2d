import pytest

from blis_sim.engine.cluster.disaggregation.transfer import TransferNetwork, TransferSettings
from blis_sim.engine.errors import EngineError

QWEN3_14B_BYTES_PER_BLOCK = 16 * 163_840.0


def test_a_transfer_takes_its_latency_and_its_bytes_rounded_up() -> None:
    network = TransferNetwork(TransferSettings(), QWEN3_14B_BYTES_PER_BLOCK)
    assert network.start(num_blocks=7) == 785


def test_without_contention_transfers_do_not_slow_each_other() -> None:
    network = TransferNetwork(TransferSettings(gb_per_s=10, base_latency_ms=0), 16 * 512.0)
    assert [network.start(10), network.start(10)] == [9, 9]


def test_with_contention_a_transfer_gets_its_share_at_the_start_and_keeps_it() -> None:
    network = TransferNetwork(TransferSettings(10, 0, is_shared=True), 16 * 512.0)
    assert [network.start(10), network.start(10)] == [9, 17]
    network.end()
    network.end()
    assert network.start(10) == 9
    assert (network.num_started, network.num_ended, network.num_active, network.most_active) == (3, 2, 1, 2)


def test_nothing_arrives_at_once() -> None:
    assert TransferNetwork(TransferSettings(base_latency_ms=0), 16.0).start(0) == 1


@pytest.mark.parametrize(("bandwidth", "latency"), [(0, 0), (-1, 0), (float("inf"), 0), (25, -1), (25, float("nan"))])
def test_impossible_networks_are_refused(bandwidth: float, latency: float) -> None:
    with pytest.raises(EngineError, match="transfer"):
        TransferSettings(bandwidth, latency)
