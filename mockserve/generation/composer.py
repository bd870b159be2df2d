"""Composes answers: their length and the kind of their text, with a model's tokenizer and chat template.

The whole answer is composed when a request arrives, including its length, its stop string and the text of every token.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from blis_sim.options import OptionError
from blis_sim.options.option import json_object
from mockserve.executor.worker import Job
from mockserve.generation.answer import (
    Answer,
    Dataset,
    Kind,
    Prose,
    RenderOptions,
    Segment,
    apply_stops,
    is_slow,
    open_dataset,
    reasoning_segments,
    render_tokens,
    sorted_by_kind,
    tokens_of,
)
from mockserve.generation.chat_templates import ChatRenderer, load_chat_renderer
from mockserve.generation.structured_outputs.kinds import VERBOSITIES
from mockserve.generation.tokenizer import Split, Tokenizer, load_tokenizer, read_json_object
from mockserve.generation.writing import PLAIN, OutputSpec, ScriptResult, Steps, calls_job, content_job
from mockserve.options.content import ContentOptions
from mockserve.options.parsers import REASONING_PARSERS, TOOL_CALL_PARSERS
from mockserve.protocol.bodies import Ending
from mockserve.protocol.sampling import (
    NO_DEFAULTS,
    SAMPLING_NAMES,
    GenerationDefaults,
    SamplingParams,
    clamp_temperature,
)

MEDIAN_OUTPUT_TOKENS = 200
OUTPUT_TOKENS_SIGMA = 0.7
MOST_TOKENS_AT_ONCE = 2048
"""Number of tokens of a longer answer that are made in one slice: each token takes up to 7 us."""

Scripted: TypeAlias = str | Mapping[str, str] | tuple[Segment, ...]
"""A text, texts by prompt, or a message with reasoning and tool calls."""

SCRIPTED: ContextVar[Scripted | None] = ContextVar("scripted", default=None)
"""The answers to the current request; None where they are generated."""

_MEAN_OF_LOGARITHMS = math.log(MEDIAN_OUTPUT_TOKENS)
"""Answers without a requested length have log-normal lengths: half are between 125 and 320 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composer:
    """Composes the answers of one server. `fixed_tokens` replaces the drawn length of answers that end by
    themselves."""

    tokenizer: Tokenizer
    prose: Prose
    fixed_tokens: int | None = None
    echoes: bool = False
    dataset: Dataset | None = None

    @property
    def uses_prompt_text(self) -> bool:
        """Whether answers may depend on the text of the prompt."""
        return self.echoes or self.dataset is not None or isinstance(SCRIPTED.get(), Mapping)

    def compose(
        self,
        random: Random,
        sampling: SamplingParams,
        budget: int,
        output_spec: OutputSpec = PLAIN,
        prompt: Sequence[int] = (),
    ) -> Answer:
        """Run `compose_in_steps` with all of its jobs in place, and return the answer."""
        steps = self.compose_in_steps(random, sampling, budget, output_spec, prompt)
        found = next_job(steps, None)
        while isinstance(found, Job):
            found = next_job(steps, found.done())
        return found

    def compose_in_steps(
        self,
        random: Random,
        sampling: SamplingParams,
        budget: int,
        output_spec: OutputSpec = PLAIN,
        prompt: Sequence[int] = (),
    ) -> Steps:
        """Compose an answer of 1 to `budget` tokens; yield a job for each script that is to be written.

        An answer that ends by itself spends its last token on the end marker, which has no text, as vLLM counts it.
        Raises ApiError for a constraint that no text meets.
        """
        scripted = SCRIPTED.get()
        if isinstance(scripted, tuple):
            return render_tokens(scripted, RenderOptions(self.tokenizer, sampling, budget))
        thought: list[Segment] = []
        if output_spec.thinking is not None:
            thought = reasoning_segments(output_spec.thinking, random, self.prose, budget)
        left = budget - self._count(thought)
        output = yield from self._write_script(random, sampling, left, output_spec, prompt)
        if output is None and not thought:
            return self._compose_prose(random, sampling, budget, output_spec)
        if output is None:
            output = [Segment(Kind.CONTENT, "".join(self._write_prose(random, sampling, left, output_spec)[0].pieces))]
        names_function = output_spec.tools is not None and output_spec.tools.is_named
        render_options = RenderOptions(self.tokenizer, sampling, budget, names_function, output_spec.is_parsed)
        return render_tokens([*thought, *output], render_options)

    def is_long(self, sampling: SamplingParams, budget: int, output_spec: OutputSpec, prompt: Sequence[int]) -> bool:
        """Whether an answer takes more than a few milliseconds, not counting its jobs."""
        allowed = sampling.allowed_token_ids
        can_end = not sampling.ignore_eos and (allowed is None or self.tokenizer.eos_token_id in allowed)
        least = max(sampling.min_tokens, self.fixed_tokens or 0, output_spec.natural_tokens or 0) if can_end else budget
        if self.uses_prompt_text:
            least = max(least, len(prompt))
        return least > MOST_TOKENS_AT_ONCE or (sampling.repetition is not None and is_slow(sampling.repetition))

    def _write_script(
        self, random: Random, sampling: SamplingParams, left: int, output_spec: OutputSpec, prompt: Sequence[int]
    ) -> Generator[Job[ScriptResult], ScriptResult | None, list[Segment] | None]:
        """Write the part after the reasoning, in at most `left` tokens if possible; return None for prose."""
        known = self._canned_text(output_spec, prompt)
        tools = output_spec.tools
        constraint = output_spec.constraint
        # A constraint leaves no room for a call unless calls take its place.
        is_free = tools is not None and constraint is None and (tools.is_forced or known is None)
        may_call = tools is not None and (tools.overrides_constraint or is_free)
        num_calls = tools.num_calls(random) if tools is not None and may_call else 0
        if tools is not None and num_calls:
            functions = random.choices(tools.functions, k=num_calls)
            return (yield from self._write_within_budget(left, random, partial(calls_job, tools, functions)))
        if constraint is not None:
            return (yield from self._write_within_budget(left, random, partial(content_job, constraint)))
        if known is None:
            return None
        return [
            Segment(Kind.CONTENT, self._repeat_to_length(known, left if sampling.ignore_eos else sampling.min_tokens))
        ]

    def _compose_prose(self, random: Random, sampling: SamplingParams, budget: int, output_spec: OutputSpec) -> Answer:
        """Return prose only, token by token as it was written."""
        answer = apply_stops(*self._write_prose(random, sampling, budget, output_spec), sampling)
        if not output_spec.is_parsed:
            return answer
        script = [Segment(Kind.CONTENT, "".join(answer.texts))]
        return answer._replace(deltas=sorted_by_kind(answer.texts, script))

    def _write_prose(
        self, random: Random, sampling: SamplingParams, budget: int, output_spec: OutputSpec
    ) -> tuple[Split, Ending]:
        num_tokens = self.fixed_tokens or output_spec.natural_tokens or natural_length(random)
        num_tokens = max(num_tokens, sampling.min_tokens + 1)
        allowed = sampling.allowed_token_ids
        can_end = allowed is None or self.tokenizer.eos_token_id in allowed
        if sampling.ignore_eos or num_tokens > budget or not can_end:
            return self._write_words(random, sampling, budget, output_spec.continues_word), Ending("length")
        output = self._write_words(random, sampling, num_tokens - 1, output_spec.continues_word)
        return Split([*output.ids, self.tokenizer.eos_token_id], [*output.pieces, ""]), Ending("stop")

    def _write_words(self, random: Random, sampling: SamplingParams, num_tokens: int, continues_word: bool) -> Split:
        """Return words: any, or only the tokens that the request allows."""
        if sampling.allowed_token_ids is not None:
            return tokens_of(sampling.allowed_token_ids, self.tokenizer, random, num_tokens)
        prose = self.prose.without(sampling.bad_words) if sampling.bad_words else self.prose
        return prose.write(random, num_tokens, continues_word)

    def _write_within_budget(
        self, left: int, random: Random, new_job: Callable[[Random, int, int], Job[ScriptResult]]
    ) -> Generator[Job[ScriptResult], ScriptResult | None, list[Segment]]:
        """Write the largest script that leaves room for the end marker; write the smallest one if none does."""
        script: list[Segment] = []
        most_chars = (left + 1) * self.tokenizer.longest_piece_chars
        for verbosity in VERBOSITIES:
            written = yield new_job(random, verbosity, most_chars)
            assert written is not None
            script, random = written
            if self._count(script) < left:
                break
        return script

    def _count(self, script: Sequence[Segment]) -> int:
        return self.tokenizer.count("".join(each.text for each in script)) if script else 0

    def _canned_text(self, output_spec: OutputSpec, prompt: Sequence[int]) -> str | None:
        """Return the text of a recording, an echo or the data set; None when the answer must be generated."""
        scripted = SCRIPTED.get()
        if isinstance(scripted, str):
            return scripted
        if not self.uses_prompt_text:
            return None
        asked = output_spec.asked or (self.tokenizer.decode(prompt),)
        if isinstance(scripted, Mapping) and asked[-1] in scripted:
            return scripted[asked[-1]]
        if self.echoes:
            return asked[0]
        return None if self.dataset is None else self.dataset.answer(asked, prompt)

    def _repeat_to_length(self, text: str, least: int) -> str:
        """Return `text`, repeated until it has at least `least` tokens."""
        num_tokens = self.tokenizer.count(text)
        if not num_tokens or num_tokens >= least:
            return text
        return " ".join([text] * math.ceil(least / num_tokens))


def next_job(steps: Steps, written: ScriptResult | None) -> Job[ScriptResult] | Answer:
    """Return the next job of an answer, or the answer once there is none."""
    try:
        return steps.send(written)
    except StopIteration as finished:
        answer: Answer = finished.value
        return answer


def natural_length(random: Random) -> int:
    """Return the tokens of an answer without a limit, the end marker included."""
    return max(2, round(random.lognormvariate(_MEAN_OF_LOGARITHMS, OUTPUT_TOKENS_SIGMA)))


def parser_problem(
    tool_parser: str | None, reasoning_parser: str | None, tokenizer: Tokenizer, model: str
) -> str | None:
    """Return the error with which vLLM refuses these parsers at start, or None."""
    parsers = (REASONING_PARSERS.get(reasoning_parser or ""), TOOL_CALL_PARSERS.get(tool_parser or ""))
    missing = [
        each.refusal
        for each in filter(None, parsers)
        if any(tokenizer.marker_id(token) is None for token in each.tokens)
    ]
    if not missing:
        return None
    flags = [f"--tool-call-parser {tool_parser}"] if tool_parser else []
    flags += [f"--reasoning-parser {reasoning_parser}"] if reasoning_parser else []
    return f"{' and '.join(flags)} cannot be used with the tokenizer of {model!r}: {missing[0]}"


def open_vocabulary(options: ContentOptions, model: str, vocabulary_size: int) -> tuple[Tokenizer, ChatRenderer]:
    """Load tokenizer and chat template from --tokenizer, the model folder, or the built-ins.

    No tokenizer is loaded from a hub. A MODEL folder is used only if the tokenizers library is there: without
    --tokenizer no library is needed. Raises OptionError for files that cannot be read.
    """
    path = None if options.tokenizer_on_hub else options.tokenizer
    if path is None and (Path(model) / "tokenizer.json").is_file() and find_spec("tokenizers") is not None:
        path = model
    folder = None
    if path is not None:
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
    return load_tokenizer(path, vocabulary_size), load_chat_renderer(options, folder)


def new_composer(options: ContentOptions, tokenizer: Tokenizer) -> Composer:
    """Create the composer for the options. Raises OptionError for a data set that cannot be read."""
    path = options.dataset_path
    return Composer(
        tokenizer=tokenizer,
        prose=Prose(tokenizer),
        fixed_tokens=options.default_output_tokens,
        echoes=options.mode == "echo",
        dataset=None if path is None else open_dataset(path, options.dataset_table_name),
    )


AUTO, NONE = "auto", "vllm"
FILE = "generation_config.json"
OVERRIDE_FLAG = "--override-generation-config"
_MAX_NEW_TOKENS = "max_new_tokens"
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(SAMPLING_NAMES, (int, float)),
    "top_k": (int,),
    "skip_special_tokens": (bool,),
    _MAX_NEW_TOKENS: (int,),
}


def open_generation_defaults(options: ContentOptions, model: str) -> GenerationDefaults:
    """Return the generation defaults for the options; `model` may be a folder with a generation configuration.

    Raises OptionError for an invalid file or value.
    """
    source = options.generation_config
    config: dict[str, Any] = {}
    if source != NONE:
        folder = Path(model if source == AUTO else source)
        if source != AUTO and not (folder / FILE).is_file():
            raise OptionError(f"--generation-config must be auto, vllm or a folder with a {FILE}, got {source!r}")
        config = read_json_object(folder / FILE, "--generation-config")
        _check_types(str(folder / FILE), config)
    override = json_object(OVERRIDE_FLAG, options.override_generation_config)
    _check_types(OVERRIDE_FLAG, override)
    config |= override
    if not config:
        return NO_DEFAULTS
    max_tokens = config.get(_MAX_NEW_TOKENS)
    sampling = {name: config[name] for name in SAMPLING_NAMES if config.get(name) is not None}
    if "temperature" in sampling:
        sampling["temperature"] = clamp_temperature(sampling["temperature"])
    is_own_choice = source not in (AUTO, NONE)
    return GenerationDefaults(sampling, max_tokens, max_tokens if is_own_choice else override.get(_MAX_NEW_TOKENS))


def _check_types(where: str, config: Mapping[str, Any]) -> None:
    for name, kinds in _KINDS.items():
        value = config.get(name)
        is_wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        if value is not None and is_wrong:
            names = " or ".join(kind.__name__ for kind in kinds)
            raise OptionError(f"{where}: {name} must be {names}, got {value!r}")
    max_tokens = config.get(_MAX_NEW_TOKENS)
    if max_tokens is not None and max_tokens < 1:
        raise OptionError(f"{where}: {_MAX_NEW_TOKENS} must be at least 1, got {max_tokens}")
