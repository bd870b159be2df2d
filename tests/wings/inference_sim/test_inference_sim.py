"""The program `llm-d-inference-sim`, as suites made for that project start it."""

import base64
import json
import os
import re
import signal
import ssl
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError, options_from, options_of
from blis_sim.options.command_line import flags_of, parse_command_line, variable_of
from blis_sim.wings.inference_sim.command import InferenceSimOptions, rewritten, serve_options
from mockserve.options.serve import ServeOptions
from mockserve.options.server import FakeLora, go_duration, milliseconds, read_fake_metrics
from mockserve.options.startup_checks import flags_without_effect, flags_without_observable_effect
from mockserve.options.vllm_flags import ACTS, read_table
from tests import fork_server
from tests.cli.test_spellings import OF_THE_BUILD_AND_THE_TESTS
from tests.patience import PATIENCE_S

PROGRAM = (sys.executable, "-c", "from blis_sim.wings.inference_sim import main; main()")


@contextmanager
def simulator(*arguments: str, servers: int = 1) -> Iterator[list[str]]:
    """The program with these arguments, and the addresses it serves on."""
    command = [*PROGRAM, "--port", "0", "--model", "my/model", *arguments]
    with fork_server.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        addresses: list[str] = []
        try:
            while len(addresses) < servers:
                line = running.stderr.readline()
                assert line, "it ended"
                addresses += re.findall(r"https?://\S+", line)
            yield addresses
            running.send_signal(signal.SIGTERM)
            assert running.wait(PATIENCE_S) == 0
        finally:
            running.kill()


def ask(address: str, path: str = "/v1/completions", **fields: Any) -> Any:
    body = {"prompt": "hello", "max_tokens": 5, "ignore_eos": True, **fields}
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return json.load(reply)


def options(**settings: Any) -> InferenceSimOptions:
    return options_from(InferenceSimOptions, model="my/model", **settings)


@pytest.mark.slow
def test_the_simulator_starts_as_other_suites_start_it() -> None:
    arguments = (
        "--max-waiting-queue-length", "10", "--time-to-first-token", "100", "--time-to-first-token-std-dev=0",
        "--inter-token-latency", "20ms", "--max-num-seqs", "4", "--seed", "42", "--v=4", "--enforce-eager=true",
        "--served-model-name", "a", "b", "--render-url", "http://nowhere", "--mode", "echo",
    )  # fmt: skip
    with simulator(*arguments) as (address,):
        started = time.monotonic()
        reply = ask(address, model="b", prompt="one two three", max_tokens=3)
        assert time.monotonic() - started >= 0.1 + 2 * 0.02
        assert reply["model"] == "a"
        assert reply["choices"][0]["text"] == "one two three"
        with urllib.request.urlopen(f"{address}/health/ready") as ready:
            assert ready.status == 200


@pytest.mark.slow
def test_every_rank_has_a_port_of_its_own() -> None:
    with simulator("--data-parallel-size", "2", servers=2) as addresses:
        assert len(set(addresses)) == 2
        assert [ask(address)["usage"]["completion_tokens"] for address in addresses] == [5, 5]


def test_functions_are_called_without_flags() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}}]
    messages = [{"role": "user", "content": "x"}]
    bounds = ("--min-tool-call-integer-param", "7", "--max-tool-call-integer-param", "7")
    rates = ("--tool-call-not-required-param-probability", "100", "--tool-call-extra-call-probability", "0")
    with simulator(*bounds, *rates) as (address,):
        fields = {"messages": messages, "tools": tools, "tool_choice": "required", "ignore_eos": False}
        reply = ask(address, "/v1/chat/completions", **fields, max_tokens=100)
        (call,) = reply["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"n": 7}


def test_failures_are_injected_at_the_rate_given() -> None:
    with simulator("--failure-injection-rate", "100", "--failure-types", "rate_limit", "server_error") as (address,):
        statuses = set()
        for _ in range(20):
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(address)
            statuses.add(refused.value.code)
            refused.value.close()
        assert statuses == {429, 503}
        assert ask(address, "/v1/embeddings", input="x")["usage"]["prompt_tokens"] > 0


def test_the_metrics_page_shows_made_up_figures() -> None:
    fakes = {
        "running-requests": 7,
        "kv-cache-usage": "squarewave:0.25:0.25:1s",
        "ttft-buckets-values": [1, 2],
        "request-success-total": {"stop": 3},
        "total-prompt-tokens": 99,
    }
    with simulator("--fake-metrics", json.dumps(fakes)) as (address,):
        with urllib.request.urlopen(f"{address}/metrics") as reply:
            page = reply.read().decode()
        labels = 'engine="0",model_name="my/model"'
        for line in (
            f"vllm:num_requests_running{{{labels}}} 7.0",
            f"vllm:kv_cache_usage_perc{{{labels}}} 0.25",
            f"vllm:time_to_first_token_seconds_count{{{labels}}} 3.0",
            f"vllm:prompt_tokens_total{{{labels}}} 99.0",
            'vllm:request_success_total{engine="0",finished_reason="stop",model_name="my/model"} 3.0',
        ):
            assert line in page


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("100", 100), ("1.5", 1.5), ("100ms", 100), ("1.5s", 1500), ("1m30s", 90_000), ("250us", 0.25)],
)
def test_durations_have_units_or_are_milliseconds(text: str, expected: float) -> None:
    assert milliseconds("--x", text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "x", "10 ms", "-1", "5sx", "nan"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(BlisError, match=r"^--x must be "):
        milliseconds("--x", text)


def test_simulator_flags_become_serve_settings() -> None:
    found = serve_options(
        options(
            time_to_first_token="200ms",
            inter_token_latency="20",
            time_factor_under_load=3.0,
            enable_kvcache=True,
            kv_cache_size=100,
            failure_injection_rate=50,
            failure_types=("rate_limit", "server_error"),
            max_waiting_queue_length=7,
            port=8000,
        ),
        {"POD_IP": "10.0.0.1", "POD_NAME": "p", "POD_NAMESPACE": "n"},
        rank=1,
    )
    assert found.network.port == 8001
    assert found.timing.latency_calculator == "constant"
    assert found.deployment.max_num_seqs == 5
    timing = found.timing.request_timing(found.deployment.max_num_seqs, found.content.seed)
    assert timing is not None
    assert (timing.first_token_us, timing.token_gap_us, timing.load_factor, timing.num_slots) == (200e3, 20e3, 3, 5)
    assert (
        found.deployment.total_kv_blocks,
        found.deployment.enable_prefix_caching,
        found.process.max_waiting_requests,
    ) == (101, True, 7)
    assert found.faults.settings.rates == {"rate_limit": 0.25, "overloaded": 0.25}
    assert found.kv_sharing.events.topic == "kv@10.0.0.1:8001@my/model"
    assert found.kv_sharing.events.of_rank(found.kv_sharing.data_parallel_rank).endpoint == "tcp://127.0.0.1:5558"
    assert found.process.pod_headers == ("x-inference-pod=p", "x-inference-namespace=n", "x-inference-port=8001")


@pytest.mark.slow
def test_a_certificate_is_made_and_bodies_are_logged() -> None:
    command = [*PROGRAM, "--port", "0", "--model", "my/model", "--self-signed-certs", "--log-http"]
    with fork_server.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        try:
            (address,) = re.findall(r"https://\S+", next(line for line in running.stderr if "https://" in line))
            anyone = ssl._create_unverified_context()
            for stream in (False, True):
                body = {"prompt": "a question", "max_tokens": 3, "stream": stream, "api_key": "sk-abcdefghij0123456789"}
                kind = {"Content-Type": "application/json"}
                request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), kind)
                urllib.request.urlopen(request, timeout=PATIENCE_S, context=anyone).read()
        finally:
            running.send_signal(signal.SIGTERM)
            said = running.stderr.read()
    assert said.count('request POST /v1/completions {"prompt":"a question"') == 2
    assert 'reply to POST /v1/completions: 200 {"id":' in said
    assert "reply to POST /v1/completions: 200, a stream" in said
    assert "sk-abcdefghij" not in said


def test_without_a_time_to_the_first_token_it_depends_on_the_prompt() -> None:
    found = serve_options(options(prefill_time_per_token="1"), {}, rank=0)
    assert found.timing.latency_calculator == "per-token"
    assert not found.kv_sharing.events.publishes
    assert not found.deployment.enable_prefix_caching


def test_flags_without_meaning_are_named_and_wrong_ones_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SIM_MODEL", "m")
    file = tmp_path / "config.yaml"
    file.write_text(
        "port: 9000\nenable-kvcache: true\nfailure-types: [rate_limit, server_error]\nlog-http: true\n"
        "render-timeout: 9s\n"
    )
    assert rewritten(["--config", str(file), "--enable-kvcache=false", "--dtype", "auto"]) == [
        "--port", "9000", "--enable-kvcache", "--log-http", "--model", "m", "--no-enable-kvcache",
        "--failure-types", '["rate_limit", "server_error"]',
        "--accepted-without-effect", "--dtype,--render-timeout",
    ]  # fmt: skip
    for settings, complaint in (
        ({"inter_token_latency_std_dev": "1"}, "--inter-token-latency-std-dev must be at most 30 % of"),
        ({"failure_types": ("flood",)}, "--failure-types must be one of rate_limit, "),
        ({"max_loras": 3, "max_cpu_loras": 2}, "--max-cpu-loras must be at least --max-loras, 3, got 2"),
    ):
        with pytest.raises(BlisError, match=f"^{complaint}"):
            options(**settings)


def test_adapters_can_be_loaded_without_being_named_at_the_start() -> None:
    command = ("--max-loras", "2")
    with simulator(*command) as (address,):
        body = json.dumps({"lora_name": "ad1", "lora_path": "/adapters/ad1"}).encode()
        request = urllib.request.Request(address + "/v1/load_lora_adapter", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            assert reply.status == 200
        assert ask(address, model="ad1")["model"] == "ad1"


def test_adapter_limits_are_not_reported_as_ineffective_flags() -> None:
    assert list(flags_without_effect(serve_options(options(max_loras=2, max_cpu_loras=4), {}, 0))) == []


def serving(*arguments: str) -> ServeOptions:
    """Return the settings of the server of a command line."""
    found = parse_command_line(InferenceSimOptions, rewritten(list(arguments))).values
    found.setdefault("model", "my/model")
    return serve_options(options_from(InferenceSimOptions, **found), {}, 0)


def test_flags_of_vllm_that_act_in_the_server_act_here() -> None:
    found = serving("--api-key", "k1", "k2", "--enable-force-include-usage", "--no-enable-lora", "--root-path=/x")
    assert found.network.api_key == ("k1", "k2")
    assert found.replies.enable_force_include_usage
    assert not found.lora.enable_lora
    assert found.network.root_path == "/x"
    assert serving("--tool-call-parser", "llama3_json").content.tools.tool_call_parser == "llama3_json"
    assert serving("--scheduling-policy", "priority").deployment.scheduling_policy == "priority"


def test_every_flag_of_vllm_that_acts_in_the_server_acts_here_or_is_named() -> None:
    own = flags_of(InferenceSimOptions)
    for flag in {each.name: each for each in read_table().values()}.values():
        if flag.here != ACTS or flag.name == "--config" or own & set(flag.spellings):
            continue
        value = flag.choices[0] if flag.choices else {"json": "{}", "object": "{}"}.get(flag.kind.rstrip("?"), "1")
        arguments = rewritten(["--model", "m", flag.name, *([] if flag.is_switch else [value])])
        found = parse_command_line(InferenceSimOptions, arguments).values
        named = flags_without_observable_effect(found.get("accepted_without_effect", ()))
        assert ("serve_arguments" in found) != (flag.name in named), flag.name


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["true", "--v=5"], ("-v", "true")),
        (["true", "-v5"], ("-v", "true")),
        (["-v=5", "true"], ("-v", "true")),
        (["false"], ("false",)),
        (["--seed", "7", "stray", "--mode", "echo", "--", "last"], ("stray", "last")),
        ([], ()),
    ],
)
def test_words_behind_a_switch_have_no_meaning_and_are_named(words: list[str], named: tuple[str, ...]) -> None:
    found = serving("--enable-kvcache", *words)
    assert found.deployment.enable_prefix_caching
    assert found.accepted_without_effect == named


@pytest.mark.parametrize("text", ["TRUE", "1", "t"])
def test_a_switch_takes_values_behind_an_equals_sign(text: str) -> None:
    assert serving(f"--enable-kvcache={text}").deployment.enable_prefix_caching
    assert not serving("--enable-kvcache", "--enable-kvcache=F").deployment.enable_prefix_caching
    with pytest.raises(BlisError, match=r"^--enable-kvcache must be true or false, got 'yes'$"):
        serving("--enable-kvcache=yes")


def test_settings_in_yaml_have_the_forms_of_the_original(tmp_path: Path) -> None:
    file = tmp_path / "any-name"
    file.write_text(
        "model: in/file\nenable-kvcache: 'true'\nhash-seed:\nfailure-types: []\nno-such-key: 1\nmax_num_seqs: 7\n"
        "fake-metrics:\n  running-requests: 16\n  loras:\n"
        '  - \'{"running":"lora1,lora2","waiting":"lora3","timestamp":1257894567}\'\n'
        'lora-modules:\n- name: a\n  path: /a\n- \'{"name":"b","path":"/b"}\'\n'
    )
    found = serving("--config", str(file))
    assert found.deployment.model == "in/file"
    assert found.deployment.enable_prefix_caching
    assert found.deployment.max_num_seqs == 7
    assert found.accepted_without_effect == ("--no-such-key",)
    assert [json.loads(each)["name"] for each in found.routes.lora_modules] == ["a", "b"]
    fakes = read_fake_metrics(found.process.fake_metrics)
    assert fakes.loras == [FakeLora("lora1,lora2", "lora3", 1257894567.0)]


@pytest.mark.parametrize("lora", [[1], ["{"], ["[]"]])
def test_adapters_of_fake_metrics_that_are_no_objects_are_refused(lora: list[Any]) -> None:
    with pytest.raises(BlisError, match=r"^--fake-metrics: loras must be a list of objects, got one that is "):
        read_fake_metrics(json.dumps({"loras": lora}))


def test_fake_states_of_adapters_are_limited() -> None:
    assert read_fake_metrics(json.dumps({"loras": [{}] * 1000})).loras
    with pytest.raises(BlisError, match="there may be at most 1000 loras, got 1001"):
        read_fake_metrics(json.dumps({"loras": [{}] * 1001}))


def test_variables_stand_between_the_file_and_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("port: 1\nseed: 1\nmax-num-seqs: 1\n")
    for name, value in (
        ("SIM_SEED", "2"), ("SIM_MAX_NUM_SEQS", "2"), ("SIM_ENABLE_KVCACHE", "true"), ("SIM_UNRELATED", "x"),
        ("SIM_CONFIG", str(file)), ("SIM_FAILURE_TYPES", "rate_limit,server_error"),
        ("SIM_PORT", "tcp://10.0.0.7:8000"), ("SIM_LORA_MODULES", '[{"name": "a", "path": "/a"}]'),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    found = serving("--max-num-seqs", "3", "--failure-injection-rate", "50")
    assert (found.network.port, found.content.seed, found.deployment.max_num_seqs) == (1, 2, 3)
    assert found.deployment.enable_prefix_caching
    assert found.faults.settings.rates == {"rate_limit": 0.25, "overloaded": 0.25}
    assert [json.loads(each) for each in found.routes.lora_modules] == [{"name": "a", "path": "/a"}]
    monkeypatch.setenv("SIM_FAILURE_TYPES", "[")
    with pytest.raises(BlisError, match=r"^SIM_FAILURE_TYPES must be a list"):
        serving()


@pytest.fixture(scope="module")
def caching() -> Iterator[str]:
    """A simulator with a KV cache and a threshold of half the prompt."""
    with simulator("--enable-kvcache", "--global-cache-hit-threshold", "0.5") as (address,):
        yield address


PROMPTS = {
    "/v1/completions": {"prompt": "word " * 64},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "word " * 64}]},
}


@pytest.mark.parametrize(("path", "prompt"), PROMPTS.items())
def test_a_prompt_of_which_the_cache_holds_too_little_gets_no_answer(
    caching: str, path: str, prompt: dict[str, Any]
) -> None:
    refused = ask(caching, path, **prompt)
    assert refused["choices"][0]["finish_reason"] == "cache_threshold"
    assert refused["usage"]["completion_tokens"] == 0
    assert ask(caching, path, **prompt, cache_hit_threshold=0)["usage"]["completion_tokens"] == 5
    answered = ask(caching, path, **prompt, cache_hit_threshold=0.7)
    assert answered["choices"][0]["finish_reason"] == "length"
    assert answered["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    for wrong in (2, -1, "0.5", True):
        with pytest.raises(urllib.error.HTTPError) as error:
            ask(caching, path, **prompt, cache_hit_threshold=wrong)
        assert error.value.code == 400
        error.value.close()


def test_a_model_that_answers_also_embeds_and_takes_pictures(caching: str) -> None:
    vector = ask(caching, "/v1/embeddings", input="x")["data"][0]["embedding"]
    assert len(vector) == 384
    assert len(ask(caching, "/v1/embeddings", input="x", dimensions=8)["data"][0]["embedding"]) == 8
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    content = [{"type": "text", "text": "what is this?"}, picture]
    messages = [{"role": "user", "content": content}]
    reply = ask(caching, "/v1/chat/completions", messages=messages, cache_hit_threshold=0)
    assert reply["usage"]["completion_tokens"] == 5


def test_times_change_while_it_runs(caching: str) -> None:
    def took_s(num_tokens: int) -> float:
        began = time.monotonic()
        ask(caching, prompt="a", max_tokens=num_tokens, cache_hit_threshold=0)
        return time.monotonic() - began

    body = {"time-to-first-token": "150ms", "inter-token-latency": 50, "time-factor-under-load": 2}
    request = urllib.request.Request(f"{caching}/admin/config", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        changed = json.load(reply)
    assert (changed["time-to-first-token"], changed["inter-token-latency"]) == ("150ms", "50ms")
    assert (changed["latency-calculator"], changed["time-factor-under-load"]) == ("per-token", 2)
    assert took_s(3) >= 0.1, "two gaps, and a first token by the length of the prompt"
    with urllib.request.urlopen(
        urllib.request.Request(f"{caching}/admin/config", b'{"latency-calculator": ""}')
    ) as reply:
        assert json.load(reply)["latency-calculator"] == "constant"
    assert took_s(1) >= 0.15
    for wrong in (
        {"inter-token-latency": "x"}, {"inter-token-latency-std-dev": 40}, {"time-factor-under-load": 0},
        {"latency-calculator": "engine"}, {"port": 1},
    ):  # fmt: skip
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(urllib.request.Request(f"{caching}/admin/config", json.dumps(wrong).encode()))
        assert error.value.code == 400
        error.value.close()


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(0, "0s"), (250, "250µs"), (1500, "1.5ms"), (2e6, "2s"), (90.5e6, "1m30.5s"), (7261e6, "2h1m1s")],
)
def test_durations_are_shown_as_go_writes_them(microseconds: float, text: str) -> None:
    assert go_duration(microseconds) == text
    assert milliseconds("--x", text) * 1000 == pytest.approx(microseconds)


def pixels(content: list[dict[str, Any]]) -> tuple[int, int]:
    """Width and height of the picture that a message consists of."""
    (part,) = content
    kind, _, data = part["image_url"]["url"].partition(",")
    assert (part["type"], kind) == ("image_url", "data:image/png;base64")
    width, height = struct.unpack(">II", base64.b64decode(data)[16:24])
    return width, height


def test_pictures_are_answers_where_a_header_or_chance_says_so() -> None:
    times = ("--time-to-generate-image", "200ms", "--time-to-first-token", "10")
    with simulator("--omni", "--image-emission-rate", "100", *times) as (address,):

        def answered(header: str | None, **fields: Any) -> bytes:
            body = {"messages": [{"role": "user", "content": "draw"}], "max_tokens": 5, **fields}
            headers = {"Content-Type": "application/json", **({} if header is None else {"X-Send-Image": header})}
            url = f"{address}/v1/chat/completions"
            with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as reply:
                found: bytes = reply.read()
                return found

        began = time.monotonic()
        whole = json.loads(answered(None))
        assert time.monotonic() - began >= 0.2 * 0.3
        assert pixels(whole["choices"][0]["message"]["content"]) == (64, 64)
        assert (whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]) == ("stop", 1)
        assert isinstance(json.loads(answered("false"))["choices"][0]["message"]["content"], str)
        events = [line[6:] for line in answered("true", stream=True, n=2).split(b"\n") if line.startswith(b"data: {")]
        choices = [choice for each in events for choice in json.loads(each)["choices"]]
        pictures = [each for each in choices if each["finish_reason"] == "stop"]
        assert [each["index"] for each in pictures] == [0, 1]
        assert [pixels(each["delta"]["content"]) for each in pictures] == [(64, 64)] * 2
        assert isinstance(ask(address, "/v1/completions")["choices"][0]["text"], str)


def test_no_setting_takes_a_variable_that_means_something_else() -> None:
    variables = {variable_of(setting) for setting in options_of(InferenceSimOptions)}
    assert variables & {*OF_THE_BUILD_AND_THE_TESTS, "BLIS_FORMAT"} == set()
    assert not [each for each in os.environ if each in variables]
