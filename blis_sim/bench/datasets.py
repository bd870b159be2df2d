"""The requests of a data set: flags of vLLM's benchmarks, lengths, what prompts share, and texts of files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil, floor
from pathlib import Path
from random import Random
from typing import Any

from blis_sim.bench import BenchError
from blis_sim.options import OptionError, check_options, option
from blis_sim.options.option import MOST_REQUESTS, MOST_TOKENS
from traces.load import Load, load_of

DATASETS = ("random", "prefix_repetition", "sharegpt", "custom", "burstgpt")
_FILES = ("sharegpt", "custom", "burstgpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """The settings of a data set."""

    dataset_name: str = option("random", "Data set of the requests.", choices=DATASETS, heading="Data set")
    dataset_path: str | None = option(None, "File of sharegpt (JSON), custom (JSON lines) or burstgpt (CSV).")
    num_prompts: int = option(1000, "Number of requests.", at_least=1, at_most=MOST_REQUESTS)
    seed: int = option(0, "Seed of lengths, prompts, order and arrivals.")
    input_len: int | None = option(
        None, "Another name of --random-input-len, which it overrides.", at_least=1, at_most=MOST_TOKENS
    )
    output_len: int | None = option(
        None,
        "Output tokens of every request, in place of the lengths of the data set.",
        at_least=1,
        at_most=MOST_TOKENS,
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
    prefix_repetition_num_prefixes: int = option(10, "prefix_repetition: number of prefixes.", at_least=1)
    prefix_repetition_output_len: int = option(
        128, "prefix_repetition: output length.", at_least=1, at_most=MOST_TOKENS
    )
    sharegpt_output_len: int | None = option(
        None, "sharegpt: output length instead of that of the recorded answers.", at_least=1, at_most=MOST_TOKENS
    )
    custom_output_len: int = option(
        256, "custom: output length; -1 takes the output_tokens of each line.", at_least=-1, at_most=MOST_TOKENS
    )
    disable_shuffle: bool = option(False, "Send the requests of a file in the order of the file.")
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
    def tokenizer_path(self) -> Path | None:
        """The tokenizer to count with; None when it is not on this machine, or not given."""
        path = None if self.tokenizer is None else Path(self.tokenizer)
        return path if path is not None and path.exists() else None


_CHARACTERS_PER_TOKEN = 4
_SHAREGPT_LEAST_TOKENS = 4
_SHAREGPT_MOST_PROMPT_TOKENS = 1024
_SHAREGPT_MOST_TOKENS = 2048
_BURSTGPT_MODEL = "GPT-4"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One request: the shared start of `prefix_group`, `prefix_tokens` long, and `input_tokens` of its own.

    With a `text` its length is an estimate until a server has counted it.
    """

    input_tokens: int
    output_tokens: int
    prefix_group: str = ""
    prefix_tokens: int = 0
    text: str = ""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.prefix_tokens + self.input_tokens


def load_of_samples(samples: Sequence[SampleRequest], arrived_per_s: float) -> Load:
    """Return the load of requests that come at a rate, shared prefixes included."""
    return load_of(arrived_per_s, [each.prompt_tokens for each in samples], [each.output_tokens for each in samples])


def samples_of(options: DatasetOptions) -> list[SampleRequest]:
    """The requests of the options, in order. A seed determines them. Raises BlisError."""
    if options.dataset_name == "random":
        return list(_random(options, Random(f"{options.seed}/lengths")))
    if options.dataset_name == "prefix_repetition":
        num_prefixes = options.prefix_repetition_num_prefixes
        samples = [
            SampleRequest(
                input_tokens=options.prefix_repetition_suffix_len,
                output_tokens=options.output_len or options.prefix_repetition_output_len,
                prefix_group=f"prefix-{number}" if options.prefix_repetition_prefix_len else "",
                prefix_tokens=options.prefix_repetition_prefix_len,
            )
            for number in range(num_prefixes)
            for _ in range(options.num_prompts // num_prefixes)
        ]
        Random(f"{options.seed}/order").shuffle(samples)
        return samples
    readers: dict[str, Callable[[DatasetOptions, Path], Sequence[SampleRequest]]] = {
        "sharegpt": _sharegpt,
        "custom": _custom,
        "burstgpt": _burstgpt,
    }
    assert options.dataset_path is not None
    found = readers[options.dataset_name](options, Path(options.dataset_path))
    if not found:
        raise BenchError(f"{options.dataset_path}: has no request that can be sent as {options.dataset_name}")
    return _shuffle_and_oversample(options, found)


def _random(options: DatasetOptions, random: Random) -> Iterator[SampleRequest]:
    ratio = options.random_range_ratio
    for _ in range(options.num_prompts):
        yield SampleRequest(
            input_tokens=_around(options.input_len or options.random_input_len, ratio, random),
            output_tokens=_around(options.output_len or options.random_output_len, ratio, random),
            prefix_group="shared" if options.random_prefix_len else "",
            prefix_tokens=options.random_prefix_len,
        )


def _around(mean: int, ratio: float, random: Random) -> int:
    return max(1, random.randint(floor(mean * (1 - ratio)), ceil(mean * (1 + ratio))))


def _custom(options: DatasetOptions, path: Path) -> list[SampleRequest]:
    from observe.requests import read_prompts

    count, samples = _counter(options), []
    for number, prompt in enumerate(read_prompts(path), start=1):
        length = options.output_len or options.custom_output_len
        if length == -1:
            if prompt.output_tokens is None:
                raise BenchError(f"{path} prompt {number}: has no output_tokens, which --custom-output-len -1 needs")
            length = prompt.output_tokens
        samples.append(SampleRequest(input_tokens=count(prompt.text), output_tokens=length, text=prompt.text))
    return samples


def _sharegpt(options: DatasetOptions, path: Path) -> list[SampleRequest]:
    """The first question of each conversation, with the length of its answer; very short and long ones are left out."""
    from traces.text_file import read_json

    entries = read_json(path)
    if not isinstance(entries, list):
        raise BenchError(f"{path}: expected a JSON list of conversations")
    count, length = _counter(options), options.output_len or options.sharegpt_output_len
    samples = []
    for place, entry in enumerate(entries):
        turns = entry.get("conversations") if isinstance(entry, dict) else None
        if not isinstance(turns, list) or len(turns) < 2:
            continue
        question, answer = (_turn_text(f"{path} entry {place} turn {turn}", turns[turn]) for turn in (0, 1))
        sample = SampleRequest(input_tokens=count(question), output_tokens=length or count(answer), text=question)
        if (
            _SHAREGPT_LEAST_TOKENS <= sample.input_tokens <= _SHAREGPT_MOST_PROMPT_TOKENS
            and ((length is not None) or sample.output_tokens >= _SHAREGPT_LEAST_TOKENS)
            and sample.input_tokens + sample.output_tokens <= _SHAREGPT_MOST_TOKENS
        ):
            samples.append(sample)
    return samples


def _turn_text(place: str, turn: Any) -> str:
    said = turn.get("value") if isinstance(turn, dict) else None
    if not isinstance(said, str):
        raise BenchError(f"{place}: expected an object with text under the key value")
    return said


def _burstgpt(options: DatasetOptions, path: Path) -> list[SampleRequest]:
    """The lengths of the GPT-4 requests that were answered."""
    from traces.importers.burstgpt import convert
    from traces.importers.registry import ConvertOptions

    rows = convert(ConvertOptions(format="burstgpt", file=str(path), output="-")).rows
    return [
        SampleRequest(input_tokens=max(1, row.input_tokens), output_tokens=options.output_len or row.output_tokens)
        for row in rows
        if row.client_id == _BURSTGPT_MODEL and row.output_tokens > 0
    ]


def _shuffle_and_oversample(options: DatasetOptions, found: Sequence[SampleRequest]) -> list[SampleRequest]:
    """Samples in random order unless a flag turns that off; too few samples are repeated."""
    samples = list(found)
    if not options.disable_shuffle:
        Random(f"{options.seed}/order").shuffle(samples)
    samples = samples[: options.num_prompts]
    if not options.no_oversample:
        random = Random(f"{options.seed}/repeated")
        again = iter(lambda: random.choice(found), None)
        samples += islice(again, options.num_prompts - len(samples))
    return samples


def _counter(options: DatasetOptions) -> Callable[[str], int]:
    if options.tokenizer_path is None:
        return lambda text: max(1, -(-len(text) // _CHARACTERS_PER_TOKEN))
    from mockserve.generation.tokenizer import open_tokenizer

    return open_tokenizer(options.tokenizer_path).count
