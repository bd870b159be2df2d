"""Limits of a deployment with speculative decoding, as vLLM's configuration settles them.

Facts: vllm/config/vllm.py, `_set_max_num_scheduled_tokens` and `_get_v2_model_runner_unsupported_features`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.engine_defaults import ADAPTIVE_ENGINES, flag_or
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.entries import has_model
from blis_sim.engine.latency.catalogue.files import config_path
from blis_sim.engine.latency.catalogue.reader import load_checkpoint
from blis_sim.options import OptionError

if TYPE_CHECKING:
    from blis_sim.engine.memory.drafters import DrafterRequest
    from blis_sim.engine.speculation import Drafter, Speculation


def speculation_of(options: DeploymentOptions, notes: list[str]) -> "Speculation | None":
    """Return the settings of speculative decoding, with a note on what is accepted; None without it."""
    speculation = options.speculation
    if speculation is None and options.engine in ADAPTIVE_ENGINES:
        from blis_sim.engine.engine_defaults import adaptive_speculation

        return adaptive_speculation(options.drafts.speculative_seed)
    if speculation is not None:
        rates = dict.fromkeys(f"{rate:.3g}" for rate in speculation.acceptance_rates)
        notes.append(
            f"{speculation.method} drafts {speculation.num_tokens} tokens, each accepted with a chance of "
            f"{', '.join(rates)} when those before it are"
        )
        drafter = None if options.total_kv_blocks else drafter_of(options)
        if drafter is not None and drafter.config is None and drafter.method not in ("mtp", "draft_model"):
            notes.append(
                f"the drafter {drafter.name} is neither in the catalogue nor a folder with a config.json, so its size "
                f"is assumed to be that of a usual {drafter.method} head for the model"
            )
    return speculation


def drafter_of(options: DeploymentOptions) -> "DrafterRequest | None":
    """Return the model that drafts, None for methods without one."""
    speculation = options.speculation
    if speculation is None or not _drafter(speculation).has_model:
        return None
    from blis_sim.engine.memory.drafters import DrafterRequest

    name = speculation.model
    checkpoint = None
    if name and (config_path(Path(name)) is not None or has_model(name)):
        name, checkpoint = load_checkpoint(name)
    return DrafterRequest(
        method=speculation.method,
        num_tokens=speculation.num_tokens,
        config=checkpoint.config if checkpoint else None,
        hf_quant_config=checkpoint.hf_quant_config if checkpoint else None,
        name=name,
    )


def is_async(options: DeploymentOptions, speculation: "Speculation | None", notes: list[str]) -> bool:
    """Whether steps are composed ahead: vLLM's older model runner does so neither for suffixes nor with stages."""
    requested = flag_or(options.async_scheduling, options.release.async_scheduling)
    if speculation is None or not requested:
        return requested
    drafter = _drafter(speculation)
    is_parallel = speculation.parallel_drafting and not drafter.has_own_pass
    if drafter.is_async and not (is_parallel and options.pp > 1):
        return True
    how = "parallel drafts and several pipeline stages" if drafter.is_async else speculation.method
    notes.append(f"steps are not composed ahead: vLLM has no asynchronous scheduling with {how}")
    return False


def scheduled_tokens(options: DeploymentOptions, speculation: "Speculation | None", notes: list[str]) -> int:
    """Return the tokens of requests in a step where these are limited apart from the room of a step; else 0."""
    requested = options.max_num_scheduled_tokens or 0
    if requested and speculation is not None and speculation.rows_per_request:
        notes.append(
            f"warning: --max-num-scheduled-tokens is ignored with {speculation.method}, whose drafts take room in a "
            "step: a step has --max-num-batched-tokens for both"
        )
        return 0
    return requested


def active_seqs(options: DeploymentOptions, max_num_seqs: int, tokens: int, speculation: "Speculation | None") -> int:
    """Return how many requests are admitted at once, by --max-num-active-seqs and by the room for drafts.

    A drafter with a pass of its own computes its rows for every request within the tokens of one step. Raises
    OptionError for more requests than run in one step.
    """
    most = options.max_num_active_seqs or max_num_seqs
    if most > max_num_seqs:
        raise OptionError(f"--max-num-active-seqs must be at most --max-num-seqs, {max_num_seqs}, got {most}")
    if speculation is not None and _drafter(speculation).has_own_pass:
        most = max(1, min(most, tokens // speculation.num_lookahead_tokens))
    return most


def check_drafts_fit(config: EngineConfig) -> None:
    """Refuse a budget in which vLLM's scheduler never admits a request whose prompt is known but for one token.

    A request of this kind is filled up to the width of one that decodes with drafts, and waits until the budget has
    room.
    """
    speculation = config.speculation
    if speculation is None:
        return
    least = 1 + speculation.num_tokens + speculation.rows_per_request
    if config.max_num_batched_tokens < least:
        raise EngineError(
            f"--max-num-batched-tokens must be at least {least} with {speculation.num_tokens} drafts of "
            f"{speculation.method}, or requests wait for ever, got {config.max_num_batched_tokens}"
        )


def _drafter(speculation: "Speculation") -> "Drafter":
    """Return the drafter of a method."""
    from blis_sim.engine.speculation import DRAFTERS  # few deployments draft

    return DRAFTERS[speculation.method]
