"""The pairs of servers, by name."""

from tests.wire.asked.cases_details import detail_cases, forced_cases
from tests.wire.asked.cases_fields import beam_cases, field_cases, limit_cases, thinking_cases
from tests.wire.asked.cases_malformed import malformed_cases
from tests.wire.asked.cases_oddities import guidance_cases, oddity_cases
from tests.wire.asked.cases_parts import part_cases
from tests.wire.asked.cases_prompts import bare_cases, cases, named_cases
from tests.wire.asked.cases_responses import response_cases
from tests.wire.asked.setups import FOLDERS_MARK, Setup, as_json

SCALE_OUT = {"enable_scale_out": True}
WITH_TOOLS = {
    **SCALE_OUT,
    "trust_request_chat_template": True,
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
}
SETUPS = (
    Setup(
        "prompts",
        cases,
        settings={
            "trust_request_chat_template": True,
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
        },
    ),
    Setup(
        "responses",
        response_cases,
        settings={**SCALE_OUT, "enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
    ),
    Setup("malformed", malformed_cases, settings=WITH_TOOLS, environment={"VLLM_SERVER_DEV_MODE": "1"}),
    Setup("oddities", oddity_cases, settings=WITH_TOOLS),
    Setup("details", detail_cases, settings=WITH_TOOLS),
    Setup("parts", part_cases, settings=WITH_TOOLS),
    Setup(
        "forced",
        forced_cases,
        settings={**SCALE_OUT, "enable_auto_tool_choice": True, "tool_call_parser": "pythonic"},
        own_settings={"tool_call_not_required_param_probability": 100.0, "max_tool_call_integer_param": 1},
    ),
    Setup(
        "guidance",
        guidance_cases,
        settings={
            "structured_outputs_config": as_json(backend="guidance"),
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
        },
    ),
    Setup("bare", bare_cases, folder="bare", settings=SCALE_OUT),
    Setup(
        "named", named_cases, folder="named", settings={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    ),
    Setup("fields", field_cases, settings=SCALE_OUT, environment={"VLLM_SERVER_DEV_MODE": "1"}),
    Setup("beams", beam_cases, folder="wide"),
    Setup("limited", limit_cases, folder="limited", settings=SCALE_OUT),
    Setup("unlimited", limit_cases, folder="limited", settings={**SCALE_OUT, "generation_config": "vllm"}),
    Setup(
        "overridden",
        limit_cases,
        folder="limited",
        settings={**SCALE_OUT, "override_generation_config": as_json(max_new_tokens=5, temperature=0.75)},
    ),
    Setup("other limits", limit_cases, settings={**SCALE_OUT, "generation_config": f"{FOLDERS_MARK}/limited"}),
    Setup(
        "thinking",
        thinking_cases,
        settings={"reasoning_parser": "deepseek_v3"},
        own_settings={"default_reasoning_tokens": 3},
    ),
)
