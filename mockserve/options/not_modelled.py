"""Flags that change memory or step times in vLLM and are accepted here, with what is assumed instead."""

from collections.abc import Iterable, Iterator, Mapping

_GRAPHS = "steps take the time that they take with vLLM's default CUDA graphs"
_STATES = "recurrent states are kept as vLLM keeps them by default"
_CONTEXT = "every GPU holds the KV cache of the whole context"
_KERNELS = "kernels are those that vLLM takes by default"
_WEIGHTS = "all weights stay in GPU memory"
_OFFLOADING = "KV blocks that are evicted are lost"

ASSUMED: Mapping[str, str] = {
    "--pipeline-parallel-size": "the instance is one pipeline stage",
    "--enforce-eager": _GRAPHS,
    "--compilation-config": _GRAPHS,
    "--optimization-level": _GRAPHS,
    "--cudagraph-capture-sizes": _GRAPHS,
    "--max-cudagraph-capture-size": _GRAPHS,
    "--cpu-offload-gb": _WEIGHTS,
    "--offload-backend": _WEIGHTS,
    "--offload-group-size": _WEIGHTS,
    "--kv-offloading-size": _OFFLOADING,
    "--kv-offloading-backend": _OFFLOADING,
    "--kv-cache-dtype-skip-layers": "all layers have the type of --kv-cache-dtype",
    "--kv-sharing-fast-prefill": "prompts are computed in all layers",
    "--mamba-block-size": _STATES,
    "--mamba-cache-dtype": _STATES,
    "--mamba-cache-mode": _STATES,
    "--mamba-ssm-cache-dtype": _STATES,
    "--prefix-match-unit": "prefixes match in whole blocks",
    "--disable-hybrid-kv-cache-manager": "layers are grouped by the kind of their KV cache",
    "--decode-context-parallel-size": _CONTEXT,
    "--prefill-context-parallel-size": _CONTEXT,
    "--enable-dbo": "a step is one batch",
    "--enable-eplb": "every expert stays on its GPU",
    "--disable-custom-all-reduce": "GPUs exchange data as fast as with vLLM's own all-reduce",
    "--attention-backend": _KERNELS,
    "--attention-config": _KERNELS,
    "--language-model-only": "weights of vision towers count",
    "--limit-mm-per-prompt": "weights of vision towers count",
    "--performance-mode": "batches have the sizes of the default mode",
    "--max-num-active-seqs": "as many requests are active as run in a step",
    "--long-prefill-token-threshold-adaptive": "prompts are split by --long-prefill-token-threshold alone",
    "--disable-chunked-mm-input": "media are split like text",
    "--quantization-config": "weights are those of the checkpoint or of --quantization",
}
"""By vLLM's name of the flag."""


def warnings_of(flags: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each of the accepted flags that is not modelled."""
    for flag in flags:
        if flag in ASSUMED:
            yield f"warning: {flag} is not modelled: {ASSUMED[flag]}"
