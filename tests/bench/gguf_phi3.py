"""What GGUF files of Phi-3 and SmolLM3 have that others have not: for
export_gguf.py.

LongRoPE is two tensors and a magnitude. Of SmolLM3 files do not say which layers
know no positions: every fourth.
"""

import math
import sys

import numpy as np

ARCHITECTURE = "phi3"
SMOLLM3 = "smollm3"
ORIGINAL = "original_max_position_embeddings"


def check_smollm3(config):
    layers = config["num_hidden_layers"]
    turns = [int((i + 1) % 4 != 0) for i in range(layers)]
    if (config.get("no_rope_layer_interval", 4) != 4
            or config.get("no_rope_layers", turns) != turns):
        sys.exit("config.json: other layers without positions than every "
                 "fourth cannot be written")


def is_long(scaling):
    return scaling.get("rope_type", scaling.get("type")) == "longrope"


def metadata(config, scaling):
    out = {f"{ARCHITECTURE}.attention.sliding_window":
           config.get("sliding_window") or 0}
    if not is_long(scaling):
        return out
    longest = config["max_position_embeddings"]
    original = scaling.get(ORIGINAL, config.get(ORIGINAL, longest))
    factor = scaling.get("factor", longest / original)
    magnitude = (math.sqrt(1 + math.log(factor) / math.log(original))
                 if factor > 1 else 1.0)
    return out | {
        f"{ARCHITECTURE}.rope.scaling.original_context_length": original,
        f"{ARCHITECTURE}.rope.scaling.attn_factor": float(
            scaling.get("attention_factor", magnitude)),
    }


def rope_tensors(scaling):
    """Yields (name, shape, type, function to bytes)."""
    if not is_long(scaling):
        return
    for length in ("long", "short"):
        factors = np.array(scaling[f"{length}_factor"], np.float32)
        yield (f"rope_factors_{length}.weight", [len(factors)], "f32",
               factors.tobytes)
