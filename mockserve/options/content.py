"""Settings of answers, recorded answers, structured outputs and prompts."""

import json
from dataclasses import dataclass, fields
from pathlib import Path

from blis_sim.engine.latency.catalogue import is_path
from blis_sim.options import OptionError, check_options, option, section
from blis_sim.options.option import json_object
from mockserve.options.parsers import REASONING_PARSERS, TOOL_CALL_PARSERS

FLAG = "--structured-outputs-config"
BACKENDS = ("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsConfig:
    """vLLM's StructuredOutputsConfig."""

    backend: str = "auto"
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    reasoning_parser: str = ""
    reasoning_parser_plugin: str = ""
    enable_in_reasoning: bool = False


AUTO = StructuredOutputsConfig()


def read_structured_outputs_config(text: str | None) -> StructuredOutputsConfig:
    """Parse the flag's JSON object. Raises OptionError for values that vLLM refuses."""
    if text is None:
        return AUTO
    given = json_object(FLAG, text)
    known = {field.name: field.type for field in fields(StructuredOutputsConfig)}
    for name, value in given.items():
        if name not in known:
            raise OptionError(f"{FLAG} may have the fields {', '.join(known)}, got {name!r}")
        if not isinstance(value, bool if known[name] is bool else str):
            expected = "true or false" if known[name] is bool else "a string"
            raise OptionError(f"{FLAG} must have {expected} as {name}, got {json.dumps(value)}")
    config = StructuredOutputsConfig(**given)
    if config.backend not in BACKENDS:
        raise OptionError(f"{FLAG} must have one of {', '.join(BACKENDS)} as backend, got {config.backend!r}")
    if config.disable_any_whitespace and config.backend not in ("xgrammar", "guidance"):
        raise OptionError(f"{FLAG}: disable_any_whitespace is only supported for xgrammar and guidance backends.")
    if config.disable_additional_properties and config.backend != "guidance":
        raise OptionError(f"{FLAG}: disable_additional_properties is only supported for the guidance backend.")
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentRanges:
    """Ranges of numbers and lengths that a schema leaves open; each range includes both ends.

    `array_lengths` of None makes arrays slightly longer than required. `optional_probability` applies to optional
    values, and `optional_field_probability` to optional fields within an object; None derives them from the verbosity.
    """

    integers: tuple[int, int] = (0, 100)
    numbers: tuple[float, float] = (0.0, 100.0)
    array_lengths: tuple[int, int] | None = None
    optional_probability: float | None = None
    optional_field_probability: float | None = None


ANY = ArgumentRanges()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolArgumentOptions:
    """Ranges of function arguments that a schema leaves open, with the names of llm-d-inference-sim."""

    min_tool_call_integer_param: int = option(0, "Least whole number as an argument whose schema sets no bounds.")
    max_tool_call_integer_param: int = option(100, "Greatest whole number as such an argument.")
    min_tool_call_number_param: float = option(0.0, "Least number as such an argument.")
    max_tool_call_number_param: float = option(100.0, "Greatest number as such an argument.")
    min_tool_call_array_param_length: int = option(1, "Fewest items of such an array.", at_least=0)
    max_tool_call_array_param_length: int = option(5, "Most items of such an array.", at_least=0)
    tool_call_not_required_param_probability: float = option(
        50.0, "Percent of the calls that have an argument which is not required.", at_least=0, at_most=100
    )
    object_tool_call_not_required_field_probability: float = option(
        50.0,
        "Probability in percent that a field which is not required, within an argument that is an object, is present.",
        at_least=0,
        at_most=100,
    )

    def __post_init__(self) -> None:
        check_options(self)
        for least, most in (
            ("min_tool_call_integer_param", "max_tool_call_integer_param"),
            ("min_tool_call_number_param", "max_tool_call_number_param"),
            ("min_tool_call_array_param_length", "max_tool_call_array_param_length"),
        ):
            if getattr(self, least) > getattr(self, most):
                flag, other = (f"--{name.replace('_', '-')}" for name in (least, most))
                raise OptionError(f"{flag} must be at most {other}, {getattr(self, most)}, got {getattr(self, least)}")

    @property
    def argument_ranges(self) -> ArgumentRanges:
        """Ranges of generated arguments that a schema leaves open."""
        return ArgumentRanges(
            integers=(self.min_tool_call_integer_param, self.max_tool_call_integer_param),
            numbers=(self.min_tool_call_number_param, self.max_tool_call_number_param),
            array_lengths=(self.min_tool_call_array_param_length, self.max_tool_call_array_param_length),
            optional_probability=self.tool_call_not_required_param_probability / 100,
            optional_field_probability=self.object_tool_call_not_required_field_probability / 100,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """Settings of tool calls, with vLLM's names if it has them."""

    enable_auto_tool_choice: bool = option(
        False, "Let the model choose when to call a function; needs --tool-call-parser.", heading="Function calls"
    )
    tool_call_parser: str | None = option(
        None,
        "Parser of function calls, by vLLM's name: it decides what ids of calls look like, and how streams bring them.",
        choices=tuple(TOOL_CALL_PARSERS),
        metavar="NAME",
    )
    tool_call_probability: float = option(
        1.0,
        "How often a function is called where the model may choose; never right after the result of a call.",
        at_least=0,
        at_most=1,
    )
    tool_call_extra_probability: float = option(
        0.25, "How often another call follows a call, where calls may be parallel.", at_least=0, at_most=1
    )
    arguments: ToolArgumentOptions = section(ToolArgumentOptions)

    def __post_init__(self) -> None:
        check_options(self)
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise OptionError("--enable-auto-tool-choice requires --tool-call-parser")

    @property
    def calls_tools(self) -> bool:
        """Whether tools can be called: vLLM sets up no parser without --enable-auto-tool-choice."""
        return self.enable_auto_tool_choice and self.tool_call_parser is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningOptions:
    """Reasoning in front of an answer."""

    reasoning_parser: str | None = option(
        None,
        "Parser of reasoning, by vLLM's name: answers begin with reasoning, unless the request switches it off.",
        choices=tuple(REASONING_PARSERS),
        metavar="NAME",
        heading="Reasoning",
    )
    default_reasoning_tokens: int | None = option(
        None,
        "Length of the reasoning (default: lengths vary, half are below 25, 100, 250, 500, 1000 or 2000 by "
        "reasoning_effort, 250 without one). The reasoning never takes more than half of what an answer may have.",
        at_least=0,
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsOptions:
    """The backend of structured outputs."""

    structured_outputs_config: str | None = option(
        None,
        "vLLM's configuration of structured outputs, as a JSON object with backend (auto, xgrammar, guidance, outlines "
        "or lm-format-enforcer), disable_any_whitespace or disable_additional_properties.",
        metavar="JSON",
        heading="Structured outputs",
    )
    lenient_structured_outputs: bool = option(
        False,
        "Let requests use different backends of structured outputs, which vLLM refuses. In vLLM the backend of the "
        "first constrained request serves the engine until it is restarted.",
    )

    def __post_init__(self) -> None:
        check_options(self)
        read_structured_outputs_config(self.structured_outputs_config)  # validates the value

    @property
    def config(self) -> StructuredOutputsConfig:
        """The configuration in --structured-outputs-config."""
        return read_structured_outputs_config(self.structured_outputs_config)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureOptions:
    """Pictures in the place of answers, with the names of llm-d-inference-sim."""

    omni: bool = option(False, "Answer conversations with pictures, too.", hidden=True)
    image_emission_rate: float = option(
        0.0, "Percent of the conversations that a picture answers.", at_least=0, at_most=100, hidden=True
    )
    time_to_generate_image_ms: float = option(0.0, "Time that a picture takes.", at_least=0, hidden=True)
    time_to_generate_image_std_dev_ms: float = option(0.0, "Its standard deviation.", at_least=0, hidden=True)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentOptions:
    """Settings of text: the tokenizer, the chat template and the content of answers."""

    seed: int = option(0, "Seed of the generated text and its lengths.", heading="Text and tokens")
    tokenizer: str | None = option(
        None,
        "tokenizer.json to count tokens with, or a model folder with one, whose chat template is then used too. The "
        "default is that of MODEL where it is such a folder, else the built-in one. Needs the tokenizers library. For "
        "a name on a hub the built-in one is used, which one line says.",
    )
    chat_template: str | None = option(
        None,
        "Jinja chat template, as a file or as text; default: that of the tokenizer's folder, "
        "or ChatML for the built-in tokenizer.",
    )
    chat_template_content_format: str = option(
        "auto",
        "What the template is given as a message's content: one string, or OpenAI's list of parts; "
        "auto finds out which the template expects.",
        choices=("auto", "string", "openai"),
    )
    default_chat_template_kwargs: str | None = option(
        None, "Variables for the chat template that requests may override, as a JSON object.", metavar="JSON"
    )
    trust_request_chat_template: bool = option(False, "Let a request bring a chat template of its own.")
    exclude_tools_when_tool_choice_none: bool = option(
        False, "Keep tools out of the prompt when the request forbids calls (tool_choice none)."
    )
    generation_config: str = option(
        "auto",
        "Folder with a generation_config.json: its sampling values are the defaults of requests, its max_new_tokens "
        "the most that they may have. auto reads that of a MODEL folder, whose max_new_tokens is a default only; "
        "vllm reads none.",
        metavar="FOLDER",
    )
    override_generation_config: str | None = option(
        None,
        "Members of the generation configuration to replace, as a JSON object; max_new_tokens limits every request.",
        metavar="JSON",
    )
    default_output_tokens: int | None = option(
        None, "Length of every answer that may end by itself (default: lengths vary, half are below 200).", at_least=1
    )
    tools: ToolOptions = section(ToolOptions)
    reasoning: ReasoningOptions = section(ReasoningOptions)
    structured_outputs: StructuredOutputsOptions = section(StructuredOutputsOptions)
    mode: str = option(
        "random",
        "Content of answers: made-up prose, or the last user message or prompt again.",
        choices=("random", "echo"),
        heading="Where answers come from",
    )
    dataset_path: str | None = option(
        None,
        "Answers by prompt, as JSON lines with prompt and answer, or as a SQLite table; "
        "prompts that are not in it get prose.",
    )
    dataset_table_name: str = option("llmd", "Table of a SQLite data set.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.mode == "echo" and self.dataset_path is not None:
            raise OptionError("--dataset-path cannot be used with --mode echo")
        json_object("--default-chat-template-kwargs", self.default_chat_template_kwargs)
        json_object("--override-generation-config", self.override_generation_config)

    @property
    def tokenizer_on_hub(self) -> str | None:
        """The value of --tokenizer where it is no path but a name on a hub, from where nothing is loaded."""
        given = self.tokenizer
        if given is None or is_path(given) or given.endswith(".json") or Path(given).exists():
            return None
        return given

    @property
    def parses_answers(self) -> bool:
        """Whether a parser processes chat answers."""
        return self.tools.calls_tools or self.reasoning.reasoning_parser is not None


MATCH_MODES = ("exact", "conversation", "turn", "order")
"""Modes of matching a request with a recorded one, the strictest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybackOptions:
    """Recorded answers."""

    playback: str = option(
        "",
        "Answer with the contents of this recording (PREFIX.content.jsonl of blis observe --proxy), or with the"
        " fixtures of a YAML file.",
        metavar="FILE",
        heading="Recorded answers",
    )
    playback_match: tuple[str, ...] = option(
        ("exact", "conversation", "turn"),
        "Ways to find the recorded reply, tried in turn: the same body, or the same conversation, whatever the "
        "sampling. turn finds the same last message in the same turn, and order the next one of the recording.",
        choices=MATCH_MODES,
    )
    playback_miss: str = option(
        "generate",
        "A request without a recorded reply gets a generated one, an error with status 404, or that of"
        " --playback-upstream, which is added to the recording.",
        choices=("generate", "error", "forward"),
    )
    playback_upstream: str = option("", "Base URL of the server for --playback-miss forward.", metavar="URL")
    playback_timing: str = option(
        "engine",
        "Times of recorded replies: those of the simulated engine under the present load, or the recorded ones.",
        choices=("engine", "recorded"),
    )
    playback_speed: float = option(
        1.0, "With --playback-timing recorded: recorded seconds per real second.", above=0, at_most=1e6
    )
    playback_chunks: str = option(
        "recorded",
        "Pieces of recorded streams: those of the recording, or one for each token of this server's tokenizer.",
        choices=("recorded", "tokens"),
    )
    enable_playback_control: bool = option(
        False, "Offer /blis/requests, a journal of requests, and /blis/playback, which sets fixtures."
    )

    def __post_init__(self) -> None:
        check_options(self)
        if not self.playback_match:
            raise OptionError(f"--playback-match must have at least one of {', '.join(MATCH_MODES)}")
        if (self.playback_miss == "forward") != bool(self.playback_upstream):
            raise OptionError("--playback-miss forward and --playback-upstream need each other")
        if self.playback_upstream:
            from traces.redaction import check_url_without_keys  # which few servers need

            check_url_without_keys(self.playback_upstream, "--playback-upstream", "clients send their own")
            if not self.playback_upstream.startswith(("http://", "https://")):
                raise OptionError(f"--playback-upstream must be like http://host:port, got {self.playback_upstream!r}")
        if self.playback_miss == "forward" and not self.playback.endswith(".jsonl"):
            raise OptionError(
                "--playback-miss forward needs a --playback FILE.jsonl, to which it adds what it forwards"
            )
        for flag, is_given in (
            ("--playback-timing", self.playback_timing != "engine"),
            ("--playback-chunks", self.playback_chunks != "recorded"),
            ("--playback-miss", self.playback_miss != "generate"),
        ):
            if is_given and not self.is_on:
                raise OptionError(f"{flag} needs --playback or --enable-playback-control")

    @property
    def is_on(self) -> bool:
        """Whether recorded answers may exist."""
        return bool(self.playback) or self.enable_playback_control
