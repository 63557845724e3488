"""What Gemma 3 has beside others of the family (Gemma Team 2025, "Gemma 3
technical report"; fields as transformers documents them for Gemma3TextConfig):
norms behind attention and MLP, whose weights are stored less one, GeGLU, scaled
embeddings, and layers that slide and turn by a base of their own.
"""

import math

import torch

NAME = "Gemma3ForCausalLM"
MUTANTS = ("norm_offset_off", "post_norms_off", "post_norms_behind_the_sum",
           "embedding_unscaled", "gelu_as_silu", "scores_by_head_dim",
           "sliding_theta_off", "sliding_stretched")


def is_gemma(config):
    return config["architectures"][0] == NAME


def norm_weight(config, weight, mutate=None):
    """What a norm multiplies by, of what the file has."""
    offset = is_gemma(config) and mutate != "norm_offset_off"
    return weight + 1.0 if offset else weight


def embedding_scale(config, mutate=None):
    if not is_gemma(config) or mutate == "embedding_unscaled":
        return 1.0
    return torch.tensor(math.sqrt(config["hidden_size"])).bfloat16().item()


def gated(config, gate, up, mutate=None):
    if not is_gemma(config) or mutate == "gelu_as_silu":
        return torch.nn.functional.silu(gate) * up
    cubic = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate.pow(3))
    return 0.5 * gate * (1 + torch.tanh(cubic)) * up


def score_scale(config, mutate=None):
    if not is_gemma(config) or mutate == "scores_by_head_dim":
        return config["head_dim"]**-0.5
    return config["query_pre_attn_scalar"]**-0.5


def sliding_config(config, mutate=None):
    """What says how layers turn that slide."""
    if not is_gemma(config) or mutate == "sliding_theta_off":
        return config
    scaling = (config["rope_scaling"] if mutate == "sliding_stretched"
               else None)
    return dict(config, rope_theta=config["rope_local_base_freq"],
                rope_scaling=scaling)


def add_branch(config, x, branch, norm, name, mutate=None):
    """x + branch, which has its norm before."""
    if not is_gemma(config) or mutate == "post_norms_off":
        return x + branch
    if mutate == "post_norms_behind_the_sum":
        return norm(x + branch, name)
    return x + norm(branch, name)


def norm_names(config):
    """Of a layer: before attention, behind it, before the MLP, behind it."""
    if is_gemma(config):
        return ("input_layernorm", "post_attention_layernorm",
                "pre_feedforward_layernorm", "post_feedforward_layernorm")
    return "input_layernorm", None, "post_attention_layernorm", None
