"""Parameters of vision towers and of the projectors behind them."""

from typing import NamedTuple

from blis_sim.engine.memory.config_keys import ConfigKeys

_MLP_MATRICES, _GATED_MATRICES = 2, 3


class VisionParameters(NamedTuple):
    """Parameters that tensor parallelism divides, and those that every GPU holds in full."""

    sharded: int = 0
    replicated: int = 0


def vision_parameters(config: ConfigKeys, hidden_size: int) -> VisionParameters:
    """Return the parameters of the tower that `vision_config` describes, none without one.

    Towers differ in their keys, not in their parts: patches, positions, blocks of attention and an MLP, a projector.
    """
    vision = config.object("vision_config")
    if not vision.keys:
        return VisionParameters()
    width = vision.count("vt_hidden_size", "hidden_size", "embed_dim", default=0)
    depth = vision.count("vt_num_hidden_layers", "depth", "num_hidden_layers", default=0)
    inner = vision.count("vt_intermediate_size", "intermediate_size", default=0) or 4 * width
    attention = vision.count("qkv_hidden_size", default=0) or width
    kind = vision.text("model_type", config.text("model_type"))
    is_gated = kind.startswith(("gemma4", "pixtral", "qwen2_5_vl"))
    blocks = depth * (4 * width * attention + (_GATED_MATRICES if is_gated else _MLP_MATRICES) * width * inner)
    patches = _patch_parameters(vision, width)
    projector = _projector_parameters(config, vision, width, hidden_size)
    if kind.startswith("gemma4"):
        return VisionParameters(replicated=blocks + patches + projector)
    return VisionParameters(sharded=blocks + projector, replicated=patches)


def _patch_parameters(vision: ConfigKeys, width: int) -> int:
    """Return the parameters of the patch embedding and of learned positions."""
    patch = vision.count("patch_size", default=0)
    frames = vision.count("temporal_patch_size", default=1) or 1
    positions = vision.count("num_position_embeddings", default=0)
    if not positions and vision.has("position_embedding_size"):
        positions = 2 * vision.count("position_embedding_size")
    if not positions and vision.has("init_pos_emb_height"):
        positions = vision.count("init_pos_emb_height") * vision.count("init_pos_emb_width", default=0)
    if not positions and vision.has("image_size") and patch and vision.text("position_embedding_type") != "rope":
        positions = (vision.count("image_size") // patch) ** 2 + 1
    return width * (3 * frames * patch * patch + positions)


def _projector_parameters(config: ConfigKeys, vision: ConfigKeys, width: int, hidden_size: int) -> int:
    """Return the parameters between the tower and the decoder."""
    merge = vision.count("spatial_merge_size", default=0)
    kernel = vision.items("merge_kernel_size")
    if kernel:
        merge = int(kernel[0])
    output = vision.count("out_hidden_size", "text_hidden_size", default=0) or hidden_size
    if config.text("model_type") == "llama4":
        middle = vision.count("projector_input_dim", default=0)
        last = vision.count("projector_output_dim", default=0)
        wide = vision.count("vision_output_dim", default=0)
        return middle * vision.count("intermediate_size", default=0) + middle * last + wide * hidden_size
    compression = config.object("img_token_compression_config")
    if compression.keys:
        merge = compression.count("spatial_merge_size", default=2)
        inner = config.count("projector_hidden_size", default=hidden_size)
        merger = inner * inner * merge * merge + inner * hidden_size
        return width * inner + inner * inner + merger
    if merge:
        merged = width * merge * merge
        heads = 1 + len(vision.items("deepstack_visual_indexes"))
        return heads * (merged * merged + merged * output)
    return width * hidden_size
