"""What GGUF files of Gemma 3 have that others have not: for export_gguf.py.

Norms are what they multiply by, one more than a directory says.
"""

import sys

import numpy as np

ARCHITECTURE = "gemma3"
# GGUF's name and Hugging Face's, of a layer's norms but the first.
NORMS = (("post_attention_norm", "post_attention_layernorm"),
         ("ffn_norm", "pre_feedforward_layernorm"),
         ("post_ffw_norm", "post_feedforward_layernorm"))


def metadata(config):
    layers = config["num_hidden_layers"]
    slides = ["full_attention" if i % 6 == 5 else "sliding_attention"
              for i in range(layers)]
    scalar = (config["hidden_size"] // config["num_attention_heads"]
              if layers == 62 else config["head_dim"])
    # What such files do not say, or llama.cpp does not read.
    if (config.get("layer_types", slides) != slides
            or config.get("rope_local_base_freq", 1e4) != 1e4
            or config.get("query_pre_attn_scalar", 256) != scalar):
        sys.exit("config.json: other layers that slide than all but every "
                 "sixth, by another base than 10,000, or scores by another "
                 "length than the heads', cannot be written")
    return {f"{ARCHITECTURE}.attention.sliding_window":
            config["sliding_window"] or 0}


def is_norm(name):
    return name.endswith("norm.weight")


def norm_bytes(raw):
    """Of a norm's weights, as float32."""
    return (np.frombuffer(raw, np.float32) + np.float32(1)).tobytes()
