"""What GGUF files of DeepSeek-V2 and V3 have that others have not: for
export_gguf.py. Keys and values of all heads are in one matrix, as in files from
before llama.cpp had matrices for each head.
"""

import sys

ARCHITECTURE = "deepseek2"
# GGUF's name and Hugging Face's, of a layer's attention.
TENSORS = (("attn_q_a", "self_attn.q_a_proj"),
           ("attn_q_a_norm", "self_attn.q_a_layernorm"),
           ("attn_q_b", "self_attn.q_b_proj"),
           ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
           ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
           ("attn_kv_b", "self_attn.kv_b_proj"))


def metadata(config, scaling):
    sigmoid = config["architectures"][0] != "DeepseekV2ForCausalLM"
    groups = config.get("n_group") or 1
    rope_dim = config["qk_rope_head_dim"]
    out = {
        "attention.head_count_kv": config["num_attention_heads"],
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.key_length": config["qk_nope_head_dim"] + rope_dim,
        "attention.value_length": config["v_head_dim"],
        "rope.dimension_count": rope_dim,
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": 2 if sigmoid else 1,
        "leading_dense_block_count": config["first_k_dense_replace"],
    }
    if config["q_lora_rank"] is not None:
        out["attention.q_lora_rank"] = config["q_lora_rank"]
    if groups > 1 and config.get("topk_method") != "greedy":
        out["expert_group_count"] = groups
        out["expert_group_used_count"] = config["topk_group"]
    weight = scaling.get("mscale_all_dim", 0)
    if weight:
        if scaling.get("mscale", weight) != weight:
            sys.exit("config.json: mscale is not mscale_all_dim; such files "
                     "have one of them")
        out["rope.scaling.yarn_log_multiplier"] = 0.1 * weight
    return {f"{ARCHITECTURE}.{key}": value for key, value in out.items()}
