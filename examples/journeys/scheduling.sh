#!/bin/sh
# You study scheduling: a router of your own beside one that is built in, on the same requests, in about ten seconds.
set -eu
cat > emptiest.py <<'ROUTER'
from blis_sim.engine.cluster.routing import Choice


class Emptiest:
    """The instance with the smallest share of its KV cache in use."""

    reads_snapshots = True
    reads_in_flight = reads_caches = reads_adapters = False

    def __init__(self, settings):
        pass

    def choose(self, request, state):
        shares = [each.kv_usage_fraction for each in state.candidates]
        return Choice(shares.index(min(shares)))
ROUTER
blis compare --names round-robin,emptiest --rate 30 --duration 20 -- \
  --model qwen/qwen3-14b --num-instances 4 -- \
  --model qwen/qwen3-14b --num-instances 4 --routing-policy emptiest:Emptiest
