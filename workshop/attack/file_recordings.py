"""Contents of valid files with results of load-testers, as `blis convert` reads them."""

import json

AIPERF = "".join(
    json.dumps(
        {
            "metadata": {
                "request_start_ns": 1_700_000_000_000_000_000 + number * 10**9,
                "request_end_ns": 1_700_000_000_900_000_000 + number * 10**9,
                "benchmark_phase": "profiling",
            },
            "metrics": {
                "input_sequence_length": {"value": 11, "unit": "tokens"},
                "output_sequence_length": {"value": 3, "unit": "tokens"},
                "time_to_first_token": {"value": 50.5, "unit": "ms"},
                "inter_chunk_latency": {"value": [10.0, 20.5], "unit": "ms"},
            },
            "error": None,
        }
    )
    + "\n"
    for number in range(3)
)
GENAI_PERF = json.dumps(
    {
        "experiments": [
            {
                "requests": [
                    {
                        "timestamp": 10**18 + number * 10**9,
                        "request_inputs": {"payload": json.dumps({"prompt": "hello", "stream": True})},
                        "response_timestamps": [10**18 + number * 10**9 + 10**7],
                        "response_outputs": [{"response": 'data: {"choices": [{"text": "word"}]}'}],
                    }
                    for number in range(3)
                ]
            }
        ]
    }
)
INFERENCE_PERF_RESULTS = json.dumps(
    [
        {
            "start_time": 100.0 + number,
            "end_time": 100.5 + number,
            "info": {"input_tokens": 5, "output_tokens": 2, "output_token_times": [100.2 + number, 100.5 + number]},
            "error": None,
        }
        for number in range(3)
    ]
)
SGLANG_BENCH = json.dumps(
    {
        "request_rate": 4.0,
        "max_concurrency": None,
        "input_lens": [3, 4, 5],
        "output_lens": [2, 1, 1],
        "ttfts": [0.5, 0.25, 0.1],
        "itls": [[0.1], [], []],
        "errors": ["", "", ""],
    }
)
