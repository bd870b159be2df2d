"""How models of vLLM's parsers write function calls and reasoning, so that a genuine parser reads what ours would."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias


class Call(NamedTuple):
    """One function call; `arguments` is a JSON object as text."""

    name: str
    arguments: str

    @property
    def values(self) -> dict[str, Any]:
        """The arguments by name."""
        found: dict[str, Any] = json.loads(self.arguments)
        return found


Write: TypeAlias = Callable[[Sequence[Call]], str]


def _text(value: Any) -> str:
    """A value as tags enclose it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _object(call: Call, key: str = "arguments") -> str:
    return f'{{"name": "{call.name}", "{key}": {call.arguments}}}'


def _enclosed(begin: str, end: str, key: str = "arguments", between: str = "\n") -> Write:
    """A JSON object for each call, each within marks."""
    return lambda calls: between.join(f"{begin}{_object(each, key)}{end}" for each in calls)


def _listed(begin: str, end: str) -> Write:
    """One list of JSON objects within marks."""
    return lambda calls: begin + "[" + ", ".join(map(_object, calls)) + "]" + end


def _python(begin: str, end: str, is_list: bool = True) -> Write:
    """Python calls within marks."""

    def write(calls: Sequence[Call]) -> str:
        said = [f"{each.name}({', '.join(f'{k}={v!r}' for k, v in each.values.items())})" for each in calls]
        return begin + (f"[{', '.join(said)}]" if is_list else "\n".join(said)) + end

    return write


def _qwen(begin: str = "<tool_call>", end: str = "</tool_call>", line: str = "\n", between: str | None = None) -> Write:
    """Functions and parameters as tags that have their names behind an equals sign."""

    def one(call: Call) -> str:
        given = "".join(f"<parameter={k}>{line}{_text(v)}{line}</parameter>{line}" for k, v in call.values.items())
        return f"{begin}{line}<function={call.name}>{line}{given}</function>{line}{end}"

    separator = line if between is None else between
    return lambda calls: separator.join(map(one, calls))


def _keys(
    *marks: str, opening: str = "", closing: str = "", tag: str = "{}", line: str = "\n", between: str | None = None
) -> Write:
    """Names of arguments and their values as tags of their own. `marks` are those of a call and what follows its name;
    `tag` is how tags are named.
    """
    begin, end, after_name = marks

    def pair(key: str, value: Any) -> str:
        names = (tag.format("arg_key"), tag.format("arg_value"))
        return f"<{names[0]}>{key}</{names[0]}>{line}<{names[1]}>{_text(value)}</{names[1]}>{line}"

    def one(call: Call) -> str:
        return f"{begin}{call.name}{after_name}{''.join(pair(*each) for each in call.values.items())}{end}"

    separator = line if between is None else between
    return lambda calls: opening + separator.join(map(one, calls)) + closing


def _invoked(
    opening: str, closing: str, invoke: str = "invoke", parameter: str = "parameter", typed: bool = False
) -> Write:
    """Functions and parameters as tags with a `name`."""

    def pair(key: str, value: Any) -> str:
        kind = f' string="{str(isinstance(value, str)).lower()}"' if typed else ""
        return f'<{parameter} name="{key}"{kind}>{_text(value)}</{parameter}>\n'

    def one(call: Call) -> str:
        return f'<{invoke} name="{call.name}">\n{"".join(pair(*each) for each in call.values.items())}</{invoke}>\n'

    return lambda calls: opening + "".join(map(one, calls)) + closing


def _braces(begin: str, end: str, quote: str, quotes_all: bool = False) -> Write:
    """Gemma's objects, whose texts are within marks; with `quotes_all` every value is."""

    def value(given: Any) -> str:
        return f"{quote}{_text(given)}{quote}" if quotes_all or isinstance(given, str) else json.dumps(given)

    def one(call: Call) -> str:
        return f"{begin}call:{call.name}{{{','.join(f'{k}:{value(v)}' for k, v in call.values.items())}}}{end}"

    return lambda calls: "".join(map(one, calls))


_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)


def _deepseek(separator: str = "") -> Write:
    opening, closing, begin, end, between = _DEEPSEEK

    def write(calls: Sequence[Call]) -> str:
        said = (f"{begin}function{between}{each.name}\n```json\n{each.arguments}\n```{end}" for each in calls)
        return opening + separator.join(said) + closing

    return write


def _deepseek_31(calls: Sequence[Call]) -> str:
    opening, closing, begin, end, between = _DEEPSEEK
    return opening + "".join(f"{begin}{each.name}{between}{each.arguments}{end}" for each in calls) + closing


def _dsml(mark: str, space: str = "") -> Write:
    prefix = f"｜DSML｜{space}"
    return _invoked(f"<{prefix}{mark}>\n", f"</{prefix}{mark}>", f"{prefix}invoke", f"{prefix}parameter", typed=True)


def _kimi_2(calls: Sequence[Call]) -> str:
    said = (
        f"<|tool_call_begin|>functions.{each.name}:{number}<|tool_call_argument_begin|>{each.arguments}<|tool_call_end|>"
        for number, each in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{''.join(said)}<|tool_calls_section_end|>"


def _kimi_3(calls: Sequence[Call]) -> str:
    def pair(key: str, value: Any) -> str:
        kind = "string" if isinstance(value, str) else "number"
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{_text(value)}<|close|>argument<|sep|>'

    said = (
        f'<|open|>call tool="{each.name}" index="{number}"<|sep|>'
        f"{''.join(pair(*item) for item in each.values.items())}<|close|>call<|sep|>"
        for number, each in enumerate(calls, 1)
    )
    return f"<|open|>tools<|sep|>{''.join(said)}<|close|>tools<|sep|>"


_NS = "]<]minimax[>["


def _minimax_3(calls: Sequence[Call]) -> str:
    said = (
        f'{_NS}<invoke name="{each.name}">'
        f"{''.join(f'{_NS}<{k}>{_text(v)}{_NS}</{k}>' for k, v in each.values.items())}{_NS}</invoke>\n"
        for each in calls
    )
    return f"{_NS}<tool_call>\n{''.join(said)}{_NS}</tool_call>"


def _plamo(calls: Sequence[Call]) -> str:
    def mark(name: str, is_end: bool = False) -> str:
        return f"<|plamo:{'end' if is_end else 'begin'}_tool_{name}:plamo|>"

    said = (
        f"{mark('request')}{mark('name')}{each.name}{mark('name', True)}"
        f"{mark('arguments')}<|plamo:constrain|>json<|plamo:msg|>{each.arguments}{mark('arguments', True)}"
        f"{mark('request', True)}"
        for each in calls
    )
    return mark("requests") + "".join(said) + mark("requests", True)


def _muse(calls: Sequence[Call]) -> str:
    write = _invoked("<atem:function_calls>\n", "</atem:function_calls>", "atem:invoke", "atem:parameter")
    return "<|eom|>".join(f"<|start|>assistant to={each.name}<|message|>{write([each])}" for each in calls) + "<|eom|>"


def _inkling(calls: Sequence[Call]) -> str:
    begin, end = "<|message_model|><|content_invoke_tool_json|>", "<|end_message|>"
    return "".join(f"{begin}{_object(each, 'args')}{end}" for each in calls)


def _apertus(calls: Sequence[Call]) -> str:
    said = ", ".join(f'{{"{each.name}": {each.arguments}}}' for each in calls)
    return f"<|tools_prefix|>[{said}]<|tools_suffix|>"


def _minicpm(calls: Sequence[Call]) -> str:
    def one(call: Call) -> str:
        given = "".join(f'<param name="{k}">{_text(v)}</param>' for k, v in call.values.items())
        return f'<function name="{call.name}">{given}</function>'

    return "".join(map(one, calls))


def _step_3(calls: Sequence[Call]) -> str:
    def one(call: Call) -> str:
        given = "".join(f'<steptml:parameter name="{k}">{_text(v)}</steptml:parameter>' for k, v in call.values.items())
        invoked = f'<steptml:invoke name="{call.name}">{given}</steptml:invoke>'
        return f"<｜tool_call_begin｜>function<｜tool_sep｜>{invoked}<｜tool_call_end｜>"

    return f"<｜tool_calls_begin｜>{''.join(map(one, calls))}<｜tool_calls_end｜>"


def _mistral(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{each.name}{each.arguments}" for each in calls)


def _cohere(calls: Sequence[Call]) -> str:
    said = (
        f'    {{"tool_call_id": "{number}", "tool_name": "{each.name}", "parameters": {each.arguments}}}'
        for number, each in enumerate(calls)
    )
    return "<|START_ACTION|>[\n" + ",\n".join(said) + "\n]<|END_ACTION|>"


_HERMES = _enclosed("<tool_call>\n", "\n</tool_call>")
_GLM = _keys("<tool_call>", "</tool_call>", "", line="")
CALLS: Mapping[str, Write] = {
    "apertus": _apertus,
    **dict.fromkeys(("cohere_command3", "cohere_command4"), _cohere),
    "deepseek_v3": _deepseek("\n"),
    "deepseek_v31": _deepseek_31,
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v41": _dsml("calls", " "),
    "dots": _invoked("<dots_function_call>", "</dots_function_call>"),
    "ernie45": _HERMES,
    "functiongemma": _braces("<start_function_call>", "<end_function_call>", "<escape>", quotes_all=True),
    "gemma4": _braces("<|tool_call>", "<tool_call|>", '<|"|>'),
    "gigachat3": _enclosed("<|function_call|>", ""),
    "glm45": _GLM,
    "glm47": _GLM,
    "granite": _listed("<|tool_call|> ", ""),
    "granite-20b-fc": _enclosed("<function_call> ", ""),
    "granite4": _enclosed("<tool_call> ", " </tool_call>", between=""),
    "hermes": _HERMES,
    "hunyuan_a13b": _listed("<tool_calls>", "</tool_calls>"),
    "hy_v3": _keys("<tool_call>", "</tool_call>", "<tool_sep>\n", opening="<tool_calls>\n", closing="\n</tool_calls>"),
    "hy_v4": _keys("<tool_call>", "</tool_call>", "", opening="<tool_calls>", closing="</tool_calls>", line=""),
    "inkling": _inkling,
    "internlm": _enclosed("<|action_start|><|plugin|>", "<|action_end|>", "parameters"),
    "jamba": _listed("<tool_calls>", "</tool_calls>"),
    "k2_horizon": _keys(
        "<ifm|tool_call>",
        "</ifm|tool_call>",
        "\n",
        opening="<ifm|tool_calls>",
        closing="</ifm|tool_calls>",
        tag="ifm|{}",
    ),
    "kimi_k2": _kimi_2,
    "kimi_k3": _kimi_3,
    "lfm2": _python("<|tool_call_start|>", "<|tool_call_end|>"),
    "ling3": _GLM,
    "llama3_json": _enclosed("", "", "parameters", "; "),
    "llama4_json": _enclosed("", "", "parameters", "; "),
    "llama4_pythonic": _python("<|python_start|>", "<|python_end|>"),
    "longcat": _enclosed("<longcat_tool_call>", "</longcat_tool_call>"),
    "mimo": _qwen(line=""),
    "minicpm5": _minicpm,
    "minimax_m2": _invoked("<minimax:tool_call>\n", "</minimax:tool_call>"),
    "minimax_m3": _minimax_3,
    "mistral": _mistral,
    "muse": _muse,
    "muse_glimmer": _muse,
    "musespark1x": _muse,
    "olmo3": _python("<function_calls>", "</function_calls>", is_list=False),
    "phi4_mini_json": _listed("functools", ""),
    "plamo3": _plamo,
    "poolside_v1": _keys("<tool_call>", "</tool_call>", "\n", between=""),
    "pythonic": _python("", ""),
    "qwen3_coder": _qwen(),
    "qwen3_json": _HERMES,
    "qwen3_xml": _qwen(),
    "seed_oss": _qwen("<seed:tool_call>", "</seed:tool_call>"),
    "step3": _step_3,
    "step3p5": _qwen(),
    "step5": _qwen(between=""),
    "xlam": _listed("", ""),
}
"""By the name of the parser. The others need a tokenizer or a library that the search does not have."""

FORCED_AS_JSON = frozenset(
    {
        *("apertus", "ernie45", "functiongemma", "gigachat3", "granite", "granite-20b-fc", "granite4", "hunyuan_a13b"),
        *("hy_v3", "internlm", "jamba", "lfm2", "llama4_pythonic", "minicpm5", "olmo3", "phi4_mini_json", "pythonic"),
        *("seed_oss", "step3", "xlam"),
    }
)
"""Parsers whose models write calls that are forced as bare JSON: a list of them, or the arguments of a named one."""
FORCED_CALLS: Mapping[str, Write] = {"mistral": _listed("", "")}
"""By parser: calls that are forced where the grammar has another form for them."""
CHANNELS: Mapping[str, tuple[str, str]] = {"kimi_k3": ("<|open|>response<|sep|>", "<|close|>response<|sep|>")}
"""By parser: marks around text that a grammar of calls does not do without."""
BEFORE_FORCED = {
    **dict.fromkeys(("deepseek_v32", "deepseek_v4", "deepseek_v41"), "\n\n"),
    "kimi_k3": "".join(CHANNELS["kimi_k3"]),
    "minimax_m2": "\n",
}
"""By parser: what the grammar of calls that are forced has before them."""


def forced(calls: Sequence[Call], is_named: bool) -> str:
    """Calls of a model whose parser does not read calls that are forced."""
    if is_named:
        return calls[0].arguments
    return json.dumps([{"name": each.name, "parameters": each.values} for each in calls])


class Thought(NamedTuple):
    """Marks around reasoning, and around what follows it."""

    begin: str = "<think>"
    end: str = "</think>"
    answer: str = ""
    end_of_answer: str = ""


_CHANNELS = Thought(
    "<|start|>assistant to=self<|message|>", "<|eom|>", "<|start|>assistant to=user<|message|>", "<|eot|>"
)
THOUGHTS: Mapping[str, Thought] = {
    "cohere_command3": Thought("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    "cohere_command4": Thought("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    "ernie45": Thought(answer="\n\n<response>\n", end_of_answer="\n</response>\n"),
    "gemma4": Thought("<|channel>thought\n", "<channel|>"),
    "granite": Thought("Here is my thought process:", "Here is my response:"),
    "hunyuan_a13b": Thought("<think>\n", "\n</think>\n<answer>\n", end_of_answer="\n</answer>"),
    "inkling": Thought(
        "<|message_model|><|content_thinking|>",
        "<|end_message|>",
        "<|message_model|><|content_text|>",
        "<|end_message|>",
    ),
    "k2_horizon": Thought("<ifm|think>", "</ifm|think>"),
    "kimi_k3": Thought(
        "<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>", "<|close|>response<|sep|>"
    ),
    "minimax_m3": Thought("<mm:think>", "</mm:think>"),
    "mistral": Thought("[THINK]", "[/THINK]"),
    **dict.fromkeys(("muse", "muse_glimmer", "musespark1x"), _CHANNELS),
    "plamo3": Thought("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    "seed_oss": Thought("<seed:think>", "</seed:think>"),
}
"""By the name of the parser; the others have the usual marks."""
PAIRED = frozenset({"cohere_command3", "cohere_command4"})
"""Parsers that read an answer only together with the parser of the other kind; vLLM needs `cohere-melody` for them."""
WITHOUT_MARKUP = frozenset({"beam", *PAIRED, "hf", "openai", "openai_gptoss"})
"""Parsers that are not searched alone: they are paired, or need a tokenizer that the search does not have."""

MARKS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<response>", "</response>", "<|tool_call|>", "<0x0A>"),
    *("<|tools_prefix|>", "<|tools_suffix|>", *_DEEPSEEK, "｜DSML｜", "<|channel>", "<channel|>", "<|tool_call>"),
    *(
        "<tool_call|>",
        '<|"|>',
        "<|turn>",
        "<turn|>",
        "<|tool_response>",
        "<start_function_call>",
        "<end_function_call>",
    ),
    *("<escape>", "<|function_call|>", "<|role_sep|>", "<|message_sep|>", "<|message_model|>", "<|content_text|>"),
    *("<|content_thinking|>", "<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>", "<|content_tool_error|>"),
    *("<|content_model_end_sampling|>", "<|end_message|>", "<|action_start|>", "<|plugin|>", "<|action_end|>"),
    *("<tool_calls>", "</tool_calls>", "<tool_sep>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("<ifm|tool_calls>", "</ifm|tool_calls>", "<ifm|tool_call>", "</ifm|tool_call>", "<ifm|arg_key>"),
    *("</ifm|arg_key>", "<ifm|arg_value>", "</ifm|arg_value>", "<ifm|arg_type>", "</ifm|arg_type>", "<ifm|think>"),
    *("</ifm|think>", "<ifm|think_fast>", "</ifm|think_fast>", "<ifm|think_faster>", "</ifm|think_faster>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
    *("<|tool_call_argument_begin|>", "<|open|>", "<|close|>", "<|sep|>", "<|tool_call_start|>", "<|python_start|>"),
    *("<|python_end|>", "<|python_tag|>", "<longcat_tool_call>", "</longcat_tool_call>", "<minimax:tool_call>"),
    *("</minimax:tool_call>", _NS, "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<|start|>", "<|message|>"),
    "<|eom|>",
    *("<|eot|>", "<|plamo:begin_", "<|plamo:end_", ":plamo|>", "<seed:tool_call>", "</seed:tool_call>", "<seed:think>"),
    *("</seed:think>", "<seed:bos>", "<seed:eos>", "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_sep｜>"),
    *("<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<mm:think>", "</mm:think>", "<|im_start|>", "<|im_end|>"),
    "<assistant>",
    *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>"),
    *("<|END_TEXT|>", "<|START_ACTION|>", "<|END_ACTION|>", "<|CHATBOT_TOKEN|>"),
    *("<dots_function_call>", "</dots_function_call>", "<function_call>", "<answer>", "</answer>"),
)
"""Tokens that parsers look for in the vocabulary."""
