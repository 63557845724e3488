#!/usr/bin/env python3
"""Writes tests/golden/models/ and adapters/: tiny random models, LoRA adapters
of some of them, and what they must answer.

Run from anywhere:
    /usr/bin/python3 tests/golden/make_golden.py [--report] [NAME...]
With names, only these are made again. Needs PyTorch and NumPy (Debian:
python3-torch). Deterministic: the weights and prompts come from fixed seeds. See
README.md for the files and the tolerance.
"""

import json
import os
import shutil
import struct
import sys

import numpy as np
import torch

import deepseek
import gemma
import gpt_oss
import reference

PROMPT_LENGTHS = (1, 5, 17, 50)
OUTPUT_TOKENS = 20
# The engine may deviate by this much more than the emulation of its rounding.
MAX_ERROR_MARGIN = 2.0
RMS_ERROR_MARGIN = 1.5
# Which of two nearly tied experts is chosen, no tolerance could cover. So the
# first hidden dimensions, one for each expert, are the routers': a token's
# embedding asks there for its experts. The gains of what else a router reads,
# and of what attention and MLPs write there:
ROUTER_NOISE = 0.15
ROUTER_WRITE = 0.05

DTYPES = {
    "bfloat16": (torch.bfloat16, "BF16"),
    "float16": (torch.float16, "F16"),
    "float32": (torch.float32, "F32"),
}
BYTES = (torch.uint8, "U8")


def base_config(architecture, model_type, **fields):
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config.update(fields)
    return config


# Sizes are small and not all multiples of a vector: tails must work too.
MODELS = {
    # Multi-head attention, untied; the plainest.
    "llama2": (11, base_config(
        "LlamaForCausalLM", "llama", hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, intermediate_size=90,
        vocab_size=128, rope_scaling=None)),
    # Grouped queries and Llama 3.1's frequency scaling, the original context
    # shorter than the prompts.
    "llama3": (12, base_config(
        "LlamaForCausalLM", "llama", hidden_size=64, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=2, head_dim=16,
        intermediate_size=96, vocab_size=160, rope_theta=500000.0,
        rope_scaling={
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32, "rope_type": "llama3"})),
    # Linear scaling, every bias that a Llama may have, stored as float32, and
    # an epsilon that is large enough to be seen.
    "llama_linear": (13, base_config(
        "LlamaForCausalLM", "llama", hidden_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=80,
        vocab_size=131, rms_norm_eps=0.05, torch_dtype="float32",
        attention_bias=True, mlp_bias=True,
        rope_scaling={"type": "linear", "factor": 4.0})),
    # A sliding window shorter than the prompts; two shards and an index.
    "mistral": (14, base_config(
        "MistralForCausalLM", "mistral", hidden_size=40, num_hidden_layers=3,
        num_attention_heads=5, num_key_value_heads=1, head_dim=8,
        intermediate_size=112, vocab_size=144, sliding_window=8)),
    # QKV bias, tied, stored as float16; the window begins at layer 1.
    "qwen2": (15, base_config(
        "Qwen2ForCausalLM", "qwen2", hidden_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=104,
        vocab_size=151, tie_word_embeddings=True, rope_theta=1000000.0,
        torch_dtype="float16", use_sliding_window=True, sliding_window=12,
        max_window_layers=1)),
    # QK norm, and head_dim that is not hidden_size / heads; rope_parameters
    # as transformers 5 writes it.
    "qwen3": (16, base_config(
        "Qwen3ForCausalLM", "qwen3", hidden_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        intermediate_size=72, vocab_size=136, rope_theta=1000000.0,
        use_sliding_window=False, sliding_window=None,
        max_window_layers=2)),
    # Experts in every layer, their shares normalized.
    "mixtral": (17, base_config(
        "MixtralForCausalLM", "mixtral", hidden_size=48, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, intermediate_size=56,
        vocab_size=140, rope_theta=1000000.0, sliding_window=None,
        num_local_experts=5, num_experts_per_tok=2)),
    # More and smaller experts, their shares as the softmax has them; an
    # ordinary MLP of another size in between; QK norm; tied.
    "qwen3_moe": (18, base_config(
        "Qwen3MoeForCausalLM", "qwen3_moe", hidden_size=64,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=24, intermediate_size=72, vocab_size=150,
        tie_word_embeddings=True, rope_theta=1000000.0,
        attention_bias=False, use_sliding_window=False, sliding_window=None,
        max_window_layers=3, num_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=40, norm_topk_prob=False,
        decoder_sparse_step=1, mlp_only_layers=[1])),
    # Half of each head turned; scores by sigmoid, chosen with a bias and
    # scaled; an expert that all tokens share; the first layer an ordinary MLP;
    # bias without one at the output; QK norm.
    "glm4_moe": (19, base_config(
        "Glm4MoeForCausalLM", "glm4_moe", hidden_size=64, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, head_dim=16,
        intermediate_size=88, vocab_size=150, rope_theta=1000000.0,
        attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5,
        rope_scaling=None, n_routed_experts=7, n_shared_experts=1,
        num_experts_per_tok=3, moe_intermediate_size=48, n_group=1,
        topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5,
        first_k_dense_replace=1)),
    # A context stretched by YaRN, of which the prompts are longer than the
    # original one.
    "qwen2_yarn": (20, base_config(
        "Qwen2ForCausalLM", "qwen2", hidden_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        intermediate_size=104, vocab_size=142, rope_theta=10000.0,
        max_position_embeddings=32, use_sliding_window=False,
        sliding_window=None, max_window_layers=3,
        rope_scaling={
            "rope_type": "yarn", "factor": 4.0, "beta_fast": 2.0,
            "beta_slow": 0.25, "original_max_position_embeddings": 32})),
    # Matrices of several in one, a window, heads turned in part.
    "phi3": (21, base_config(
        "Phi3ForCausalLM", "phi3", hidden_size=48, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, head_dim=16,
        intermediate_size=72, vocab_size=138, sliding_window=20,
        rope_scaling=None, partial_rotary_factor=0.75, pad_token_id=None)),
    # A context stretched by LongRoPE, of which the prompts are longer than the
    # original one; heads turned in part.
    "phi3_long": (26, base_config(
        "Phi3ForCausalLM", "phi3", hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=104, vocab_size=136, sliding_window=None,
        max_position_embeddings=96, original_max_position_embeddings=24,
        partial_rotary_factor=0.75, pad_token_id=None, rope_scaling={
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            "long_factor": [1.3, 1.7, 2.9, 5.1, 8.3, 10.6]})),
    # A layer that knows no positions; tied.
    "smollm3": (22, base_config(
        "SmolLM3ForCausalLM", "smollm3", hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=88, vocab_size=134, rope_theta=2000000.0,
        tie_word_embeddings=True, rope_scaling=None, use_sliding_window=False,
        no_rope_layer_interval=2, pad_token_id=None)),
    # Norms behind attention and MLP, GeGLU, embeddings scaled by a number that
    # is rounded, scores by another length than the heads', layers that slide
    # and turn by another base, and full ones that are stretched.
    "gemma3": (27, base_config(
        "Gemma3ForCausalLM", "gemma3_text", hidden_size=72,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
        head_dim=24, intermediate_size=88, vocab_size=148, rms_norm_eps=1e-6,
        rope_theta=10000.0, rope_local_base_freq=50.0, sliding_window=9,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=14, tie_word_embeddings=True,
        attention_bias=False, attn_logit_softcapping=None,
        final_logit_softcapping=None, hidden_activation="gelu_pytorch_tanh",
        rope_scaling={"rope_type": "linear", "factor": 4.0})),
    # A sink for each head, a window in every other layer; experts in MXFP4, all
    # in one tensor, with biases and a limit that is reached; YaRN between
    # broken numbers of pairs.
    "gpt_oss": (25, base_config(
        "GptOssForCausalLM", "gpt_oss", hidden_size=64, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, head_dim=16,
        intermediate_size=96, vocab_size=146, rope_theta=150000.0,
        max_position_embeddings=128, attention_bias=True, sliding_window=9,
        layer_types=["sliding_attention", "full_attention",
                     "sliding_attention"],
        num_local_experts=6, num_experts_per_tok=2, swiglu_limit=1.5,
        quantization_config={"quant_method": "mxfp4"},
        rope_scaling={
            "rope_type": "yarn", "factor": 4.0, "beta_fast": 2.0,
            "beta_slow": 0.25, "truncate": False,
            "original_max_position_embeddings": 32})),
    # Keys and values made from few numbers, queries from the hidden state; two
    # shared experts in one, shares as the softmax has them, scaled, of experts
    # in the best two of four groups; stored as float32.
    "deepseek_v2": (28, base_config(
        "DeepseekV2ForCausalLM", "deepseek_v2", hidden_size=64,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=88, vocab_size=152, rms_norm_eps=1e-6,
        torch_dtype="float32", rope_scaling=None, attention_bias=False,
        q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=20,
        qk_rope_head_dim=8, v_head_dim=64, n_routed_experts=8,
        n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=40,
        n_group=4, topk_group=2, topk_method="group_limited_greedy",
        scoring_func="softmax", norm_topk_prob=False,
        routed_scaling_factor=2.5, first_k_dense_replace=1,
        moe_layer_freq=1)),
    # Queries, too, from few numbers; scores by sigmoid, groups by their best
    # two; a stretched context whose scores are larger; every layer with
    # experts but the first.
    "deepseek_v3": (29, base_config(
        "DeepseekV3ForCausalLM", "deepseek_v3", hidden_size=64,
        num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=6,
        intermediate_size=80, vocab_size=150, rms_norm_eps=1e-6,
        max_position_embeddings=128, attention_bias=False,
        q_lora_rank=24, kv_lora_rank=48, qk_nope_head_dim=16,
        qk_rope_head_dim=12, v_head_dim=64, n_routed_experts=9,
        n_shared_experts=1, num_experts_per_tok=3, moe_intermediate_size=48,
        n_group=3, topk_group=2, topk_method="noaux_tc",
        scoring_func="sigmoid", norm_topk_prob=True,
        routed_scaling_factor=1.5, first_k_dense_replace=1, moe_layer_freq=1,
        rope_scaling={
            "type": "yarn", "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.25,
            "mscale": 1.0, "mscale_all_dim": 0.8,
            "original_max_position_embeddings": 32})),
}
# LoRA adapters: of which model, and PEFT's config.
ADAPTERS = {
    # Of every matrix, stored as float32, one rank wider than another.
    "llama3_lora": ("llama3", 31, {
        "r": 6, "lora_alpha": 9, "rank_pattern": {"o_proj": 20},
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj",
                           "gate_proj", "up_proj", "down_proj"]}, "float32"),
    # What PEFT does when nothing is said, and another scale; a bias and tied
    # embeddings beside it.
    "qwen2_lora": ("qwen2", 32, {
        "r": 8, "lora_alpha": 4, "use_rslora": True,
        "target_modules": ["q_proj", "v_proj"]}, "bfloat16"),
    # Attention of a model with experts.
    "mixtral_lora": ("mixtral", 33, {
        "r": 4, "lora_alpha": 4,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
        "bfloat16"),
    # Of matrices that are several in one.
    "phi3_lora": ("phi3", 34, {
        "r": 5, "lora_alpha": 10,
        "target_modules": ["qkv_proj", "gate_up_proj", "down_proj"]},
        "bfloat16"),
    # Of products that have a norm behind them, and of GeGLU.
    "gemma3_lora": ("gemma3", 36, {
        "r": 4, "lora_alpha": 8,
        "target_modules": ["o_proj", "gate_proj", "up_proj", "down_proj"]},
        "bfloat16"),
}
ADAPTER_MUTANTS = ("adapter_off", "adapter_unscaled", "adapter_scaled_by_rank",
                   "adapter_attention_only", "adapter_queries_only")
SHARDED = {"mistral"}
ROPE_PARAMETERS = {"qwen3"}


def resolved(config):
    """The config with the defaults filled in that the reference needs."""
    full = dict(config)
    if deepseek.is_latent(config):
        return full
    full.setdefault("head_dim",
                    config["hidden_size"] // config["num_attention_heads"])
    return full


def expert_requests(rng, config, experts, chosen):
    """[vocab, experts]: for each token its experts in another order, those to
    be chosen well ahead of the others."""
    if deepseek.is_latent(config):
        return deepseek.expert_requests(rng, config)
    levels = np.concatenate((1.3 + 0.5 * np.arange(chosen),
                             -1.0 - 0.2 * np.arange(experts - chosen)))
    return np.stack([rng.permutation(levels)
                     for _ in range(config["vocab_size"])])


def make_weights(config, seed):
    """Random weights, scaled so that every part moves the logits and that these
    have a standard deviation of two to three."""
    rng = np.random.RandomState(seed)
    dtype = DTYPES[config["torch_dtype"]][0]
    hidden = config["hidden_size"]
    q_size = config["num_attention_heads"] * config.get("head_dim", 0)
    kv_size = config["num_key_value_heads"] * config.get("head_dim", 0)
    weights = {}

    def put(name, shape, std, mean=0.0):
        value = mean + std * rng.standard_normal(shape)
        weights[name] = torch.from_numpy(value).to(dtype)

    def matrix(name, rows, columns, gain, bias):
        put(name + ".weight", (rows, columns), gain / np.sqrt(columns))
        if bias:
            put(name + ".bias", (rows,), 0.5)

    kind = config["architectures"][0]
    attention_bias = config.get("attention_bias", False)
    qkv_bias = attention_bias or kind == "Qwen2ForCausalLM"
    o_bias = attention_bias and kind != reference.GLM
    mlp_bias = config.get("mlp_bias", kind == gpt_oss.NAME)
    tied = config["tie_word_embeddings"]
    # Of norms; Gemma's are stored less one.
    one = 0.0 if gemma.is_gemma(config) else 1.0
    head_std = 2.5 / np.sqrt(hidden)
    # What is scaled is drawn smaller, and logits are as large by the last norm.
    scale = gemma.embedding_scale(config)
    embed_std = (head_std if tied else 1.0) / scale
    put("model.embed_tokens.weight", (config["vocab_size"], hidden), embed_std)
    # Of GLM's the first expert is every token's choice by its bias, and none
    # asks for it.
    favoured = int(kind == reference.GLM)
    most = max(reference.layer_experts(config)) - favoured
    if most > 0:
        asked = expert_requests(rng, config, most,
                                config["num_experts_per_tok"] - favoured)
        weights["model.embed_tokens.weight"][:, :most] = torch.from_numpy(
            embed_std * asked).to(dtype)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        before, behind, before_mlp, behind_mlp = gemma.norm_names(config)
        put(layer + before + ".weight", (hidden,), 0.2, one)
        attn = layer + "self_attn."
        if deepseek.is_latent(config):
            q_size = deepseek.put_attention(config, attn, put, matrix)
        else:
            matrix(attn + "q_proj", q_size, hidden, 1.0, qkv_bias)
            matrix(attn + "k_proj", kv_size, hidden, 1.0, qkv_bias)
            matrix(attn + "v_proj", kv_size, hidden, 1.0, qkv_bias)
        matrix(attn + "o_proj", hidden, q_size, 1.5, o_bias)
        weights[attn + "o_proj.weight"][:most] *= ROUTER_WRITE
        if kind == gpt_oss.NAME:
            weights[attn + "o_proj.bias"][:most] *= ROUTER_WRITE
            put(attn + "sinks", (config["num_attention_heads"],), 1.0, 1.0)
        if reference.has_qk_norm(config):
            # Three layers of sharp attention would be too much for int4.
            sharp = most > 0 or gemma.is_gemma(config)
            mean = (0.6 if sharp else 1.1) - 1.0 + one
            put(attn + "q_norm.weight", (config["head_dim"],), 0.3, mean)
            put(attn + "k_norm.weight", (config["head_dim"],), 0.3, mean)
        for name in filter(None, (before_mlp, behind, behind_mlp)):
            put(layer + name + ".weight", (hidden,), 0.2, one)
        experts = reference.layer_experts(config)[i]
        prefix, (gate, up, down), router = reference.mlp_names(config, experts)
        inter = config["intermediate_size"]
        if experts:
            matrix(layer + router, experts, hidden, ROUTER_NOISE, False)
            if kind == gpt_oss.NAME:
                put(layer + router + ".bias", (experts,), 0.1)
            # Each layer gives a token other experts.
            others = (deepseek.permute_experts(rng, config)
                      if deepseek.is_latent(config)
                      else rng.permutation(experts - favoured))
            for e, column in enumerate(others):
                weights[layer + router + ".weight"][e + favoured, column] += (
                    1 / embed_std)
            inter = config.get("moe_intermediate_size", inter)
            if kind == deepseek.V3:
                weights[layer + router + ".e_score_correction_bias"] = (
                    torch.from_numpy(
                        deepseek.choice_bias(config)[others]).float())
            if favoured:
                bias = 0.05 * rng.standard_normal(experts)
                bias[0] += 1.5
                weights[layer + router + ".e_score_correction_bias"] = (
                    torch.from_numpy(bias).float())
        prefixes = [prefix.format(e) for e in range(max(experts, 1))]
        if experts and config.get("n_shared_experts"):
            prefixes.append("mlp.shared_experts.")
        for mlp in (layer + prefix for prefix in prefixes):
            if "shared" in mlp:
                inter = (config["moe_intermediate_size"]
                         * config["n_shared_experts"])
            matrix(mlp + gate, inter, hidden, 1.0, mlp_bias)
            matrix(mlp + up, inter, hidden, 1.0, mlp_bias)
            matrix(mlp + down, hidden, inter, 1.0, mlp_bias)
            weights[mlp + down + ".weight"][:most] *= ROUTER_WRITE
            if experts and mlp_bias:
                weights[mlp + down + ".bias"][:most] *= ROUTER_WRITE
    put("model.norm.weight", (hidden,), 0.2 * scale, scale - 1.0 + one)
    if not tied:
        put("lm_head.weight", (config["vocab_size"], hidden), head_std)
    if kind == gpt_oss.NAME:
        return gpt_oss.stacked(config, weights)
    return fused(weights) if kind == reference.PHI else weights


def fused(weights):
    """The same as Phi's files have them."""
    out = {}
    for name, value in weights.items():
        for first, parts, whole in (
                ("q_proj", ("q_proj", "k_proj", "v_proj"), "qkv_proj"),
                ("gate_proj", ("gate_proj", "up_proj"), "gate_up_proj")):
            if any(part in name for part in parts):
                if first in name:
                    out[name.replace(first, whole)] = torch.cat(
                        [weights[name.replace(first, part)] for part in parts])
                break
        else:
            out[name] = value
    return out


def deviation(config, weights, rng):
    """Largest and root-mean-square deviation of the bf16 emulation."""
    tokens = torch.from_numpy(
        rng.randint(0, config["vocab_size"], size=(64, 50)))
    exact = reference.forward(config, weights, tokens)
    error = reference.forward(config, weights, tokens, bf16=True) - exact
    return (error.abs().max().item(), error.pow(2).mean().sqrt().item(),
            exact.std().item())


def greedy_run(config, weights, prompts, min_gap):
    """Continues all prompts greedily, dropping those with a top-2 gap of at
    most `min_gap`, until none or OUTPUT_TOKENS are left to do. Returns the
    tokens and gaps of those that came furthest."""
    tokens, gaps = prompts, torch.zeros(len(prompts), 0)
    for _ in range(OUTPUT_TOKENS):
        logits = reference.forward(config, weights, tokens)[:, -1]
        top = logits.topk(2, dim=-1)
        gap = top.values[:, 0] - top.values[:, 1]
        keep = gap > min_gap
        if not keep.any():
            break
        gaps = torch.cat((gaps, gap[:, None]), dim=1)[keep]
        tokens = torch.cat((tokens, top.indices[:, :1]), dim=1)[keep]
    return tokens, gaps


def find_prompt(config, weights, length, min_gap, rng):
    """A prompt whose greedy continuation is never nearly tied."""
    vocab = config["vocab_size"]
    for _ in range(50):
        if length == 1:
            # So few that the longest run must do.
            prompts = torch.arange(vocab)[:, None]
        else:
            prompts = torch.from_numpy(rng.randint(0, vocab,
                                                   size=(2000, length)))
        tokens, gaps = greedy_run(config, weights, prompts, min_gap)
        if length > 1 and gaps.shape[1] < OUTPUT_TOKENS:
            continue
        # The one with the most different output tokens says most.
        outputs = [len(set(row[length:].tolist())) for row in tokens]
        best = int(np.argmax(outputs))
        return tokens[best], gaps[best]
    raise RuntimeError("no prompt found; choose another seed")


def number(value):
    return float(f"{float(value):.6g}")


def numbers(values):
    return [number(v) for v in values]


def make_expected(name, config, weights, seed):
    rng = np.random.RandomState(seed + 1000)
    max_error, rms_error, spread = deviation(config, weights, rng)
    tolerance = number(f"{MAX_ERROR_MARGIN * max_error:.2g}")
    expected = {
        "about": "Made by tests/golden/make_golden.py; see README.md.",
        "logit_spread": number(spread),
        "emulated_bf16_error": {"max": number(max_error),
                                "rms": number(rms_error)},
        "tolerance": {"max": tolerance,
                      "rms": number(f"{RMS_ERROR_MARGIN * rms_error:.2g}")},
        "prompts": [],
    }
    for length in PROMPT_LENGTHS:
        # With both logits off by the tolerance the order still holds.
        tokens, gaps = find_prompt(config, weights, length, 2 * tolerance, rng)
        assert len(gaps) > 1
        logits = reference.forward(config, weights, tokens[None, :])[0]
        expected["prompts"].append({
            "tokens": tokens[:length].tolist(),
            "logits": [numbers(row) for row in logits[:length]],
            "greedy": tokens[length:].tolist(),
            "gaps": numbers(gaps),
            # After the last-but-one greedy token: what chose the last one.
            "last_greedy_logits": numbers(logits[-2]),
        })
    print(f"{name:13s} spread {spread:.2f}  bf16 error max {max_error:.4f} "
          f"rms {rms_error:.5f}  tolerance {tolerance}  "
          f"min gap {min(min(p['gaps']) for p in expected['prompts']):.3f}")
    return expected


def write_safetensors(path, weights):
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    names = {dtype: name for dtype, name in (*DTYPES.values(), BYTES)}
    for name in sorted(weights):
        tensor = weights[name].contiguous()
        # NumPy has no bfloat16: take the bits.
        bits = tensor.view({torch.float32: torch.int32,
                            torch.uint8: torch.uint8}.get(tensor.dtype,
                                                          torch.int16))
        blob = bits.numpy().tobytes()
        header[name] = {"dtype": names[tensor.dtype],
                        "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)))
        out.write(text)
        out.writelines(blobs)


def write_json(path, value):
    with open(path, "w") as out:
        json.dump(value, out, indent=1)
        out.write("\n")


def write_expected(path, expected):
    """One row of logits per line: small, and a change can be seen."""
    rows = []

    def stub(row):
        rows.append(json.dumps(row, separators=(",", ":")))
        return f"@{len(rows) - 1}@"

    shown = dict(expected, prompts=[
        {key: [stub(row) for row in value] if key == "logits" else stub(value)
         for key, value in prompt.items()} for prompt in expected["prompts"]])
    text = json.dumps(shown, indent=1)
    for i, row in enumerate(rows):
        text = text.replace(f'"@{i}@"', row, 1)
    with open(path, "w") as out:
        out.write(text + "\n")


def config_as_written(name, config):
    written = dict(config)
    if gemma.is_gemma(config):
        del written["hidden_act"]
    if name in ROPE_PARAMETERS:
        written["rope_parameters"] = {"rope_type": "default",
                                      "rope_theta": written.pop("rope_theta")}
    return written


def write_model(root, name, seed, config):
    full = resolved(config)
    weights = make_weights(full, seed)
    path = os.path.join(root, name)
    os.makedirs(path)
    write_json(os.path.join(path, "config.json"),
               config_as_written(name, config))
    write_json(os.path.join(path, "generation_config.json"),
               {"bos_token_id": 1, "eos_token_id": [2, 3]})
    if name in SHARDED:
        names = sorted(weights)
        shards = [names[::2], names[1::2]]
        weight_map = {}
        for i, part in enumerate(shards):
            shard = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
            write_safetensors(os.path.join(path, shard),
                              {n: weights[n] for n in part})
            weight_map.update({n: shard for n in part})
        write_json(os.path.join(path, "model.safetensors.index.json"),
                   {"metadata": {}, "weight_map": weight_map})
    else:
        write_safetensors(os.path.join(path, "model.safetensors"), weights)
    expected = make_expected(name, full, weights, seed)
    write_expected(os.path.join(path, "expected.json"), expected)
    return full, weights, expected


def make_adapter(weights, seed, config, dtype):
    """Pairs for each target in the model, by the name of their matrix, whose
    products move the matrix about half as far as its own values go."""
    rng = np.random.RandomState(seed)
    pairs = {}
    for name in sorted(weights):
        module = name.split(".")[-2]
        if (module not in config["target_modules"]
                or not name.endswith(".weight")):
            continue
        rank = config.get("rank_pattern", {}).get(module, config["r"])
        outputs, inputs = weights[name].shape
        a = rng.standard_normal((rank, inputs)) / np.sqrt(inputs)
        b = 0.5 * rng.standard_normal((outputs, rank)) / adapter_scale(
            config, rank) / np.sqrt(rank)
        # What writes where routers read would change their choices.
        if "block_sparse_moe" in " ".join(weights) and module == "o_proj":
            b[:8] *= ROUTER_WRITE
        pairs[name] = [torch.from_numpy(m).to(DTYPES[dtype][0])
                       for m in (a, b)]
    return pairs


def adapter_scale(config, rank, mutate=None):
    by_root = config.get("use_rslora", False)
    if mutate == "adapter_scaled_by_rank":
        by_root = not by_root
    return (1.0 if mutate == "adapter_unscaled"
            else config["lora_alpha"] / (rank**0.5 if by_root else rank))


def merged(weights, pairs, config, mutate=None):
    """The weights with the adapter in them: W + scale B A, in float32."""
    out = dict(weights)
    for name, (a, b) in pairs.items():
        module = name.split(".")[-2]
        if (mutate == "adapter_off"
                or (mutate == "adapter_attention_only"
                    and "self_attn" not in name)
                or (mutate == "adapter_queries_only"
                    and module not in ("q_proj", "qkv_proj"))):
            continue
        scale = adapter_scale(config, a.shape[0], mutate)
        out[name] = weights[name].float() + scale * (b.float() @ a.float())
    return out


def write_adapter(root, name):
    model, seed, config, dtype = ADAPTERS[name]
    model_seed, model_config = MODELS[model]
    full = resolved(model_config)
    weights = make_weights(full, model_seed)
    pairs = make_adapter(weights, seed, config, dtype)
    path = os.path.join(root, name)
    os.makedirs(path)
    write_json(os.path.join(path, "adapter_config.json"), {
        "base_model_name_or_path": model, "peft_type": "LORA",
        "task_type": "CAUSAL_LM", "bias": "none", "fan_in_fan_out": False,
        "lora_dropout": 0.0, "modules_to_save": None, "use_dora": False,
        **config})
    tensors = {}
    for matrix, pair in pairs.items():
        stem = "base_model.model." + matrix[:-len("weight")]
        for side, tensor in zip("AB", pair):
            tensors[f"{stem}lora_{side}.weight"] = tensor
    write_safetensors(os.path.join(path, "adapter_model.safetensors"), tensors)
    adapted = merged(weights, pairs, config)
    expected = make_expected(name, full, adapted, seed)
    expected["model"] = model
    write_expected(os.path.join(path, "expected.json"), expected)
    if "--report" in sys.argv[1:]:
        report_adapter(name, full, weights, pairs, config, expected)


def report_adapter(name, full, weights, pairs, config, expected):
    """As report()."""
    adapted = merged(weights, pairs, config)
    for mutant in ADAPTER_MUTANTS:
        mistaken = merged(weights, pairs, config, mutate=mutant)
        worst = 0.0
        for prompt in expected["prompts"]:
            tokens = torch.tensor([prompt["tokens"]])
            error = (reference.forward(full, mistaken, tokens)
                     - reference.forward(full, adapted, tokens))
            worst = max(worst, error.pow(2).mean().sqrt().item())
        factor = worst / expected["tolerance"]["rms"]
        print(f"  {name:13s} {mutant:29s} "
              + (f"{factor:.1f} x tolerance" if worst > 0 else "does not apply"))


def report(name, config, weights, expected):
    """What each deliberate mistake of the reference does to the logits, as a
    multiple of the tolerance for root-mean-square errors."""
    for mutant in reference.MUTANTS:
        worst = 0.0
        for prompt in expected["prompts"]:
            tokens = torch.tensor([prompt["tokens"]])
            error = (reference.forward(config, weights, tokens, mutate=mutant)
                     - reference.forward(config, weights, tokens))
            worst = max(worst, error.pow(2).mean().sqrt().item())
        factor = worst / expected["tolerance"]["rms"]
        print(f"  {name:13s} {mutant:29s} "
              + (f"{factor:.1f} x tolerance" if worst > 0 else "does not apply"))


def main():
    torch.set_num_threads(1)
    here = os.path.dirname(os.path.abspath(__file__))
    models = os.path.join(here, "models")
    adapters = os.path.join(here, "adapters")
    names = [arg for arg in sys.argv[1:] if arg != "--report"]
    unknown = set(names) - set(MODELS) - set(ADAPTERS)
    if unknown:
        sys.exit(f"no such model or adapter: {', '.join(sorted(unknown))}")
    for name in names or [*MODELS, *ADAPTERS]:
        root = models if name in MODELS else adapters
        shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        if name in ADAPTERS:
            write_adapter(root, name)
            continue
        seed, config = MODELS[name]
        full, weights, expected = write_model(root, name, seed, config)
        if "--report" in sys.argv[1:]:
            report(name, full, weights, expected)


if __name__ == "__main__":
    main()
