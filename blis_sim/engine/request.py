"""The engine's view of a request: lengths, limits, media, and where its prompt's KV blocks can be shared."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros


class Medium(NamedTuple):
    """One medium of a prompt: its tokens are those from `offset` on. Media of one identity are encoded alike."""

    offset: int
    num_tokens: int
    identity: object

    @property
    def end(self) -> int:
        return self.offset + self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLimits:
    """Tokens of media that the encoder computes in one step, and tokens that it keeps. The prompt of a medium may or
    may not be split between steps."""

    step_tokens: int
    cache_tokens: int
    splits_media: bool = True

    def __post_init__(self) -> None:
        for name in ("step_tokens", "cache_tokens"):
            if getattr(self, name) < 1:
                raise EngineError(f"{name} must be at least 1, got {getattr(self, name)}")


class BlockIdentities(Protocol):
    """Names the full KV blocks of a request, so that equal content has equal names.

    Two requests that share the first n tokens give equal identities for the blocks inside those tokens. From the first
    differing block on identities differ. An identity stands for its block and all before it.
    """

    @property
    def num_shareable(self) -> int:
        """Leading blocks that another request might have, too; the others only this request can ever find again."""
        ...

    def identity(self, index: int) -> object:
        """The hashable identity of block `index`, counted from the start of the request's tokens."""
        ...


class UniqueBlocks(NamedTuple):
    """Blocks of a request whose text no other request has: they can only be found again by itself."""

    request_id: str

    @property
    def num_shareable(self) -> int:
        return 0

    def identity(self, index: int) -> object:
        return (self.request_id, index)


@dataclass(frozen=True, slots=True)
class PrefixGroupBlocks:
    """A request whose first `shared_tokens` are those of every request in `group`, the rest its own.

    `shared_blocks` is the number of full blocks inside the shared prefix.
    """

    request_id: str
    group: str
    shared_blocks: int

    @property
    def num_shareable(self) -> int:
        return self.shared_blocks

    def identity(self, index: int) -> object:
        if index < self.shared_blocks:
            return (0, self.group, index)
        return (self.request_id, index)


@dataclass(frozen=True, slots=True)
class HashedBlocks:
    """A request with real tokens: chained hashes of its prompt's full blocks; generated blocks are its own."""

    request_id: str
    hashes: tuple[int | bytes, ...]

    @property
    def num_shareable(self) -> int:
        return len(self.hashes)

    def identity(self, index: int) -> object:
        return self.hashes[index] if index < len(self.hashes) else (self.request_id, index)


class SharedPromptBlocks(NamedTuple):
    """The blocks of a request whose prompt shares its first `num_blocks` full blocks with one on the same instance."""

    blocks: BlockIdentities
    num_blocks: int

    @property
    def num_shareable(self) -> int:
        return max(self.num_blocks, self.blocks.num_shareable)

    def identity(self, index: int) -> object:
        return self.blocks.identity(index)


@dataclass(frozen=True, slots=True)
class ExternalPrompt:
    """The part of a prompt that another instance has computed: its first tokens, whose KV blocks take a while to come
    over."""

    num_tokens: int
    transfer_us: Micros


class Request(NamedTuple):
    """One generation request. Immutable: what happens to it lives in the engine's sequence.

    A named tuple because making one takes a quarter of the time of a frozen dataclass, and there are millions.

    `output_tokens` is how many tokens the model will produce; only the model step may read it. Scheduling sees
    `max_output_tokens`, the declared budget (0: none declared). `deadline_us` is an instant on the engine's clock at
    which the client gives up (0: never).
    """

    id: str
    input_tokens: int
    output_tokens: int
    blocks: BlockIdentities
    max_output_tokens: int = 0
    deadline_us: Micros = 0
    slo_class: str = ""
    priority: int | None = None
    """Smaller is more urgent; None derives it from the SLO class."""
    reads_prefix_cache: bool = True
    """False computes the whole prompt, as vLLM does when prompt log-probabilities are requested."""
    adapter: str = ""
    """The LoRA adapter it needs; empty for none."""
    external: ExternalPrompt | None = None
    """Set when another instance has computed its prompt."""
    tenant: str = ""
    """The tenant that sends it; only clusters read this."""
    slo_target_us: Micros = 0
    """Target for the time to its first token; 0 for none. Only a gateway reads this."""
    slo_e2e_us: Micros = 0
    """Target for the time to its last token; 0 for none."""
    media: tuple[Medium, ...] = ()
    """Media in its prompt, such as pictures, by offset."""
    reports_found_blocks: bool = False
    """Whether changes of the prefix cache name the blocks that each lookup finds, too, as if they were stored."""
    follows: str = ""
    """Id of the request behind which a client's message sends it to the engine; empty for none. With vLLM's scheduling
    an idle engine starts a step with the first of such requests, and the others join the step after that."""
