"""The requests of a benchmark: the data sets of vLLM's benchmarks, with their flags and defaults."""

from dataclasses import dataclass
from pathlib import Path

from blis_sim.options import OptionError, check_options, option
from blis_sim.options.limits import MOST_REQUESTS, MOST_TOKENS

DATASETS = ("random", "prefix_repetition", "sharegpt", "custom", "burstgpt")
_FILES = ("sharegpt", "custom", "burstgpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """The settings of a data set."""

    dataset_name: str = option("random", "What to send.", choices=DATASETS, heading="Data set")
    dataset_path: str | None = option(None, "File of sharegpt (JSON), custom (JSON lines) or burstgpt (CSV).")
    num_prompts: int = option(1000, "How many requests.", at_least=1, at_most=MOST_REQUESTS)
    seed: int = option(0, "Seed of lengths, prompts, order and arrivals.")
    input_len: int | None = option(
        None, "Another name of --random-input-len, which it overrides.", at_least=1, at_most=MOST_TOKENS
    )
    output_len: int | None = option(
        None, "Output tokens of every request, whatever the data set has.", at_least=1, at_most=MOST_TOKENS
    )
    random_input_len: int = option(
        1024, "random: mean prompt length, beside the prefix.", at_least=1, at_most=MOST_TOKENS
    )
    random_output_len: int = option(128, "random: mean output length.", at_least=1, at_most=MOST_TOKENS)
    random_range_ratio: float = option(
        0.0, "random: lengths are drawn evenly from this share below to this share above their mean.", at_least=0
    )
    random_prefix_len: int = option(
        0,
        "random: tokens of a prefix that all prompts share.",
        flags=("--random-prefix-len", "--prefix-len"),
        at_least=0,
        at_most=MOST_TOKENS,
    )
    prefix_repetition_prefix_len: int = option(
        256, "prefix_repetition: tokens of each shared prefix.", at_least=0, at_most=MOST_TOKENS
    )
    prefix_repetition_suffix_len: int = option(
        256, "prefix_repetition: tokens behind the prefix.", at_least=1, at_most=MOST_TOKENS
    )
    prefix_repetition_num_prefixes: int = option(10, "prefix_repetition: how many prefixes.", at_least=1)
    prefix_repetition_output_len: int = option(
        128, "prefix_repetition: output length.", at_least=1, at_most=MOST_TOKENS
    )
    sharegpt_output_len: int | None = option(
        None, "sharegpt: output length instead of that of the recorded answers.", at_least=1, at_most=MOST_TOKENS
    )
    custom_output_len: int = option(
        256, "custom: output length; -1 takes the output_tokens of each line.", at_least=-1, at_most=MOST_TOKENS
    )
    disable_shuffle: bool = option(False, "Take a file in its own order.")
    no_oversample: bool = option(False, "Send fewer than --num-prompts when a file has no more.")
    tokenizer: str | None = option(
        None,
        "A tokenizer.json or its folder, to count the tokens of a file's texts with. Any other name is only noted in"
        " the results; tokens are then estimated as one per 4 characters until a server has counted them.",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.random_range_ratio >= 1:
            raise OptionError(f"--random-range-ratio must be below 1, got {self.random_range_ratio:g}")
        if self.custom_output_len == 0:
            raise OptionError("--custom-output-len must be above 0, or -1 for that of each line, got 0")
        needs_file = self.dataset_name in _FILES
        if needs_file and self.dataset_path is None:
            raise OptionError(f"--dataset-name {self.dataset_name} needs --dataset-path")
        if not needs_file and self.dataset_path is not None:
            raise OptionError(f"--dataset-path needs --dataset-name {', '.join(_FILES)}, got {self.dataset_name}")
        if self.dataset_name == "prefix_repetition" and self.prefix_repetition_num_prefixes > self.num_prompts:
            raise OptionError(
                f"--prefix-repetition-num-prefixes must be at most --num-prompts ({self.num_prompts}),"
                f" got {self.prefix_repetition_num_prefixes}"
            )

    @property
    def forces_length(self) -> bool:
        """Whether outputs have the requested length, because the texts mean nothing to the model."""
        return self.dataset_name == "random"

    @property
    def tokenizer_path(self) -> Path | None:
        """The tokenizer to count with; None when it is not on this machine, or not given."""
        path = None if self.tokenizer is None else Path(self.tokenizer)
        return path if path is not None and path.exists() else None
