#!/bin/sh
# You plan capacity: the cheapest deployment within your targets, and its command line, in about half a minute.
set -eu
blis plan --model qwen/qwen3-14b --rate 10 --prompt-tokens 1000 --output-tokens 200 --ttft-p99 500ms --gpus H100,L40S \
  --tp-sizes 1 --shapes aggregated --precisions checkpoint --step-tokens 0
