"""The flags of speculative decoding."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blis_sim.engine.units import LONGEST_DELAY_US
from blis_sim.options import check_options, option

if TYPE_CHECKING:
    from blis_sim.engine.speculation import Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions:
    """Drafted tokens as the command line describes them."""

    speculative_config: str = option(
        "",
        "Speculative decoding, as vLLM takes it: a JSON object with method, num_speculative_tokens, model and so on.",
        metavar="JSON",
        heading="Speculative decoding",
    )
    spec_method: str = option("", "Member method of --speculative-config.")
    spec_model: str = option("", "Member model of --speculative-config.")
    spec_tokens: int | None = option(None, "Member num_speculative_tokens of --speculative-config.", at_least=1)
    speculative_acceptance_rate: tuple[float, ...] = option(
        (),
        "Chance that a drafted token is accepted when those before it were. There is one for all, or one for each "
        "place (default: the synthetic acceptance of --speculative-config, else the published one of the method).",
        at_least=0,
        at_most=1,
    )
    speculative_draft_time: int | None = option(
        None,
        "Microseconds that drafting adds to each step that samples, 0 for nothing. The default is the share of the "
        "step that draft_cost of --speculative-config gives. Without it the method decides: passes of the drafter, or "
        "the search of a host.",
        at_least=0,
        at_most=LONGEST_DELAY_US,
        metavar="US",
    )
    speculative_seed: int = option(0, "Seed of the draws that accept drafted tokens.", at_least=0)

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def speculation(self) -> "Speculation | None":
        """The settings of speculative decoding, None without it. Raises OptionError."""
        said = (self.speculative_config, self.spec_method, self.spec_model, self.spec_tokens)
        others = self.speculative_acceptance_rate, self.speculative_draft_time is not None, self.speculative_seed
        if not any((*said, *others)):
            return None
        from blis_sim.engine.speculation import SpeculationFlags, parse_speculation  # few engines draft

        flags = SpeculationFlags(
            config=self.speculative_config,
            method=self.spec_method,
            model=self.spec_model,
            num_tokens=self.spec_tokens,
            acceptance_rates=self.speculative_acceptance_rate,
            draft_time_us=self.speculative_draft_time,
            seed=self.speculative_seed,
        )
        return parse_speculation(flags)
