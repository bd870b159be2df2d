import gc

from traces.collector import no_cycle_search


def test_nobody_looks_for_cycles_meanwhile_and_somebody_does_afterwards() -> None:
    assert gc.isenabled()
    with no_cycle_search():
        assert not gc.isenabled()
        with no_cycle_search():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
