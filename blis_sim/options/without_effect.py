"""Flags of BLIS that are taken so that its command lines run, and that have no effect here."""

from dataclasses import dataclass

from blis_sim.options.option import check_options, option, section


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultsOptions:
    """The file of defaults."""

    defaults_filepath: str | None = option(
        None, "BLIS's file of defaults. Has no effect, which one line says.", metavar="FILE", hidden=True
    )

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def flags_without_effect(self) -> list[str]:
        """A line for each flag that is given."""
        if self.defaults_filepath is None:
            return []
        return [
            f"--defaults-filepath has no effect, {self.defaults_filepath} is not read. Models, GPUs, presets and "
            "coefficients are built in; flags such as --hardware, --tp and --alpha-coeffs replace them"
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlisOptions:
    """The file of defaults, and when requests are generated."""

    defaults: DefaultsOptions = section(DefaultsOptions)
    lazy_generation: bool = option(
        False, "Generate requests when it is their turn. Has no effect, which one line says.", hidden=True
    )

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def flags_without_effect(self) -> list[str]:
        """A line for each flag that is given."""
        line = "--lazy-generation has no effect: the requests are the same, whenever they are generated"
        return [*self.defaults.flags_without_effect, *([line] if self.lazy_generation else [])]
