from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError
from observe.options import ObserveOptions


def options(**given: Any) -> ObserveOptions:
    defaults: dict[str, Any] = {"url": "http://x:1", "output": "out", "rate": 1.0, "num_requests": 5}
    return ObserveOptions(**(defaults | given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": None}, "--rate or --concurrency with --num-requests, or --trace, or --workload-spec, is required"),
        ({"num_requests": None}, "--num-requests or --duration is required with --rate"),
        ({"trace": "t.yaml"}, "--rate and --trace exclude each other: --speedup sends a recording faster"),
        ({"rate": 0.0}, "--rate must be above 0, got 0.0"),
        ({"num_requests": 0}, "--num-requests must be at least 1, got 0"),
        ({"num_requests": 10**18}, "--num-requests must be at most 100000000, got 1000000000000000000"),
        ({"prompt_tokens": 10**18}, "--prompt-tokens must be at most 100000000, got 1000000000000000000"),
        ({"prompt_tokens_stdev": 1e18}, "--prompt-tokens-stdev must be at most 100000000, got 1e+18"),
        ({"prefix_tokens": 10**18}, "--prefix-tokens must be at most 100000000, got 1000000000000000000"),
        ({"processes": 10**18}, "--processes must be at most 1024, got 1000000000000000000"),
        ({"arrival": "bursty"}, "--arrival must be one of poisson, gamma, weibull, constant, got 'bursty'"),
        ({"api_format": "grpc"}, "--api-format must be one of completions, chat, responses, got 'grpc'"),
        ({"output": None}, "--output, or --trace-header with --trace-data, is required"),
        ({"output": None, "trace_data": "x"}, "--output, or --trace-header with --trace-data, is required"),
        ({"warmup_requests": 5}, "--warmup-requests must be below --num-requests (5), got 5"),
        ({"record_itl": True, "streaming": False}, "--record-itl needs streamed answers, leave --no-streaming out"),
        ({"itl_output": "x"}, "--itl-output needs --record-itl"),
        ({"trace_data": "out.yaml"}, "--output and --trace-data would both write out.yaml"),
        (
            {"prompt_tokens": 9, "prompt_tokens_max": 8},
            "--prompt-tokens must be between --prompt-tokens-min (1) and --prompt-tokens-max (8), got 9",
        ),
        (
            {"output_tokens_min": 600},
            "--output-tokens must be between --output-tokens-min (600) and --output-tokens-max (100000000), got 512",
        ),
        ({"url": "ftp://localhost:8000"}, "--url must be like http://host:port, got 'ftp://localhost:8000'"),
        ({"url": "http://:8000"}, "--url must be like http://host:port, got 'http://:8000'"),
        ({"header": ("a b=c",)}, "--header must be NAME=VALUE with a header name, got the name 'a b'"),
        ({"header": ("X-A=1", "2")}, "--header must be NAME=VALUE,..., got '2'"),
        ({"header": ("Authorization: Bearer secret",)}, "--header must be NAME=VALUE,..., got 'Authorization'"),
        ({"concurrency": 2}, "--concurrency and --rate exclude each other, give one of them"),
        ({"rate": None, "workload": "chatbot"}, "--workload needs --rate or --concurrency"),
        (
            {"rate": None, "concurrency": 2, "num_requests": None},
            "--num-requests or --duration is required with --concurrency",
        ),
        ({"think_time_ms": 5}, "--think-time-ms needs --session-mode closed-loop or --concurrency"),
        (
            {"rate": None, "concurrency": 2, "think_time_ms": 5, "think_time_dist": "constant:value=1s"},
            "--think-time-ms and --think-time-dist exclude each other, give one of them",
        ),
        (
            {"num_requests": None, "rate": 1e6, "horizon": 10**12},
            "--rate 1e+06 until --horizon 1000000000000 is more than 100000000 requests",
        ),
        (
            {"num_requests": None, "rate": 1e6, "duration": "1000000s"},
            "--rate 1e+06 until --duration 1000000s is more than 100000000 requests",
        ),
        ({"prewarm_duration": "5"}, "--prewarm-duration must be a duration such as 500ms or 30s, got '5'"),
        ({"kv_metrics_url": "metrics"}, "--kv-metrics-url must be like http://host:port, got 'metrics'"),
        ({"api_key": "a\nb"}, "--api-key must have a value of printable ASCII characters"),
    ],
)
def test_settings_that_do_not_fit_give_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BlisError) as error:
        options(**given)
    assert str(error.value) == message


def test_a_port_out_of_range_is_a_bad_url() -> None:
    with pytest.raises(BlisError, match="--url must be like"):
        options(url="http://x:99999")


@pytest.mark.parametrize(
    ("given", "flag", "lost"),
    [
        ({"output": "{there}/t"}, "--output", "t.yaml"),
        ({"output": "./../here/t"}, "--output", "t.yaml"),
        ({"trace_header": "new.yaml", "trace_data": "{there}/t.csv"}, "--trace-data", "t.csv"),
        ({"trace_header": "new.yaml", "trace_data": "symbolic.csv"}, "--trace-data", "symbolic.csv"),
        ({"trace_header": "new.yaml", "trace_data": "hard.csv"}, "--trace-data", "hard.csv"),
        ({"trace_data": "t.csv.gz"}, "--trace-data", "t.csv.gz"),
        ({"record_itl": True, "itl_output": "t.itl.csv"}, "--itl-output", "t.itl.csv"),
        ({"scrape_metrics": True, "trace_data": "t"}, "--trace-data", "t.metrics.jsonl"),
    ],
)
def test_a_recording_cannot_overwrite_the_one_that_is_sent(
    given: dict[str, Any], flag: str, lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for name in ("t.yaml", "t.csv", "t.csv.gz", "t.itl.csv", "t.metrics.jsonl"):
        Path(name).touch()
    Path("symbolic.csv").symlink_to("t.csv")
    Path("hard.csv").hardlink_to("t.csv")
    named = {name: value.format(there=here) if isinstance(value, str) else value for name, value in given.items()}
    with pytest.raises(BlisError, match=rf"{flag} would write over .*{lost}, which .*--trace reads"):
        options(rate=None, trace="t.yaml", **{"output": "new", **named})


@pytest.mark.parametrize("flag", ["workload_spec", "prompts"])
def test_flags_for_the_content_of_requests_are_refused_with_a_trace(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").touch()
    rate = {"rate": 1.0} if flag == "prompts" else {"rate": None}
    with pytest.raises(BlisError, match=r"--output would write over w\.yaml, which --.* reads"):
        options(**rate, **{flag: "w.yaml"}, output="./w")


def test_a_picture_is_no_file_of_the_recording() -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(BlisError, match=r"--itl-output and --plot would both write a\.svg"):
        options(record_itl=True, itl_output="a.svg", plot="a.svg")


def test_a_recording_needs_a_folder_before_anything_is_sent() -> None:
    with pytest.raises(BlisError, match=r"--output must be in a folder that exists, got gone/t\.yaml"):
        options(output="gone/t")


def test_the_files_of_a_recording_share_the_prefix() -> None:
    paths = options(output="./b", record_itl=True).paths
    assert (paths.header, paths.data, paths.itl) == (Path("b.yaml"), Path("b.csv"), Path("b.itl.csv"))


def test_each_file_can_be_named_by_itself() -> None:
    paths = options(trace_header="h.yaml", trace_data="d.csv", record_itl=True).paths
    assert (paths.header, paths.data, paths.itl) == (Path("h.yaml"), Path("d.csv"), Path("d.itl.csv"))


def test_headers_are_names_and_values_and_the_key_a_bearer_token() -> None:
    headers = options(header=("X-Team=a=b",), api_key="k").headers
    assert headers == {"x-team": "a=b", "authorization": "Bearer k"}


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (
            {"workload_spec": "w.yaml", "output_tokens": 9, "prefix_tokens": 3},
            [
                "--prefix-tokens has no effect, --workload-spec says it already",
                "--output-tokens has no effect, --workload-spec says it already",
            ],
        ),
        ({"trace": "t.yaml", "prompt_tokens": 9}, ["--prompt-tokens has no effect, --trace says it already"]),
        ({"rate": 5.0, "output_tokens": 9}, []),
    ],
)
def test_lengths_that_a_file_states_already_are_named(given: dict[str, Any], lines: list[str]) -> None:
    assert options(**({"rate": None} | given)).flags_without_effect == lines
