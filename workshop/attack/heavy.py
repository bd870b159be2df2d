"""Small or well-formed bodies that ask for an unreasonable amount of work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workshop.attack.mutations import nested
from workshop.attack.valid_bodies import CONVERSATION, MODEL

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
GENERATION, POOLING, SCORING, SCALE_OUT = "generation", "pooling", "scoring", "scale-out"


@dataclass(frozen=True, slots=True)
class Heavy:
    """One kind of heavy body; `needs` names the routes that a server must have."""

    name: str
    path: str
    body: Callable[[], Any]
    needs: str = GENERATION


def chat(**fields: Any) -> dict[str, Any]:
    """A chat body with few tokens."""
    return {"model": MODEL, "messages": CONVERSATION, "max_tokens": 16, **fields}


def completion(**fields: Any) -> dict[str, Any]:
    """A completion body with few tokens."""
    return {"model": MODEL, "prompt": "hello", "max_tokens": 16, **fields}


def constrained(**kinds: Any) -> dict[str, Any]:
    """A completion whose text is constrained."""
    return completion(max_tokens=64, structured_outputs=kinds)


def schema(json_schema: Any) -> dict[str, Any]:
    """A chat whose answer follows a JSON schema."""
    return chat(
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": json_schema}}, max_tokens=64
    )


def doubling(keyword: str, levels: int) -> dict[str, Any]:
    """A schema in which each level names the next one twice."""
    definitions: dict[str, Any] = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(levels)
    }
    return {"$defs": {**definitions, f"d{levels}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def rules(count: int) -> str:
    """A grammar of many rules, each of which names the next two."""
    lines = [f'r{each} ::= "a" r{each + 1} | r{each + 2} "b"' for each in range(count)]
    return "\n".join(["root ::= r0", *lines, f'r{count} ::= "c"', f'r{count + 1} ::= "d"'])


def tool(parameters: Any) -> dict[str, Any]:
    """A chat that has to call a tool with such parameters."""
    named = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    return chat(tools=[named], tool_choice={"type": "function", "function": {"name": "f"}})


def wide_object(width: int) -> dict[str, Any]:
    """An object schema with many required properties."""
    names = [f"p{each}" for each in range(width)]
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}


def array(inner: Any, least: int) -> dict[str, Any]:
    """A schema of an array with at least so many items."""
    return {"type": "array", "items": inner, "minItems": least}


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}

HEAVY: tuple[Heavy, ...] = (
    Heavy("regex, backtracking", COMPLETIONS, lambda: constrained(regex="(a+)+" * 50 + "b")),
    Heavy("regex, nested quantifiers", COMPLETIONS, lambda: constrained(regex="((((a{1,30}){1,30}){1,30}){1,30})")),
    Heavy(
        "regex, alternatives repeated",
        COMPLETIONS,
        lambda: constrained(regex="|".join(f"(x{each}){{30000}}" for each in range(200))),
    ),
    Heavy("regex, one repeat", COMPLETIONS, lambda: constrained(regex="a{1000000}")),
    Heavy("regex, 4 MB", COMPLETIONS, lambda: constrained(regex="(ab|c)" * 700_000)),
    Heavy("regex, deep groups", COMPLETIONS, lambda: constrained(regex="(" * 50_000 + "a" + ")" * 50_000)),
    Heavy("regex, many classes", COMPLETIONS, lambda: constrained(regex=r"[\w\d\s]*" * 2000)),
    Heavy("pattern, backtracking", CHAT, lambda: schema({"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"})),
    Heavy("pattern against an enum", CHAT, lambda: schema({"enum": ["a" * 40 + "!"], "pattern": "^(a+)+$"})),
    Heavy(
        "patternProperties, backtracking",
        CHAT,
        lambda: schema(
            {"type": "object", "patternProperties": {"^(a|aa)+$": {"type": "string"}}, "required": ["a" * 60 + "b"]}
        ),
    ),
    Heavy("allOf doubling", CHAT, lambda: schema(doubling("allOf", 40))),
    Heavy("oneOf doubling", CHAT, lambda: schema(doubling("oneOf", 40))),
    Heavy("anyOf doubling", CHAT, lambda: schema(doubling("anyOf", 40))),
    Heavy("not of itself", CHAT, lambda: schema({"not": {"$ref": "#"}})),
    Heavy("reference loop", CHAT, lambda: schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})),
    Heavy(
        "recursive object",
        CHAT,
        lambda: schema(
            {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "required": ["a", "b"]}
        ),
    ),
    Heavy("minItems of minItems", CHAT, lambda: schema(array(array(array({"type": "integer"}, 1000), 1000), 1000))),
    Heavy("minItems of minLength", CHAT, lambda: schema(array({"type": "string", "minLength": 10_000_000}, 10_000))),
    Heavy("minLength", CHAT, lambda: schema({"type": "string", "minLength": 10**9})),
    Heavy("minProperties", CHAT, lambda: schema({"type": "object", "minProperties": 10**7})),
    Heavy(
        "uniqueItems",
        CHAT,
        lambda: schema({"type": "array", "items": {"enum": list(range(5000))}, "minItems": 5000, "uniqueItems": True}),
    ),
    Heavy("uniqueItems of an enum", CHAT, lambda: schema({"enum": [list(range(30_000))], "uniqueItems": True})),
    Heavy("enum of 200,000", CHAT, lambda: schema({"enum": [f"v{each}" for each in range(200_000)]})),
    Heavy("wide object", CHAT, lambda: schema(wide_object(20_000))),
    Heavy("deep schema", CHAT, lambda: schema(nested(800, {"type": "integer"}, "items"))),
    Heavy("const of deep lists", CHAT, lambda: schema({"const": nested(800)})),
    Heavy("multipleOf", CHAT, lambda: schema({"type": "number", "multipleOf": 1e-300, "minimum": 1e300})),
    Heavy("huge bounds", CHAT, lambda: schema({"type": "integer", "minimum": 10**4000, "maximum": 10**4000 + 1})),
    Heavy("grammar of 3,000 rules", COMPLETIONS, lambda: constrained(grammar=rules(3000))),
    Heavy("grammar, left recursion", COMPLETIONS, lambda: constrained(grammar='root ::= root "a" | root root | "b"')),
    Heavy("grammar, ambiguous", COMPLETIONS, lambda: constrained(grammar='root ::= root root root | "a" | ""')),
    Heavy(
        "grammar, nested groups",
        COMPLETIONS,
        lambda: constrained(grammar="root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    ),
    Heavy("grammar, repeats", COMPLETIONS, lambda: constrained(grammar='root ::= (("a"{1,9999}){1,9999}){1,9999}')),
    Heavy("choice of 300,000", COMPLETIONS, lambda: constrained(choice=[f"c{each}" for each in range(300_000)])),
    Heavy("choice of 4 MB", COMPLETIONS, lambda: constrained(choice=["a" * 4_000_000])),
    Heavy(
        "structural tag",
        COMPLETIONS,
        lambda: constrained(
            structural_tag={
                "type": "structural_tag",
                "triggers": ["<a"] * 5000,
                "structures": [{"begin": f"<a{each}>", "schema": {}, "end": "</a>"} for each in range(5000)],
            }
        ),
    ),
    Heavy("tool with a doubling schema", CHAT, lambda: tool(doubling("allOf", 40))),
    Heavy(
        "tool with a backtracking pattern",
        CHAT,
        lambda: tool(
            {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a|a)*b"}}, "required": ["a"]}
        ),
    ),
    Heavy(
        "tool with minItems of minLength",
        CHAT,
        lambda: tool(
            {
                "type": "object",
                "properties": {"a": array({"type": "string", "minLength": 10**7}, 10**4)},
                "required": ["a"],
            }
        ),
    ),
    Heavy(
        "5,000 tools",
        CHAT,
        lambda: chat(
            tool_choice="required",
            tools=[
                {"type": "function", "function": {"name": f"f{each}", "parameters": wide_object(20)}}
                for each in range(5000)
            ],
        ),
    ),
    Heavy(
        "repetition detection",
        COMPLETIONS,
        lambda: completion(
            max_tokens=3000,
            ignore_eos=True,
            repetition_detection={"max_pattern_size": 10_000, "min_pattern_size": 1, "min_count": 2},
        ),
    ),
    Heavy("n of 16384", COMPLETIONS, lambda: completion(n=16384, max_tokens=5)),
    Heavy("n of 16384, streamed", COMPLETIONS, lambda: completion(n=16384, max_tokens=5, stream=True)),
    Heavy("n of 10**9", COMPLETIONS, lambda: completion(n=10**9)),
    Heavy(
        "n of 16384, long",
        CHAT,
        lambda: chat(n=16384, max_tokens=30_000, ignore_eos=True, logprobs=True, top_logprobs=20),
    ),
    Heavy("1,024 prompts of n 128", COMPLETIONS, lambda: completion(prompt=["a"] * 1024, n=128, max_tokens=30_000)),
    Heavy("beams", COMPLETIONS, lambda: completion(use_beam_search=True, n=500, max_tokens=2000, ignore_eos=True)),
    Heavy("200,000 turns", CHAT, lambda: chat(messages=[{"role": "user", "content": "a"}] * 200_000)),
    Heavy("300,000 pictures", CHAT, lambda: chat(messages=[{"role": "user", "content": [PICTURE] * 300_000}])),
    Heavy(
        "100,000 content parts",
        CHAT,
        lambda: chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]),
    ),
    Heavy(
        "100,000 tool calls in a turn",
        CHAT,
        lambda: chat(
            messages=[
                {
                    "role": "assistant",
                    "tool_calls": [{"type": "function", "id": "c", "function": {"name": "f", "arguments": "{}"}}]
                    * 100_000,
                }
            ]
        ),
    ),
    Heavy("300,000 bad words", COMPLETIONS, lambda: completion(bad_words=[f"word{each}" for each in range(300_000)])),
    Heavy("300,000 stop tokens", COMPLETIONS, lambda: completion(stop_token_ids=list(range(300_000)))),
    Heavy("stop strings of 1 MB", COMPLETIONS, lambda: completion(stop=["a" * 1_000_000] * 4, max_tokens=300)),
    Heavy(
        "logit bias of 100,000", COMPLETIONS, lambda: completion(logit_bias={str(each): 1 for each in range(100_000)})
    ),
    Heavy("prompt log probabilities", COMPLETIONS, lambda: completion(prompt=[7] * 39_000, prompt_logprobs=20)),
    Heavy("echoed log probabilities", COMPLETIONS, lambda: completion(prompt="a b " * 15_000, echo=True, logprobs=20)),
    Heavy("prompt of 4 MB", COMPLETIONS, lambda: completion(prompt="word " * 800_000)),
    Heavy("prompt without spaces", COMPLETIONS, lambda: completion(prompt="a" * 2_000_000)),
    Heavy("prompt of spaces", COMPLETIONS, lambda: completion(prompt=" " * 2_000_000)),
    Heavy("prompt of emoji", COMPLETIONS, lambda: completion(prompt="\U0001f600" * 500_000)),
    Heavy("prompt of 1,000,000 ids", COMPLETIONS, lambda: completion(prompt=list(range(5, 1005)) * 1000)),
    Heavy("prompt of large ids", COMPLETIONS, lambda: completion(prompt=[10**30] * 100_000)),
    Heavy("template with a loop", CHAT, lambda: chat(chat_template="{% for x in range(10**9) %}a{% endfor %}")),
    Heavy(
        "template arguments", CHAT, lambda: chat(chat_template_kwargs={f"k{each}": nested(50) for each in range(5000)})
    ),
    Heavy("tokenize 4 MB", "/tokenize", lambda: {"model": MODEL, "prompt": "word " * 800_000}),
    Heavy("tokenize without spaces", "/tokenize", lambda: {"model": MODEL, "prompt": "ab" * 1_000_000}),
    Heavy("detokenize 1,000,000 ids", "/detokenize", lambda: {"model": MODEL, "tokens": [7] * 1_000_000}),
    Heavy(
        "unknown field with 300,000 keys",
        COMPLETIONS,
        lambda: completion(extra={f"k{each}": each for each in range(300_000)}),
    ),
    Heavy("300,000 unknown fields", COMPLETIONS, lambda: completion(**{f"k{each}": each for each in range(300_000)})),
    Heavy("300,000 wrong fields", COMPLETIONS, lambda: completion(prompt=[{"a": 1}] * 300_000)),
    Heavy(
        "batch of 5,000",
        "/v1/chat/completions/batch",
        lambda: {"model": MODEL, "messages": [CONVERSATION] * 5000, "max_tokens": 5},
    ),
    Heavy(
        "responses input of 100,000",
        "/v1/responses",
        lambda: {"model": MODEL, "input": [{"role": "user", "content": "a"}] * 100_000, "max_output_tokens": 16},
    ),
    Heavy(
        "messages of 100,000",
        "/v1/messages",
        lambda: {"model": MODEL, "messages": [{"role": "user", "content": "a"}] * 100_000, "max_tokens": 4},
    ),
    Heavy(
        "count 100,000 messages",
        "/v1/messages/count_tokens",
        lambda: {"model": MODEL, "messages": [{"role": "user", "content": "a"}] * 100_000},
    ),
    Heavy(
        "generate 1,000,000 ids",
        "/inference/v1/generate",
        lambda: {"model": MODEL, "token_ids": [7] * 1_000_000, "sampling_params": {"max_tokens": 4}},
        SCALE_OUT,
    ),
    Heavy(
        "derender 1,000,000 ids",
        "/v1/completions/derender",
        lambda: {
            "model": MODEL,
            "prompt_tokens": [1],
            "generate_responses": [
                {"request_id": "g", "choices": [{"index": 0, "finish_reason": "stop", "token_ids": [7] * 1_000_000}]}
            ],
        },
        SCALE_OUT,
    ),
    Heavy(
        "render 200,000 turns",
        "/v1/chat/completions/render",
        lambda: chat(messages=[{"role": "user", "content": "a"}] * 200_000),
        SCALE_OUT,
    ),
    Heavy("20,000 inputs", "/v1/embeddings", lambda: {"model": MODEL, "input": ["a"] * 20_000}, POOLING),
    Heavy(
        "20,000 inputs, base64",
        "/v1/embeddings",
        lambda: {"model": MODEL, "input": ["a"] * 20_000, "encoding_format": "base64"},
        POOLING,
    ),
    Heavy("pooling of 20,000", "/pooling", lambda: {"model": MODEL, "input": [[7]] * 20_000}, POOLING),
    Heavy(
        "score of 20,000 documents",
        "/score",
        lambda: {"model": MODEL, "text_1": "a", "text_2": ["b"] * 20_000},
        SCORING,
    ),
    Heavy(
        "rerank of 20,000 documents",
        "/rerank",
        lambda: {"model": MODEL, "query": "a", "documents": ["b c"] * 20_000},
        SCORING,
    ),
)
