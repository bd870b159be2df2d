from dataclasses import dataclass

from blis_sim.options import ineffective_flags, option


@dataclass(frozen=True, slots=True, kw_only=True)
class Oven:
    heat: int = option(180, "How hot.")
    fan_speed: int = option(1, "How fast.")
    label: str = option("", "What it is called.")


def test_what_was_given_and_lacks_another_flag_is_noted_in_the_order_of_the_settings() -> None:
    missing = {"label": "--door", "fan_speed": "--fan", "heat": "--power"}
    assert list(ineffective_flags(Oven(fan_speed=3, label="x"), missing)) == [
        "--fan-speed has no effect without --fan",
        "--label has no effect without --door",
    ]


def test_what_lacks_nothing_is_not() -> None:
    assert list(ineffective_flags(Oven(fan_speed=3), {})) == []
