"""A model's tokenizer, chat template and answers, tokens of parsers, and its `generation_config.json`."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from blis_sim.options import OptionError
from mockserve.generation.chat_templates.conversations import Conversations, open_conversations
from mockserve.generation.composer import Composer
from mockserve.generation.dataset import open_dataset
from mockserve.generation.prose import Prose
from mockserve.generation.tokenizer.file import load_tokenizer, read_json_object
from mockserve.generation.tokenizer.tokenizer import Tokenizer
from mockserve.options.content import ContentOptions, json_object
from mockserve.protocol.sampling.sampling import NO_DEFAULTS, SAMPLING_NAMES, GenerationDefaults, raised_temperature

_THINK = ("<think>", "</think>")
_CALLS = ("<tool_calls>", "</tool_calls>")
_DEEPSEEK = ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>")
_MISTRAL = (("[TOOL_CALLS]",), "Mistral parser could not locate the tool call token in the tokenizer!")


def _lacks_thinking(parser: str) -> str:
    return f"{parser} reasoning parser could not locate think start/end tokens in the tokenizer!"


def _lacks_calls(parser: str) -> str:
    return f"{parser} could not locate tool call start/end tokens in the tokenizer!"


_BOT = "Llama3JsonToolParser could not locate the bot token '<|python_tag|>' in the tokenizer."
TOOL_PARSERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "deepseek_v3": (_DEEPSEEK, _lacks_calls("DeepSeek-V3 Tool parser")),
    "deepseek_v31": (_DEEPSEEK, _lacks_calls("DeepSeek-V3.1 Tool parser")),
    "hy_v3": (_CALLS, _lacks_calls("HYV3 Tool parser")),
    "hy_v4": (_CALLS, _lacks_calls("HYV4 tool extractor")),
    "jamba": (_CALLS, "Jamba Tool parser could not locate tool calls start/end tokens in the tokenizer!"),
    "lfm2": (
        ("<|tool_call_start|>", "<|tool_call_end|>"),
        "LFM2 tool parser could not locate <|tool_call_start|>/<|tool_call_end|> tokens in the tokenizer!",
    ),
    "llama3_json": (("<|python_tag|>",), _BOT),
    "llama4_json": (("<|python_tag|>",), _BOT),
    "mistral": _MISTRAL,
}
REASONING_PARSERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "deepseek_r1": (_THINK, _lacks_thinking("DeepSeekR1ReasoningParser")),
    "ernie45": (_THINK, _lacks_thinking("Ernie45ReasoningParser")),
    "holo2": (_THINK, _lacks_thinking("DeepSeekR1ReasoningParser")),
    "hy_v3": (_THINK, _lacks_thinking("HYV3ReasoningParser")),
    "hy_v4": (_THINK, "HYV4 reasoning extractor could not locate think start/end tokens in the tokenizer!"),
    "k2_horizon": (("<ifm|think>", "</ifm|think>"), _lacks_thinking("K2HorizonReasoningParser")),
    "minimax_m3": (("<mm:think>", "</mm:think>"), _lacks_thinking("MiniMaxM3ReasoningParser")),
    "mistral": _MISTRAL,
    "poolside_v1": (("<assistant>",), "Tokenizer must contain '<assistant>' token"),
    "step3": (("</think>",), "Step3 reasoning parser could not locate think end token in the tokenizer!"),
    "step5": (_THINK, _lacks_thinking("DeepSeekR1ReasoningParser")),
}


def parser_problem(
    tool_parser: str | None, reasoning_parser: str | None, tokenizer: Tokenizer, model: str
) -> str | None:
    """Return why vLLM would not start with these parsers, or None if it would."""
    needs = (REASONING_PARSERS.get(reasoning_parser or ""), TOOL_PARSERS.get(tool_parser or ""))
    missing = [
        complaint
        for tokens, complaint in filter(None, needs)
        if any(tokenizer.marker_id(token) is None for token in tokens)
    ]
    if not missing:
        return None
    flags = [f"--tool-call-parser {tool_parser}"] if tool_parser else []
    flags += [f"--reasoning-parser {reasoning_parser}"] if reasoning_parser else []
    return f"{' and '.join(flags)} cannot be used with the tokenizer of {model!r}: {missing[0]}"


def open_vocabulary(options: ContentOptions, model: str, vocabulary_size: int) -> tuple[Tokenizer, Conversations]:
    """Load tokenizer and chat template from --tokenizer, the model folder, or the built-ins.

    A MODEL folder is used only if the tokenizers library is there: without --tokenizer no library is needed. Raises
    OptionError for files that cannot be read.
    """
    path = options.tokenizer
    if path is None and (Path(model) / "tokenizer.json").is_file() and find_spec("tokenizers") is not None:
        path = model
    folder = None
    if path is not None:
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
    return load_tokenizer(path, vocabulary_size), open_conversations(options, folder)


def new_composer(options: ContentOptions, tokenizer: Tokenizer) -> Composer:
    """The composer that the options describe. Raises OptionError for a data set that cannot be read."""
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
    """The defaults that the options ask for; `model` may be a folder with a file of them.

    Raises OptionError for a file or a value that makes no sense.
    """
    source = options.generation_config
    config: dict[str, Any] = {}
    if source != NONE:
        folder = Path(model if source == AUTO else source)
        if source != AUTO and not (folder / FILE).is_file():
            raise OptionError(f"--generation-config must be auto, vllm or a folder with a {FILE}, got {source!r}")
        config = read_json_object(folder / FILE, "--generation-config")
        _check(str(folder / FILE), config)
    override = json_object(OVERRIDE_FLAG, options.override_generation_config)
    _check(OVERRIDE_FLAG, override)
    config |= override
    if not config:
        return NO_DEFAULTS
    max_tokens = config.get(_MAX_NEW_TOKENS)
    sampling = {name: config[name] for name in SAMPLING_NAMES if config.get(name) is not None}
    if "temperature" in sampling:
        sampling["temperature"] = raised_temperature(sampling["temperature"])
    is_own_choice = source not in (AUTO, NONE)
    return GenerationDefaults(sampling, max_tokens, max_tokens if is_own_choice else override.get(_MAX_NEW_TOKENS))


def _check(where: str, config: Mapping[str, Any]) -> None:
    for name, kinds in _KINDS.items():
        value = config.get(name)
        is_wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        if value is not None and is_wrong:
            names = " or ".join(kind.__name__ for kind in kinds)
            raise OptionError(f"{where}: {name} must be {names}, got {value!r}")
    max_tokens = config.get(_MAX_NEW_TOKENS)
    if max_tokens is not None and max_tokens < 1:
        raise OptionError(f"{where}: {_MAX_NEW_TOKENS} must be at least 1, got {max_tokens}")
