"""A preset, written out as a spec that can be changed."""

from dataclasses import replace

from blis_sim.options import OptionError
from traces.importers.imported import Imported
from traces.importers.settings import ConvertOptions
from traces.workload import PRESETS, Arrival, rate_spec


def convert(options: ConvertOptions) -> Imported:
    """The spec of a preset with constant arrivals. Raises OptionError for an unknown name."""
    preset = PRESETS.get(options.name)
    if preset is None:
        raise OptionError(f"the preset must be one of {', '.join(PRESETS)}, got {options.name!r}")
    spec = rate_spec(
        preset,
        rate=options.rate or 1.0,
        num_requests=options.num_requests or 100,
        seed=0,
        arrival=Arrival(process="constant"),
        client_id=f"preset-{options.name}",
    )
    return Imported(spec=replace(spec, seed=0))
