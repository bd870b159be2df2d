#!/bin/sh
# You develop a gateway or an autoscaler: a fleet with your manifest, a kill and a verdict, in about ten seconds.
set -eu
cat > hpa.yaml <<'MANIFEST'
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: llm}
  minReplicas: 2
  maxReplicas: 6
  metrics:
    - type: Pods
      pods: {metric: {name: vllm_num_requests_running}, target: {type: AverageValue, averageValue: "40"}}
MANIFEST
blis fleet --model qwen/qwen3-14b --count 2 --autoscaler hpa.yaml --cold-start 45s --kill 60s --stages 4:60s,16:120s \
  --ttft-p99 20s --min-completed 0.95
