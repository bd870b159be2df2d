import gc

from traces.collector import gc_disabled


def test_the_collector_of_cycles_is_off_meanwhile_and_on_afterwards() -> None:
    assert gc.isenabled()
    with gc_disabled():
        assert not gc.isenabled()
        with gc_disabled():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
