"""The Llama family in plain PyTorch, float32, written for reading.

An independent reference for the engine: it follows the papers (RMSNorm
arXiv 1910.07467, RoPE 2104.09864, GQA 2305.13245, SwiGLU 2002.05202, Mistral's
window 2310.06825) and the meaning that Hugging Face transformers documents for
each field of config.json. No cache, no blocks, no batching tricks: every
position is computed from the whole sequence.

`mutate` names one deliberate mistake, so that make_golden.py can show that the
tolerance would catch it.
"""

import math

import torch

MUTANTS = ("window_off", "window_off_by_one", "scaling_off", "theta_default",
           "rope_interleaved", "kv_heads_interleaved", "qk_norm_off",
           "bias_off", "eps_small", "position_off_by_one")


def inverse_frequencies(config, mutate=None):
    dim = config["head_dim"]
    theta = 10000.0 if mutate == "theta_default" else config["rope_theta"]
    inv = [theta**(-2.0 * i / dim) for i in range(dim // 2)]
    scaling = config.get("rope_scaling")
    if not scaling or mutate == "scaling_off":
        return torch.tensor(inv, dtype=torch.float64)
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        inv = [f / scaling["factor"] for f in inv]
    elif kind == "llama3":
        # Long wavelengths are stretched, short ones kept, those between
        # blended linearly in original_max / wavelength.
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        original = scaling["original_max_position_embeddings"]
        out = []
        for f in inv:
            turns = original * f / (2 * math.pi)
            blend = min(1.0, max(0.0, (turns - low) / (high - low)))
            out.append((1 - blend) * f / scaling["factor"] + blend * f)
        inv = out
    else:
        raise ValueError(kind)
    return torch.tensor(inv, dtype=torch.float64)


def apply_rope(x, inv, mutate=None):
    """x: [batch, heads, positions, head_dim]; pairs (i, i + head_dim / 2)."""
    positions = torch.arange(x.shape[2], dtype=torch.float64)
    if mutate == "position_off_by_one":
        # A shift of all positions changes nothing (RoPE is relative), so the
        # mistake is in the second half only, as after a chunk boundary.
        positions[x.shape[2] // 2:] += 1
    angle = positions[:, None] * inv[None, :]
    cos, sin = angle.cos().float(), angle.sin().float()
    if mutate == "rope_interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin),
                           dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def rms_norm(x, weight, eps, mutate=None):
    if mutate == "eps_small":
        eps = 1e-6
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def layer_windows(config):
    """The window of each layer; None where a layer sees everything."""
    layers = config["num_hidden_layers"]
    window = config.get("sliding_window")
    kind = config["architectures"][0]
    if window is None or kind == "LlamaForCausalLM":
        return [None] * layers
    if kind == "MistralForCausalLM":
        return [window] * layers
    if not config.get("use_sliding_window", False):
        return [None] * layers
    first = config["max_window_layers"]
    return [window if i >= first else None for i in range(layers)]


def attention_mask(length, window, mutate=None):
    query = torch.arange(length)[:, None]
    key = torch.arange(length)[None, :]
    seen = key <= query
    if window is not None and mutate != "window_off":
        if mutate == "window_off_by_one":
            window += 1
        seen &= key > query - window
    return seen


def forward(config, weights, tokens, bf16=False, mutate=None):
    """Logits [batch, positions, vocab] of `tokens` [batch, positions].

    With `bf16`, everything that an engine may keep in bfloat16 is rounded to
    it: weights, inputs of all matrix products, queries, keys, values and
    attention probabilities. Sums, norms and the residual stay float32.
    """

    def rnd(x):
        return x.bfloat16().float() if bf16 else x

    def weight(name):
        return rnd(weights[name].float())

    def linear(x, name):
        y = rnd(x) @ weight(name + ".weight").T
        if name + ".bias" in weights and mutate != "bias_off":
            y = y + weights[name + ".bias"].float()
        return y

    heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    dim = config["head_dim"]
    eps = config["rms_norm_eps"]
    inv = inverse_frequencies(config, mutate)
    batch, length = tokens.shape

    def norm(x, name):
        return rms_norm(x, weights[name + ".weight"].float(), eps, mutate)

    def split(x, count):
        return x.view(batch, length, count, dim).transpose(1, 2)

    x = weight("model.embed_tokens.weight")[tokens]
    for i, window in enumerate(layer_windows(config)):
        layer = f"model.layers.{i}."
        h = norm(x, layer + "input_layernorm")
        q = split(linear(h, layer + "self_attn.q_proj"), heads)
        k = split(linear(h, layer + "self_attn.k_proj"), kv_heads)
        v = split(linear(h, layer + "self_attn.v_proj"), kv_heads)
        if config["architectures"][0] == "Qwen3ForCausalLM" and \
                mutate != "qk_norm_off":
            q = norm(q, layer + "self_attn.q_norm")
            k = norm(k, layer + "self_attn.k_norm")
        q = rnd(apply_rope(q, inv, mutate))
        k = rnd(apply_rope(k, inv, mutate))
        v = rnd(v)
        # Query head j reads KV head j // group.
        group = heads // kv_heads
        if mutate == "kv_heads_interleaved":
            k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
        else:
            k = k.repeat_interleave(group, dim=1)
            v = v.repeat_interleave(group, dim=1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(dim)
        scores = scores.masked_fill(
            ~attention_mask(length, window, mutate), float("-inf"))
        out = rnd(torch.softmax(scores, dim=-1)) @ v
        out = out.transpose(1, 2).reshape(batch, length, heads * dim)
        x = x + linear(out, layer + "self_attn.o_proj")
        h = norm(x, layer + "post_attention_layernorm")
        gate = linear(h, layer + "mlp.gate_proj")
        up = linear(h, layer + "mlp.up_proj")
        x = x + linear(torch.nn.functional.silu(gate) * up,
                       layer + "mlp.down_proj")
    x = norm(x, "model.norm")
    head = ("model.embed_tokens" if config["tie_word_embeddings"]
            else "lm_head")
    return rnd(x) @ weight(head + ".weight").T
