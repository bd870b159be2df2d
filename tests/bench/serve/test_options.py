from math import inf
from typing import Any

import orjson
import pytest

from blis_sim.bench.serve_command import rewritten
from blis_sim.bench.serve_options import BenchServeOptions, BodyStyle
from blis_sim.options import BlisError, options_from


def test_lists_follow_their_flag_as_with_vllm() -> None:
    given = ["--goodput", "ttft:200", "tpot:50", "--request_rate", "4", "--header", "a=1", "b=2", "--model=m"]
    assert sorted(rewritten(given)) == sorted(
        ["--request-rate", "4", "--model=m", "--goodput", '["ttft:200", "tpot:50"]', "--header", '["a=1", "b=2"]']
    )


def test_flags_that_change_nothing_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert rewritten(["--disable-tqdm", "--tokenizer-mode", "auto", "--seed", "3"]) == ["--seed", "3"]
    assert capsys.readouterr().err == "blis bench serve: without effect: --disable-tqdm, --tokenizer-mode\n"


def test_rates_and_limits_are_read() -> None:
    options = options_from(
        BenchServeOptions, request_rate=("1", "2.5", "inf"), goodput=("ttft:200ms", "tpot:50,e2el:1s")
    )
    assert options.rates == [1, 2.5, inf]
    assert options.limits_ms == {"ttft": 200, "tpot": 50, "e2el": 1000}


def test_the_server_is_made_of_host_and_port_and_the_path_of_the_backend() -> None:
    assert options_from(BenchServeOptions, port=8123).server.url == "http://127.0.0.1:8123"
    assert options_from(BenchServeOptions, host="::1").server.host == "::1"
    assert options_from(BenchServeOptions, backend="openai-chat").path == "/v1/chat/completions"
    assert options_from(BenchServeOptions, endpoint="/other/completions").path == "/other/completions"


def test_sampling_parameters_and_extra_fields_are_in_every_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    options = options_from(
        BenchServeOptions, temperature=0.5, top_k=3, extra_body='{"top_k": 4, "x": [1]}', header=("Team=a",)
    )
    assert options.extra_fields == {"temperature": 0.5, "top_k": 4, "x": [1]}
    assert options.headers == {"authorization": "Bearer secret", "team": "a"}


@pytest.mark.parametrize(
    ("backend", "body"),
    [
        (
            "openai",
            {"prompt": "p", "repetition_penalty": 1.0, "max_tokens": 7, "logprobs": None, "ignore_eos": True},
        ),
        (
            "openai-chat",
            {
                "messages": [{"role": "user", "content": [{"type": "text", "text": "p"}]}],
                "max_completion_tokens": 7,
                "ignore_eos": True,
            },
        ),
        ("openai-responses", {"input": "p", "max_output_tokens": 7, "store": False, "ignore_eos": True}),
    ],
)
def test_bodies_are_those_of_vllm(backend: str, body: dict[str, Any]) -> None:
    found = orjson.loads(BodyStyle(backend=backend, model="m", ignore_eos=True, extra={"k": 1}).body("p", 7, "lora"))
    streamed = {} if backend == "openai-responses" else {"stream_options": {"include_usage": True}}
    assert found == {"model": "lora", "stream": True, "k": 1, **body, **streamed}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"request_rate": ("fast",)}, "--request-rate must be above 0, or inf, got 'fast'"),
        ({"num_prompts": 10**18}, r"--num-prompts must be at most 100000000, got 1000000000000000000"),
        ({"num_warmups": 10**18}, r"--num-warmups must be at most 100000000, got 1000000000000000000"),
        ({"random_input_len": 10**18}, r"--random-input-len must be at most 100000000, got 1000000000000000000"),
        ({"request_rate": ("0",)}, "--request-rate must be above 0"),
        ({"goodput": ("itl:5",)}, "--goodput must be NAME:DURATION with a name of ttft, tpot, e2el, got 'itl:5'"),
        ({"endpoint": "/v1/embeddings"}, "--endpoint must end with /v1/completions with --backend openai"),
        ({"extra_body": "[1]"}, "--extra-body must be a JSON object"),
        ({"metadata": ("x",)}, "--metadata must be KEY=VALUE, got 'x'"),
        ({"ramp_up_end_rps": 3.0}, "need --ramp-up-strategy"),
        ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 3.0}, "needs --ramp-up-start-rps and --ramp-up-end-rps"),
        ({"ramp_up_strategy": "linear", "request_rate": ("3",)}, "exclude each other"),
        (
            {"ramp_up_strategy": "exponential", "ramp_up_start_rps": 0.0, "ramp_up_end_rps": 3.0},
            "must be above 0 with an exponential ramp",
        ),
        ({"request_rate": ("1", "2"), "result_filename": "x"}, "--result-filename with several rates needs"),
        ({"find_rate": True}, "--find-rate needs --goodput"),
        ({"find_rate": True, "goodput": ("ttft:1",), "request_rate": ("1",)}, "--find-rate excludes --request-rate"),
        ({"min_attainment": 0.5}, "--min-attainment and --tolerance need --find-rate"),
        ({"percentile_metrics": ("latency",)}, "--percentile-metrics must be one of ttft, tpot"),
        ({"base_url": "ftp://x"}, "--base-url must be like http://host:port"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BlisError, match=message):
        options_from(BenchServeOptions, **options)
