"""The options of a command are made of sections, and each setting is found by its name whatever section it is in."""

from dataclasses import dataclass

import pytest

from blis_sim.options import (
    OptionError,
    check_options,
    ineffective_flags,
    option,
    options_from,
    options_of,
    section,
    with_settings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A section with a required setting."""

    model: str = option(help="Which model.", heading="Engine")
    tp: int = option(1, "GPUs.", at_least=1)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """A section inside of a section."""

    certfile: str = option("", "Certificate.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A section with a section in it."""

    port: int = option(8000, "Port.", at_most=65535, heading="Network")
    tls: Tls = section(Tls)
    host: str = option("", "Host.")

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The options of a command."""

    engine: Engine = section(Engine)
    network: Network = section(Network)
    speed: float = option(1.0, "Speed.", above=0)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallEngine(Engine):
    """A section in which one setting has another default and another bound."""

    tp: int = option(2, "GPUs.", at_least=1, at_most=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallCommand(Command):
    """The options of another command with that section."""

    engine: SmallEngine = section(SmallEngine)


def test_settings_of_sections_come_in_their_place() -> None:
    assert [setting.name for setting in options_of(Command)] == ["model", "tp", "port", "certfile", "host", "speed"]


def test_a_setting_has_its_section_and_the_heading_above_it() -> None:
    found = {setting.name: (setting.path, setting.heading) for setting in options_of(Command)}
    assert found["certfile"] == (("network", "tls"), "Network")
    assert found["tp"] == (("engine",), "Engine")


def test_a_setting_is_the_same_in_a_section_and_in_the_whole() -> None:
    assert set(map(repr, options_of(Engine))) != set(map(repr, options_of(Command)[:2]))
    assert list(options_of(Engine)) == list(options_of(Command)[:2])


def test_options_are_made_of_values_by_name() -> None:
    options = options_from(Command, model="m", certfile="c", speed=2.0)
    assert options == Command(engine=Engine(model="m"), network=Network(tls=Tls(certfile="c")), speed=2.0)
    assert {setting.name: setting.of(options) for setting in options_of(Command)} == {
        "model": "m",
        "tp": 1,
        "port": 8000,
        "certfile": "c",
        "host": "",
        "speed": 2.0,
    }


def test_settings_are_changed_by_name() -> None:
    options = with_settings(options_from(Command, model="m", host="h"), tp=2, certfile="c", speed=3.0)
    assert options == options_from(Command, model="m", host="h", tp=2, certfile="c", speed=3.0)


def test_changed_settings_are_checked() -> None:
    with pytest.raises(OptionError, match="--tp must be at least 1, got 0"):
        with_settings(options_from(Command, model="m"), tp=0)


def test_a_section_checks_its_own_bounds() -> None:
    with pytest.raises(OptionError, match="--port must be at most 65535, got 70000"):
        options_from(Command, model="m", port=70000)


def test_a_required_setting_of_a_section_is_required() -> None:
    with pytest.raises(TypeError, match="model"):
        options_from(Command, port=1)
    with pytest.raises(TypeError, match="engine"):
        Command()


def test_an_unknown_name_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="ports"):
        options_from(Command, model="m", ports=1)


def test_a_command_may_have_other_defaults_and_bounds_in_a_section() -> None:
    assert options_from(SmallCommand, model="m").engine.tp == 2
    assert next(setting for setting in options_of(SmallCommand) if setting.name == "tp").default == 2
    with pytest.raises(OptionError, match="--tp must be at most 4, got 5"):
        options_from(SmallCommand, model="m", tp=5)


def test_two_settings_of_one_name_are_a_mistake_in_the_table() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Twice:
        network: Network = section(Network)
        port: int = option(1, "Another port.")

    with pytest.raises(TypeError, match="Twice has two settings of one name: port"):
        options_of(Twice)


def test_ineffective_settings_are_named_in_every_section() -> None:
    options = options_from(Command, model="m", certfile="c")
    assert list(ineffective_flags(options, {"certfile": "--https", "host": "--https"})) == [
        "--certfile has no effect without --https"
    ]
