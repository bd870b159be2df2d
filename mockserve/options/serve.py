"""The settings of `blis serve`: those of the deployment it simulates, and those of the server itself."""

import math
from dataclasses import dataclass

from blis_sim.options import OptionError, option
from mockserve.options.refusals import check_cluster
from mockserve.options.routes import RouteOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(RouteOptions):
    """What to serve and how. The model may be given as an argument, as vLLM wants it, or as --model."""

    model: str = option("", "The same as MODEL.", heading="Model and GPU")
    model_argument: str = option(
        "",
        "Model to serve: a name of the catalogue, with or without its organisation, "
        "or a local folder with a Hugging Face config.json.",
        positional=True,
        metavar="MODEL",
    )
    speed: float = option(
        1.0,
        "Simulated seconds per real second; max lets no time pass but what the engine takes.",
        above=0,
        infinity="max",
        heading="Serving",
    )
    served_model_name: tuple[str, ...] = option((), "Names clients may use; replies carry the first. Default: MODEL.")
    enable_server_load_tracking: bool = option(False, "Let GET /load count the requests being answered.")
    kv_cache_dtype: str = option(
        "auto", "Type of KV-cache entries; checked as vLLM does, while sizes and times stay those of the model's type."
    )
    quantization: str = option(
        "", "Quantization method; checked as vLLM does, while sizes and times stay those of the model's config.json."
    )
    lenient_start: bool = option(
        False,
        "Start with a warning where vLLM would refuse to start: values of --kv-cache-dtype and --quantization that it "
        "does not know or the model folder was not made for, a context beyond the model's or beyond the KV cache, "
        "fewer batched tokens than sequences, a --long-prefill-token-threshold beyond the context, parsers whose "
        "tokens the tokenizer lacks.",
    )
    fits_max_model_len: bool = option(
        False, "Cut the context to what the KV cache holds: --max-model-len auto.", hidden=True
    )
    accepted_without_effect: tuple[str, ...] = option(
        (), "Flags of vLLM that were given and mean nothing here; named at start.", hidden=True
    )

    def __post_init__(self) -> None:
        if self.model and self.model_argument and self.model != self.model_argument:
            raise OptionError(f"MODEL and --model must agree, got {self.model_argument!r} and {self.model!r}")
        object.__setattr__(self, "model", self.model or self.model_argument)
        if not self.model:
            raise OptionError("MODEL must be given, as in: blis serve qwen/qwen3-14b")
        RouteOptions.__post_init__(self)
        check_cluster(self)
        if math.isinf(self.speed) and (self.dp > 1 or self.serves_cluster):
            raise OptionError("--speed max knows one engine: no --data-parallel-size and no cluster of instances")

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names clients may ask for, in the user's own spelling."""
        return self.served_model_name or (self.model,)
