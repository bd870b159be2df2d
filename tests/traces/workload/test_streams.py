"""Seeds of drawn quantities."""

from traces.workload.distributions import Quantity, client_streams


def test_each_quantity_of_a_client_is_drawn_as_it_always_was() -> None:
    """Another number in a seed would be another workload under the same seed."""
    streams = client_streams(42, "a", 0)
    drawn = [int(streams.of(quantity).integers(1000)) for quantity in Quantity]
    assert drawn == [816, 839, 434, 438, 428, 966, 916, 21, 290, 269, 877, 728, 331, 920, 782, 164]


def test_clients_of_one_name_and_parts_of_a_client_draw_apart() -> None:
    one = client_streams(42, "a", 0)
    others = (client_streams(42, "a", 1), client_streams(42, "b", 0), client_streams(43, "a", 0), one.part(0))
    drawn = {int(each.of(Quantity.ARRIVALS).integers(2**62)) for each in (one, *others, one.part(1))}
    assert len(drawn) == 6
