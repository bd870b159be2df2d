import gc

from traces.collector import no_cycle_search


def test_the_collector_of_cycles_is_off_meanwhile_and_on_afterwards() -> None:
    assert gc.isenabled()
    with no_cycle_search():
        assert not gc.isenabled()
        with no_cycle_search():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
