"""From the settings of a run to what it sends."""

from collections.abc import Sequence
from random import Random

from observe.errors import ObserveError
from observe.messages import warn
from observe.options import ObserveOptions
from observe.prompt_file import read_prompts, with_prompts
from observe.schedule import Planned, constant_arrivals_us, plan_from_trace, plan_synthetic, poisson_arrivals_us
from traces import read_trace


def plan_of(options: ObserveOptions) -> Sequence[Planned]:
    """What the options ask to send. Raises BlisError when the recording to send cannot be used."""
    if options.trace is not None:
        rows = read_trace(options.trace).rows
        plan = plan_from_trace(rows)[: options.num_requests]
        if len(plan) <= options.warmup_requests:
            raise ObserveError(
                f"{options.trace}: expected more requests than --warmup-requests"
                f" ({options.warmup_requests}), got {len(plan)}"
            )
        num_empty = sum(not row.output_tokens for row in rows)
        if num_empty and not options.unconstrained_output:
            warn(f"{num_empty} requests of {options.trace} got no output; they ask for one token")
        return plan
    assert options.rate is not None
    assert options.num_requests is not None
    if options.arrival == "poisson":
        arrivals_us = poisson_arrivals_us(options.rate, options.num_requests, Random(f"{options.seed}/arrivals"))
    else:
        arrivals_us = constant_arrivals_us(options.rate, options.num_requests)
    plan = plan_synthetic(
        arrivals_us,
        options.prompt_lengths,
        options.output_lengths,
        prefix_tokens=options.prefix_tokens,
        random=Random(f"{options.seed}/lengths"),
    )
    if options.prompts is None:
        return plan
    prompts = read_prompts(options.prompts)
    if len(prompts) < len(plan):
        warn(f"the {len(prompts)} prompts of {options.prompts} are sent more than once; prefix caches find them again")
    return with_prompts(plan, prompts)
