import json
from typing import Any

import pytest

from blis_sim.options import OptionError
from traces.redaction import Redactor, without_secret_headers, without_secret_members, without_secret_parameters


def chunks(*texts: str) -> list[str]:
    return [json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in texts]


def said(payloads: list[str]) -> list[str]:
    return [json.loads(each)["choices"][0]["delta"]["content"] for each in payloads]


def test_a_match_that_came_in_pieces_is_redacted_in_all_of_them() -> None:
    redacted = Redactor([r"sk-[a-z0-9]+"]).events([*chunks("my s", "k-ab", "c9 is", " sk-1"), "[DONE]"])
    assert said(redacted[:-1]) == ["my [redacted]", "", " is", " [redacted]"]
    assert redacted[-1] == "[DONE]"


def test_text_of_different_choices_is_not_joined() -> None:
    events = [json.dumps({"choices": [{"index": n, "delta": {"content": t}}]}) for n, t in ((0, "s"), (1, "k-a"))]
    assert Redactor(["sk-a"]).events(events) == events


def test_escapes_of_json_hide_nothing() -> None:
    body = '{"messages":[{"content":"mail a\\u0040b.c now"}],"n":1}'
    assert Redactor([r"\S+@\S+"]).body(body) == '{"messages":[{"content":"mail [redacted] now"}],"n":1}'


def test_escapes_in_names_and_large_integers_hide_nothing() -> None:
    names = r'{"metadata":{"J\u00fcrgen":1,"\u00e9sk-abcdefghij1234567890ABCDEF":2}}'
    redacted = Redactor(["J[üu]rgen"]).body(names)
    assert "rgen" not in redacted
    assert "sk-abc" not in redacted
    assert Redactor([r"\b4\d{15,}\b"]).body('{"a":411111111111111111111}') == '{"a":"[redacted]"}'
    card, id = "4" * 20, 123456789012345678901234567890
    kept = Redactor([card]).body(f'{{"id":{id},"card":"{card}"}}')
    assert json.loads(kept) == {"id": id, "card": "[redacted]"}


def test_a_body_without_anything_to_remove_stays_byte_for_byte() -> None:
    body = '{ "a" : [1, 2.50, "x\\u00e9"] }'
    assert Redactor(["zzz"]).body(body) == body


def test_members_that_are_keys_are_removed_without_any_pattern() -> None:
    body = '{"tools":[{"type":"mcp","authorization":"t0p","headers":{"X-Api-Key":"k"}}],"token":"word"}'
    redacted = json.loads(Redactor([]).body(body))
    assert redacted["tools"][0] == {"type": "mcp", "authorization": "[removed]", "headers": {"X-Api-Key": "[removed]"}}
    assert redacted["token"] == "[removed]"
    assert "t0p" not in Redactor([]).events([body])[0]


def test_headers_and_parameters_with_keys_lose_their_values() -> None:
    headers = [("Authorization", "Bearer x"), ("X-API-Key", "y"), ("Cookie", "z"), ("Accept", "*/*")]
    assert [value for _, value in without_secret_headers(headers)] == ["[removed]"] * 3 + ["*/*"]
    assert without_secret_parameters("/v1/x?api%5Fkey=1&n=2&key=3") == "/v1/x?api%5Fkey=[removed]&n=2&key=[removed]"


def test_a_pattern_that_is_none_is_refused_by_its_flag() -> None:
    with pytest.raises(OptionError, match=r"--redact must be a regular expression of RE2, got '\(a' .*"):
        Redactor(["(a"])


def test_many_small_texts_are_searched_at_once_and_each_for_itself() -> None:
    texts = ["-----BEGIN RSA PRIVATE KEY-----\nabc", "my api_key", "= not-a-value-1", "x", "sk-proj-abcdefghij0123"]
    body = json.loads(Redactor(["^x$"]).body(json.dumps({"texts": texts, "same": ["xx", "x"]})))
    assert body == {
        "texts": ["[removed]", "my api_key", "= not-a-value-1", "[redacted]", "[removed]"],
        "same": ["xx", "[redacted]"],
    }


def test_what_is_repeated_of_known_secrets_is_removed_where_they_overlap() -> None:
    redactor = Redactor([]).hiding(["secret-one-1", "one-1-and-2", "EMPTY", "short"])
    assert redactor.text("a secret-one-1-and-2 of EMPTY and short words") == "a [removed] of EMPTY and short words"


@pytest.mark.parametrize("secret", [
    "gldt-" + "Ab3" * 7, "dor_v1_" + "0af" * 12, "GOCSPX-" + "Ab3" * 7, "LTAI" + "5tAb" * 5, "hvs." + "CAES" * 6,
    "dckr_pat_" + "Ab3" * 7, "whsec_" + "Ab3" * 8, "lin_api_" + "Ab3" * 8, "ntn_" + "123" * 8, "figd_" + "Ab3" * 8,
    "glsa_" + "Ab3" * 8, "sntrys_" + "Ab3" * 8, "sq0csp-" + "Ab3" * 8, "tvly-" + "Ab3" * 8, "pcsk_" + "Ab3" * 8,
    "lsv2_pt_" + "0af" * 8, "ATATT3xFfGF0" + "Ab3" * 8, "pscale_tkn_" + "Ab3" * 8, "key-" + "0a" * 16,
    "fc-" + "0a" * 16, "110201543:AA" + "HdqTcv" * 5 + "abc", "AGE-SECRET-KEY-1" + "QL3Z" * 14,
    "hooks.slack.com/services/T00000000/B00000000/" + "X" * 24, "discord.com/api/webhooks/123456789/" + "aB3" * 20,
])  # fmt: skip
def test_keys_of_well_known_services_are_found_by_their_shape(secret: str) -> None:
    assert secret not in Redactor([]).text(f"they said ({secret}), and went on")


@pytest.mark.parametrize("text", [
    "fw_update and key-value pairs", "pul-ling through", "the fc-layer", "12345678:AAPL rose", "hv_sensor",
    "key-management-service-for-everyone", "npm_config", "docs.slack.com/services/list",
])  # fmt: skip
def test_words_that_begin_like_keys_stay(text: str) -> None:
    assert Redactor([]).text(text) == text


def test_half_of_a_pair_of_surrogates_hides_nothing_and_stays() -> None:
    redactor = Redactor(["b@c"]).hiding(["0therSecret"])
    body = '{"text":"\\ud83d sk-0123456789abcdef \\udc00 b@c","0therSecret":1,"more":"\\ud83d"}'
    expected = '{"text":"\\ud83d [removed] \\udc00 [redacted]","[removed]":1,"more":"\\ud83d"}'
    assert redactor.data(body.encode()).decode() == expected
    assert redactor.events([body]) == [body.replace("sk-0123456789abcdef", "[removed]").replace("b@c", "[redacted]")]
    assert redactor.text("\ud83d b@c") == "\ud83d [redacted]"
    assert redactor.body('["\\ud83d"]') == '["\\ud83d"]'


def test_places_are_counted_in_characters_of_any_width() -> None:
    text = "é sk-0123456789abcdef \U0001f600 ÿ api_key=s3cret99 中 b@c sk-0123456789abcdef é"
    expected = "é [removed] \U0001f600 ÿ api_key=[removed] 中 [redacted] [removed] é"
    assert Redactor(["b@c", "x*"]).text(text) == expected
    assert said(Redactor(["b@c"]).events(chunks(text[:7], text[7:40], text[40:])))[-1].endswith(" é")
    assert "".join(said(Redactor(["b@c"]).events(chunks(text[:7], text[7:40], text[40:])))) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "description": "The password."},
        {"type": ["string", "null"], "minLength": 8},
        {"$ref": "#/$defs/key"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"properties": {"a": {"type": "string"}}},
        {"enum": ["basic", "digest"]},
    ],
)
def test_a_schema_under_the_name_of_a_secret_stays(schema: dict[str, Any]) -> None:
    value = {"properties": {"password": schema}}
    assert without_secret_members(json.loads(json.dumps(value))) == (value, False)


@pytest.mark.parametrize(
    "member",
    [
        {"type": "hunter2hunter2"},
        {"type": []},
        {"description": "hunter2hunter2"},
        {"$ref": "hunter2hunter2"},
        {"anyOf": ["hunter2hunter2"]},
        {"type": "string", "value": "hunter2hunter2"},
        {"type": "string", "old": ["hunter2hunter2"]},
        {"type": "string", "default": "hunter2hunter2"},
    ],
)
def test_an_object_that_is_no_schema_keeps_no_secret(member: dict[str, Any]) -> None:
    value, _ = without_secret_members({"password": member})
    assert "hunter2" not in json.dumps(value)
