"""What DeepSeek's models have beside others of the family (DeepSeek-AI 2024,
"DeepSeek-V2", arXiv 2405.04434, and "DeepSeek-V3 technical report", 2412.19437;
fields as transformers documents them for DeepseekV2Config and DeepseekV3Config):
keys and values of all heads that are made from few numbers of each token, and
experts that are chosen within the best groups of them.

As the papers write it, with keys and values of each head: an engine need not
make these.
"""

import math

import numpy as np
import torch

V2 = "DeepseekV2ForCausalLM"
V3 = "DeepseekV3ForCausalLM"
MUTANTS = ("latent_norm_off", "query_norm_off", "latent_pairs_apart",
           "latent_turned_first", "latent_key_unturned", "score_magnitude_off",
           "scores_by_nope_dim", "groups_off",
           "groups_by_others_score", "one_shared_expert")
LATENT_EPS = 1e-6
# In spite of what experts that a token asks for are chosen: of what else a
# router reads, and of what norms make of the request in later layers.
REQUEST_NOISE = 0.35
REQUEST_SCALES = (0.4, 1.2)


def is_latent(config):
    return config["architectures"][0] in (V2, V3)


def is_v2(config):
    return config["architectures"][0] == V2


def query_dim(config):
    return config["qk_nope_head_dim"] + config["qk_rope_head_dim"]


def score_scale(config, mutate=None):
    dim = (config["qk_nope_head_dim"] if mutate == "scores_by_nope_dim"
           else query_dim(config))
    scaling = config.get("rope_scaling") or {}
    weight = scaling.get("mscale_all_dim", 0)
    magnitude = 1.0
    if weight and mutate != "score_magnitude_off":
        magnitude = 0.1 * weight * math.log(scaling["factor"]) + 1
    return magnitude**2 * dim**-0.5


def keep_groups(config, scores, mutate=None):
    """The scores that experts are chosen by, of those in the best groups; of
    others less than any."""
    groups, chosen = config.get("n_group", 1), config.get("topk_group", 1)
    if (groups == 1 or mutate == "groups_off"
            or config.get("topk_method") == "greedy"):
        return scores
    parts = scores.view(len(scores), groups, -1)
    best_of_one = is_v2(config) != (mutate == "groups_by_others_score")
    of_group = (parts.max(-1).values if best_of_one
                else parts.topk(2, dim=-1).values.sum(-1))
    best = of_group.topk(chosen, dim=-1).indices
    kept = torch.zeros_like(of_group).scatter(-1, best, 1.0) > 0
    return parts.masked_fill(~kept[..., None], float("-inf")).flatten(1)


def in_halves(x, config, mutate=None):
    """What the files have in pairs, as halves."""
    if mutate == "latent_pairs_apart" or not config.get("rope_interleave", True):
        return x
    return torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)


def attention(config, h, layer, linear, norm, rope, rnd, mask, weights,
              mutate=None):
    """[batch, positions, heads * v_head_dim] of h, the layer's input,
    normalized. `linear`, `norm` and `rope` are the reference's."""
    heads = config["num_attention_heads"]
    nope, rope_dim = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    rank, value = config["kv_lora_rank"], config["v_head_dim"]
    batch, length = h.shape[:2]
    attn = layer + "self_attn."

    def split(x):
        return x.view(batch, length, heads, -1).transpose(1, 2)

    def turn(x):
        return rope(in_halves(x, config, mutate))

    if config["q_lora_rank"] is None:
        q = linear(h, attn + "q_proj")
    else:
        q = linear(h, attn + "q_a_proj")
        if mutate != "query_norm_off":
            q = norm(q, attn + "q_a_layernorm")
        q = linear(q, attn + "q_b_proj")
    q = split(q)
    kept = linear(h, attn + "kv_a_proj_with_mqa")
    latent, turned = kept.split((rank, rope_dim), dim=-1)
    if mutate != "latent_norm_off":
        latent = norm(latent, attn + "kv_a_layernorm")
    # What an engine keeps of a token.
    latent = rnd(latent)
    turned = turned[:, None]
    if mutate != "latent_key_unturned":
        turned = turn(turned)
    turned = rnd(turned)
    both = split(linear(latent, attn + "kv_b_proj"))
    key, values = both.split((nope, value), dim=-1)
    if mutate == "latent_turned_first":
        q = torch.cat((q[..., rope_dim:], turn(q[..., :rope_dim])), dim=-1)
    else:
        q = torch.cat((q[..., :nope], turn(q[..., nope:])), dim=-1)
    key = torch.cat((key, turned.expand(-1, heads, -1, -1)), dim=-1)
    scores = rnd(q) @ rnd(key).transpose(-1, -2) * score_scale(config, mutate)
    scores = scores.masked_fill(~mask, float("-inf"))
    out = rnd(torch.softmax(scores, dim=-1)) @ rnd(values)
    return out.transpose(1, 2).reshape(batch, length, heads * value)


def put_attention(config, attn, put, matrix):
    """Random weights of a layer's attention, by make_golden.py's functions."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    rank, value = config["kv_lora_rank"], config["v_head_dim"]
    inputs = hidden
    queries = "q_proj"
    if config["q_lora_rank"] is not None:
        inputs = config["q_lora_rank"]
        queries = "q_b_proj"
        matrix(attn + "q_a_proj", inputs, hidden, 1.0, False)
        put(attn + "q_a_layernorm.weight", (inputs,), 0.2, 1.0)
    matrix(attn + queries, heads * query_dim(config), inputs, 1.0, False)
    matrix(attn + "kv_a_proj_with_mqa", rank + config["qk_rope_head_dim"],
           hidden, 1.0, False)
    put(attn + "kv_a_layernorm.weight", (rank,), 0.2, 1.0)
    matrix(attn + "kv_b_proj", heads * (config["qk_nope_head_dim"] + value),
           rank, 1.0, False)
    return heads * value


def choice_bias(config):
    """Of V3's experts, by the place that a token asks for them in."""
    count = config["n_routed_experts"]
    return 0.0 if is_v2(config) else 0.2 * np.random.RandomState(
        count).standard_normal(count)


def chosen_experts(config, logits, groups=True):
    """[rows, experts]: whether a row's logits choose an expert."""
    count, chosen = config["num_experts_per_tok"], config["topk_group"]
    # Softmax does not change the order.
    scores = (logits if is_v2(config)
              else 1 / (1 + np.exp(-logits)) + choice_bias(config))
    if groups:
        parts = np.sort(scores.reshape(len(scores), config["n_group"], -1))
        of_group = (parts[..., -1] if is_v2(config)
                    else parts[..., -2:].sum(-1))
        least = np.sort(of_group)[:, -chosen]
        kept = np.repeat(of_group >= least[:, None], parts.shape[-1], axis=1)
        scores = np.where(kept, scores, -np.inf)
    return scores >= np.sort(scores)[:, -count][:, None]


def expert_requests(rng, config):
    """[vocab, experts]: for each token what it asks of experts. Which are
    chosen, what else routers read does not change; of every other token it
    would, if all groups were."""
    experts, rows = config["n_routed_experts"], []
    while len(rows) < config["vocab_size"]:
        row = rng.uniform(-4.0, 4.0, experts)
        limits = len(rows) % 2 == 1
        noise = rng.standard_normal((400, experts)) * REQUEST_NOISE
        scale = rng.uniform(*REQUEST_SCALES, (400, 1))
        chosen = chosen_experts(config, scale * row + noise)
        free = chosen_experts(config, row[None], groups=False)[0]
        if (chosen == chosen[0]).all() and limits == (free != chosen[0]).any():
            rows.append(row)
    return np.stack(rows)


def permute_experts(rng, config):
    """Other places for the experts, where neighbours of a group stay such."""
    groups = np.arange(config["n_routed_experts"]).reshape(
        config["n_group"], -1)
    return np.concatenate([rng.permutation(group)
                           for group in rng.permutation(groups)])
