"""Command lines as BLIS takes them: every flag of each of its commands, in the combinations in which they are used.

`S`, `T`, `P` and `B` stand for small workload specs, a recorded trace, policy files and other files of the tests.
"""

MODEL = "--model qwen/qwen3-14b"

RUN = [
    f"run {MODEL}",
    f"run {MODEL} --rate 10 --num-requests 5",
    f"run {MODEL} --hardware H100 --tp 1 --rate 10",
    f"run {MODEL} --hardware H100 --tp 2 --latency-model roofline",
    f"run {MODEL} --latency-model trained-physics --seed 7",
    f"run {MODEL} --alpha-coeffs 1000,2,3 --beta-coeffs 0.2,0.1,1,1,30,4,100",
    f"run {MODEL} --workload chatbot --rate 20",
    f"run {MODEL} --workload summarization --rate 2",
    f"run {MODEL} --workload contentgen --rate 4",
    f"run {MODEL} --workload multidoc --rate 1",
    f"run {MODEL} --workload distribution --prompt-tokens 100 --prompt-tokens-stdev 20 --prompt-tokens-min 10"
    " --prompt-tokens-max 200 --output-tokens 20 --output-tokens-stdev 5 --output-tokens-min 2 --output-tokens-max 40",
    f"run {MODEL} --rate 10 --prefix-tokens 64",
    f"run {MODEL} --concurrency 3 --num-requests 5",
    f"run {MODEL} --concurrency 3 --num-requests 5 --think-time-ms 100",
    f"run {MODEL} --rate 10 --timeout 30",
    f"run {MODEL} --rate 10 --timeout -1 --horizon 2000000",
    f"run {MODEL} --workload-spec spec.yaml",
    f"run {MODEL} --workload-spec spec.yaml --seed 5 --horizon 1000000 --num-requests 4",
    f"run {MODEL} --workload-spec spec.yaml --lazy-generation",
    f"run {MODEL} --defaults-filepath defaults.yaml --log info",
    f"run {MODEL} --max-num-seqs 8 --max-num-batched-tokens 512",
    f"run {MODEL} --max-num-running-reqs 8 --max-num-scheduled-tokens 1024",
    f"run {MODEL} --total-kv-blocks 2000 --block-size-in-tokens 32",
    f"run {MODEL} --long-prefill-token-threshold 256 --max-model-len 8192",
    f"run {MODEL} --gpu-memory-utilization 0.8",
    f"run {MODEL} --model-config-folder model --hardware-config gpus.json --hardware H100 --tp 1",
    "run --model mistralai/mixtral-8x7b-v0.1 --hardware H100 --tp 2 --dp 2 --enable-expert-parallel"
    " --moe-comm-backend pplx",
    f"run {MODEL} --scheduler priority-fcfs --preemption-policy priority",
    f"run {MODEL} --scheduler sjf",
    f"run {MODEL} --scheduler reverse-priority",
    f"run {MODEL} --kv-cpu-blocks 500 --kv-offload-threshold 0.8 --kv-transfer-bandwidth 50"
    " --kv-transfer-base-latency 10",
    f"run {MODEL} --kv-offload-config offload.yaml --total-kv-blocks 600",
    f"run {MODEL} --lora-config lora.yaml --workload-spec adapters.yaml",
    f"run {MODEL} --lora-config lora.yaml --workload-spec adapters.yaml --lora-adapter-capacity 1"
    " --lora-load-base-latency-us 2000 --lora-load-bandwidth-bytes-us 1000000 --lora-footprint-bytes-per-rank 1000000",
    f"run {MODEL} --num-instances 3 --routing-policy round-robin",
    f"run {MODEL} --num-instances 3 --routing-policy least-loaded --snapshot-refresh-interval 0",
    f"run {MODEL} --num-instances 2 --routing-policy always-busiest --routing-latency 100",
    f"run {MODEL} --num-instances 2 --routing-policy weighted --routing-scorers queue-depth:2,kv-utilization:1",
    f"run {MODEL} --num-instances 2 --routing-policy weighted --lora-config lora.yaml --lora-scorer-weight 2"
    " --workload-spec adapters.yaml --cache-signal-delay 1000",
    f"run {MODEL} --num-instances 2 --admission-policy token-bucket --token-bucket-capacity 5000"
    " --token-bucket-refill-rate 1000 --admission-latency 50",
    f"run {MODEL} --num-instances 2 --admission-policy reject-all",
    f"run {MODEL} --num-instances 2 --policy-config policy.yaml",
    f"run {MODEL} --num-instances 1 --policy-config autoscaler.yaml --model-autoscaler-interval-us 5000000",
    f"run {MODEL} --num-instances 2 --flow-control --saturation-detector utilization --queue-depth-threshold 4"
    " --kv-cache-util-threshold 0.7 --dispatch-order priority",
    f"run {MODEL} --num-instances 2 --flow-control --saturation-detector concurrency --max-concurrency 10"
    " --fairness-policy round-robin --usage-limit-threshold 0.9",
    f"run {MODEL} --num-instances 2 --flow-control --dispatch-order slo-deadline --slo-targets critical=100000"
    " --max-gateway-queue-depth 50 --per-band-capacity 20 --request-ttl 1000000 --queue-shedding"
    " --in-flight-eviction --dispatch-tick-interval 500",
    f"run {MODEL} --num-instances 4 --prefill-instances 2 --decode-instances 2 --pd-decider always",
    f"run {MODEL} --num-instances 4 --prefill-instances 2 --decode-instances 2 --pd-decider prefix-threshold"
    " --pd-prefix-threshold 32 --pd-transfer-bandwidth 50 --pd-transfer-base-latency 0.1 --pd-transfer-contention",
    f"run {MODEL} --num-instances 2 --prefill-decode-instances 2 --pd-decider never --flow-control=false",
    f"run {MODEL} --num-instances 2 --prefill-instances 1 --decode-instances 1 --pd-decider always --prefill-tp 2"
    " --decode-tp 1 --prefill-hardware H100 --decode-hardware H100 --prefill-routing-scorers queue-depth:1"
    " --decode-routing-scorers kv-utilization:1",
    f"run {MODEL} --num-instances 2 --prefill-instances 1 --decode-instances 1 --pd-decider always"
    " --prefill-latency-model roofline --decode-latency-model roofline --prefill-max-model-len 9000"
    " --decode-max-model-len 9000",
    f"run {MODEL} --num-instances 3 --prefill-decode-instances 2 --encode-instances 1 --encode-decider multimodal",
    f"run {MODEL} --trace-level decisions --counterfactual-k 2 --summarize-trace --num-instances 2",
    f"run {MODEL} --fitness-weights throughput:0.5,p99_ttft:0.3",
    f"run {MODEL} --slo-ttft default=100ms --slo-itl default=20ms --slo-e2e default=10s",
    f"run {MODEL} --detectors all --saturation-report run-saturation.json",
    f"run {MODEL} --detectors composite,threshold --saturation-config saturation.yaml --saturation-final-window 10s",
    f"run {MODEL} --trace-output traced --metrics-path metrics.json --results-path results.json",
]
"""Of `blis run`."""

REPLAY = [
    f"replay --trace-header T.yaml --trace-data T.csv {MODEL}",
    f"replay --trace-header T.yaml --trace-data T.csv {MODEL} --results-path replayed.json --metrics-path m.json",
    f"replay --trace-header T.yaml --trace-data T.csv {MODEL} --horizon 900000000 --trace-output again",
    f"replay --trace-header T.yaml --trace-data T.csv {MODEL} --session-mode fixed --lazy-generation",
    f"replay --trace-header S.yaml --trace-data S.csv {MODEL} --session-mode closed-loop",
    f"replay --trace-header S.yaml --trace-data S.csv {MODEL} --session-mode closed-loop --think-time-ms 200",
    f"replay --trace-header S.yaml --trace-data S.csv {MODEL} --session-mode closed-loop"
    " --think-time-dist lognormal:mu=0.5,sigma=0.6,min=100ms,max=3s",
    f"replay --trace-header S.yaml --trace-data S.csv {MODEL} --session-mode closed-loop"
    " --think-time-dist constant:value=500ms",
    f"replay --trace-header T.yaml --trace-data T.csv {MODEL} --num-instances 2 --routing-policy weighted",
    f"replay --trace-header T.yaml --trace-data T.csv {MODEL} --latency-model roofline --defaults-filepath d.yaml",
    f"replay --trace-header T.yaml --trace-data T.csv {MODEL} --slo-ttft default=100ms --detectors all",
    f"replay --trace-header T.yaml --trace-data T.csv {MODEL} --kv-offload-config offload.yaml",
    f"replay --trace-header A.yaml --trace-data A.csv {MODEL} --lora-config lora.yaml",
    f"replay --trace-header T.yaml --trace-data T.csv {MODEL} --fitness-weights throughput:1 --seed 3 --log error",
]
"""Of `blis replay`."""

OTHERS = [
    "calibrate --trace-header T.yaml --trace-data T.csv --sim-results T.results.json --report report.json",
    "calibrate --trace-header T.yaml --trace-data T.csv --sim-results T.results.json --report report.json"
    " --warmup-requests 1 --network-rtt-us 2000 --network-bandwidth-mbps 100 --slo-ttft default=100ms",
    "calibrate --trace-header T.yaml --trace-data T.csv --sim-results T.results.json --report report.json"
    " --itl-data T.itl.csv --sim-metrics T.metrics.json --hit-rate-tolerance-pp 3 --ttft-mape-threshold 0.2"
    " --slo-itl default=20ms --slo-e2e default=10s",
    "convert preset --name chatbot --rate 10 --num-requests 100",
    "convert preset --name multidoc --rate 1 --num-requests 5 --defaults-filepath defaults.yaml",
    "convert servegen --path servegen --window-duration-seconds 60 --drain-timeout-seconds 10 --time morning",
    "convert servegen --path servegen",
    "convert inference-perf --spec stages.yaml",
    "compose --from spec.yaml",
    "compose --from spec.yaml --from adapters.yaml",
    "calibrate --adapter-reference reference.json --sim-metrics T.metrics.json --sim-metrics-blind T.metrics.json"
    " --adapter-mape-threshold 0.9 --report report.json",
]
"""Of the other commands."""

FILES = "--model ok --trace-header o.yaml --trace-data o.csv --overwrite"
LENGTHS = (
    "--prompt-tokens 20 --prompt-tokens-stdev 4 --prompt-tokens-min 2 --prompt-tokens-max 40 --output-tokens 3"
    " --output-tokens-stdev 1 --output-tokens-min 1 --output-tokens-max 5"
)
OBSERVE = [
    f"observe --server-url U {FILES} --rate 50 --num-requests 3 {LENGTHS}",
    f"observe --server-url U {FILES} --rate 50 --num-requests 3 {LENGTHS} --api-format chat --record-itl",
    f"observe --server-url U {FILES} --rate 50 --num-requests 3 {LENGTHS} --no-streaming",
    f"observe --server-url U {FILES} --rate 50 --num-requests 3 {LENGTHS} --record-itl --itl-output itl.csv",
    f"observe --server-url U {FILES} --rate 50 --num-requests 3 {LENGTHS} --api-key key --timeout 20 --rtt-ms 1.5",
    f"observe --server-url U {FILES} --rate 50 --num-requests 4 {LENGTHS} --warmup-requests 2 --max-concurrency 2",
    f"observe --server-url U {FILES} --rate 50 --num-requests 3 {LENGTHS} --unconstrained-output",
    f"observe --server-url U {FILES} --rate 50 --num-requests 3 {LENGTHS} --prefix-tokens 8 --seed 3",
    f"observe --server-url U {FILES} --rate 50 --horizon 60000 {LENGTHS}",
    f"observe --server-url U {FILES} --workload chatbot --rate 50 --num-requests 2",
    f"observe --server-url U {FILES} --workload chatbot --rate 50 --num-requests 2 --defaults-filepath defaults.yaml",
    f"observe --server-url U {FILES} --workload-spec spec.yaml --num-requests 3",
    f"observe --server-url U {FILES} --workload-spec spec.yaml --num-requests 3 --lazy-generation",
    f"observe --server-url U {FILES} --concurrency 2 --num-requests 4 {LENGTHS}",
    f"observe --server-url U {FILES} --concurrency 2 --num-requests 4 {LENGTHS} --think-time-ms 1",
    f"observe --server-url U {FILES} --concurrency 2 --num-requests 4 {LENGTHS}"
    " --think-time-dist lognormal:mu=-7,sigma=0.6,max=3s",
    f"observe --server-url U {FILES} --rate 50 --num-requests 3 {LENGTHS} --detectors all"
    " --saturation-report o-saturation.json --saturation-config saturation.yaml --saturation-final-window 5s",
    f"observe --server-url U {FILES} --rate 50 --num-requests 3 {LENGTHS} --slo-ttft default=1s --slo-itl default=1s"
    " --slo-e2e default=5s",
    f"observe --server-url U {FILES} --rate 50 --num-requests 3 {LENGTHS} --prewarm-duration 20ms",
    f"observe --server-url U {FILES} --rate 50 --num-requests 3 {LENGTHS} --scrape-kv-metrics --vllm-commit abc123"
    " --kv-metrics-url U/metrics",
    f"observe --server-url U {FILES} --rate 50 --num-requests 3 {LENGTHS} --server-type sglang",
]
"""Of `blis observe`; `U` is the address of a server."""
