"""The settings of `blis serve` that concern what vLLM's engine does beside scheduling: queue limits, KV events."""

from dataclasses import dataclass

from blis_sim.engine.lora import LoraSettings
from blis_sim.options import OptionError, check_options, names_in, option
from mockserve.options.kv_events import KVEventsConfig, read_kv_events_config
from mockserve.options.kv_transfer import TransferConfig, read_transfer_config


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraOptions:
    """Slots for LoRA adapters, and the time that loading one takes."""

    enable_lora: bool = option(False, "Take LoRA adapters.", heading="LoRA adapters")
    max_loras: int = option(1, "Adapters that one step may compute with, and that fit on the GPU.", at_least=1)
    max_cpu_loras: int | None = option(
        None, "Adapters kept in the memory of the machine (default: as many as fit on the GPU).", at_least=1
    )
    lora_load_ms: float = option(0.0, "What a step waits while an adapter is read into memory.", at_least=0)
    lora_swap_ms: float = option(0.0, "What a step waits while an adapter is copied to the GPU.", at_least=0)

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            least = f"--max-loras, {self.max_loras}"
            raise OptionError(f"--max-cpu-loras must be at least {least}, got {self.max_cpu_loras}")

    @property
    def settings(self) -> LoraSettings | None:
        """The slots for adapters; None where none are taken."""
        if not self.enable_lora:
            return None
        return LoraSettings(
            max_loras=self.max_loras,
            max_cpu_loras=self.max_cpu_loras or 0,
            load_us=round(self.lora_load_ms * 1000),
            swap_us=round(self.lora_swap_ms * 1000),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Limits of the queue, above which requests are refused."""

    max_num_queued_reqs: int | None = option(
        None,
        "Requests that may be unfinished at once; more are refused with status 503.",
        at_least=0,
        heading="Limits of the queue",
    )
    max_num_queued_tokens: int | None = option(
        None, "Prompt tokens without an answer yet from which on requests are refused with status 503.", at_least=0
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSharingOptions:
    """KV-cache events, and KV blocks taken over from and handed to other servers."""

    kv_events_config: str = option(
        "",
        "Where to publish KV-cache events, as vLLM takes it. Needs the extra kv-events.",
        metavar="JSON",
        heading="KV blocks, told and handed over",
    )
    data_parallel_rank: int = option(
        0, "Which of several servers that share a load this is; KV events name it.", at_least=0
    )
    kv_transfer_config: str = option(
        "", "Take over prompts computed elsewhere and hand over those computed here, as vLLM takes it.", metavar="JSON"
    )
    kv_transfer_gb_per_s: float = option(50.0, "How fast each GPU takes over KV blocks, in 10^9 bytes.", above=0)
    kv_transfer_latency_ms: float = option(0.0, "What each takeover takes besides.", at_least=0)
    prefix_caching_hash_algo: str = option(
        "sha256",
        "How KV blocks are hashed where others are told of them.",
        choices=names_in("mockserve.kv_blocks.hashes", "ALGORITHMS"),
    )

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.transfer, self.events  # reading them checks them

    @property
    def transfer(self) -> TransferConfig:
        """Whether prompts are taken and handed over."""
        return read_transfer_config(self.kv_transfer_config)

    @property
    def events(self) -> KVEventsConfig:
        """Where KV-cache events go."""
        return read_kv_events_config(self.kv_events_config)
