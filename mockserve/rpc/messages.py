"""Messages of vLLM's gRPC interface, and the metadata of a model folder that clients request."""

import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smg_grpc_proto import vllm_engine_pb2 as pb

from blis_sim.options.files import read_text
from blis_sim.options.text import load_json
from mockserve.protocol.bodies import Ending, ScoredToken
from mockserve.protocol.errors import ApiError

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "tiktoken.model", "chat_template.json"),
)
TOKENIZER_PATTERNS = ("*.tiktoken", "*.jinja", "*.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """A model's type, and a zip archive of its tokenizer files; empty without a model folder."""

    model_type: str = ""
    architectures: tuple[str, ...] = ()
    archive: bytes = b""

    @property
    def sha256(self) -> str:
        """The fingerprint of the archive."""
        return hashlib.sha256(self.archive).hexdigest()


def read_metadata(folder: str) -> ModelMetadata:
    """Return the metadata of a model folder; empty for a model of the catalogue. Cost: a second per 20 MB."""
    path = Path(folder)
    if not path.is_dir():
        return ModelMetadata()
    config = _config(path / "config.json")
    architectures = config.get("architectures")
    return ModelMetadata(
        model_type=str(config.get("model_type", "")),
        architectures=tuple(map(str, architectures)) if isinstance(architectures, list) else (),
        archive=_archive(path),
    )


def _config(file: Path) -> dict[str, Any]:
    try:
        found = load_json(read_text(file))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _archive(folder: Path) -> bytes:
    names = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    for pattern in TOKENIZER_PATTERNS:
        names += sorted(each.name for each in folder.glob(pattern) if each.is_file() and each.name not in names)
    if not names:
        return b""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            # A fixed time makes the archive of equal files equal.
            archive.writestr(zipfile.ZipInfo(name), (folder / name).read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def body_of(request: Any, token_ids: Sequence[int]) -> dict[str, Any]:
    """Return a `GenerateRequest` as the body of the HTTP route that takes token ids, with vLLM's defaults.

    Raises ApiError for media, which a text model does not accept.
    """
    if request.HasField("media_refs") or request.HasField("mm_inputs") or request.extra_mm_inputs:
        raise ApiError("multimodal inputs sent to a model that takes text only")
    params = request.sampling_params
    sampling: dict[str, Any] = {
        "n": params.n or 1,
        "temperature": params.temperature if params.HasField("temperature") else 1.0,
        "top_p": params.top_p or 1.0,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "repetition_penalty": params.repetition_penalty or 1.0,
        "min_tokens": params.min_tokens,
        "stop": list(params.stop) or None,
        "stop_token_ids": list(params.stop_token_ids) or None,
        "skip_special_tokens": params.skip_special_tokens,
        "ignore_eos": params.ignore_eos,
        "include_stop_str_in_output": params.include_stop_str_in_output,
        "logit_bias": {str(key): value for key, value in params.logit_bias.items()} or None,
        "structured_outputs": _constraint(params),
    }
    for name in ("max_tokens", "logprobs", "prompt_logprobs", "seed"):
        if params.HasField(name):
            sampling[name] = getattr(params, name)
    # vLLM truncates only text prompts, after tokenization.
    return {"token_ids": token_ids, "sampling_params": sampling, "stream": request.stream}


def _constraint(params: Any) -> dict[str, Any] | None:
    """Return the output constraint in the format of `structured_outputs`."""
    kind = params.WhichOneof("constraint")
    if kind is None:
        return None
    if kind == "choice":
        return {"choice": list(params.choice.choices)}
    return {"json" if kind == "json_schema" else kind: getattr(params, kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceTokens:
    """New tokens of choice `index`, with scores if requested, and `num_top` candidates per token."""

    index: int
    token_ids: Sequence[int]
    scores: Sequence[ScoredToken]
    prompt_ids: Sequence[int]
    prompt_scores: Iterable[ScoredToken | None]
    num_cached_tokens: int
    num_top: int
    num_prompt_top: int


def chunk_of(tokens: ChoiceTokens) -> Any:
    """Return a stream response with new tokens; the first response of a choice has the prompt's scores."""
    return pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=tokens.token_ids, **_common_fields(tokens)))


def complete_of(tokens: ChoiceTokens, ending: Ending) -> Any:
    """Return the last response of a choice, with the tokens of the last chunk in a stream, else with all tokens."""
    complete = pb.GenerateComplete(
        output_ids=tokens.token_ids,
        finish_reason=ending.finish_reason,
        **_common_fields(tokens),
        **_matched(ending.stop_reason),
    )
    return pb.GenerateResponse(complete=complete)


def _common_fields(tokens: ChoiceTokens) -> dict[str, Any]:
    """Return the fields common to both kinds of responses."""
    return {
        "prompt_tokens": len(tokens.prompt_ids),
        "completion_tokens": len(tokens.token_ids),
        "cached_tokens": tokens.num_cached_tokens,
        "output_logprobs": _output_logprobs(tokens.scores, tokens.num_top),
        "input_logprobs": _input_logprobs(tokens.prompt_scores, tokens.prompt_ids, tokens.num_prompt_top),
        "index": tokens.index,
    }


def _matched(stop_reason: int | str | None) -> Mapping[str, Any]:
    if stop_reason is None:
        return {}
    return {"matched_token_id" if isinstance(stop_reason, int) else "matched_stop_str": stop_reason}


def _output_logprobs(scores: Sequence[ScoredToken], num_top: int) -> Any:
    if not scores:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[each.chosen.logprob for each in scores],
        token_ids=[each.chosen.token_id for each in scores],
        top_logprobs=[_top(each, num_top) for each in scores] if num_top else [],
    )


def _input_logprobs(scores: Iterable[ScoredToken | None], prompt_ids: Sequence[int], num_top: int) -> Any:
    found = list(scores)
    if not found:
        return None
    return pb.InputLogProbs(
        token_logprobs=[pb.InputTokenLogProb(value=None if each is None else each.chosen.logprob) for each in found],
        token_ids=prompt_ids,
        top_logprobs=[pb.TopLogProbs() if each is None else _top(each, num_top) for each in found] if num_top else [],
    )


def _top(scored: ScoredToken, num_top: int) -> Any:
    shown = scored.shown[:num_top]
    return pb.TopLogProbs(values=[each.logprob for each in shown], token_ids=[each.token_id for each in shown])
