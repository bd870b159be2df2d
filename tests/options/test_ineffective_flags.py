from dataclasses import dataclass

from blis_sim.options import ineffective_flags, option


@dataclass(frozen=True, slots=True, kw_only=True)
class Oven:
    heat: int = option(180, "How hot.")
    fan_speed: int = option(1, "How fast.")
    label: str = option("", "What it is called.")


def test_flags_that_lack_another_flag_are_noted_in_the_order_of_the_settings() -> None:
    missing = {"label": "--door", "fan_speed": "--fan", "heat": "--power"}
    assert list(ineffective_flags(Oven(fan_speed=3, label="x"), missing)) == [
        "--fan-speed has no effect without --fan",
        "--label has no effect without --door",
    ]


def test_flags_that_lack_nothing_are_not_noted() -> None:
    assert list(ineffective_flags(Oven(fan_speed=3), {})) == []
