"""The Llama family in plain PyTorch, float32, written for reading.

An independent reference for the engine: it follows the papers (RMSNorm
arXiv 1910.07467, RoPE 2104.09864, YaRN 2309.00071, GQA 2305.13245, SwiGLU 2002.05202, Mistral's
window 2310.06825, Mixtral's experts 2401.04088, DeepSeek's 2401.06066 and
2412.19437, as GLM has them, attention sinks 2309.17453 and gpt-oss's model card
2508.10925, gemma.py, deepseek.py) and the meaning that Hugging Face
transformers documents for each field of config.json. No cache, no blocks, no
batching tricks: every position is computed from the whole sequence.

`mutate` names one deliberate mistake, so that make_golden.py can show that the
tolerance would catch it.
"""

import math

import torch

import deepseek
import gemma
import gpt_oss

MUTANTS = ("window_off", "window_off_by_one", "scaling_off", "theta_default",
           "rope_interleaved", "kv_heads_interleaved", "qk_norm_off",
           "bias_off", "eps_small", "position_off_by_one",
           "experts_one_less", "experts_normalization_flipped",
           "experts_unweighted", "experts_shifted", "rotary_whole",
           "shared_expert_off", "choice_bias_off", "share_scale_off",
           "scores_softmax", "yarn_magnitude_off", "yarn_untruncated",
           "yarn_linear", "gate_up_swapped",
           "rope_everywhere", "longrope_short",
           "longrope_magnitude_off") + (
               gpt_oss.MUTANTS + gemma.MUTANTS + deepseek.MUTANTS)
GLM = "Glm4MoeForCausalLM"
PHI = "Phi3ForCausalLM"


def has_qk_norm(config):
    if config["architectures"][0] == GLM:
        return config["use_qk_norm"]
    return config["architectures"][0] in ("Qwen3ForCausalLM",
                                          "Qwen3MoeForCausalLM", gemma.NAME)


def rotary_dim(config, mutate=None):
    """How many elements of a head RoPE turns, the first ones."""
    if deepseek.is_latent(config):
        return config["qk_rope_head_dim"]
    share = config.get("partial_rotary_factor", 1.0)
    return int(config["head_dim"] * (1.0 if mutate == "rotary_whole"
                                     else share))


def inverse_frequencies(config, mutate=None):
    dim = rotary_dim(config, mutate)
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
    elif kind == "yarn":
        # Pairs that turn often within the original context are kept, those
        # that turn less than once stretched, those between blended linearly in
        # the number of the pair.
        original = scaling["original_max_position_embeddings"]

        def pair_that_turns(times):
            return (dim * math.log(original / (times * 2 * math.pi))
                    / (2 * math.log(theta)))

        first = pair_that_turns(scaling.get("beta_fast", 32))
        last = pair_that_turns(scaling.get("beta_slow", 1))
        if scaling.get("truncate", True) != (mutate == "yarn_untruncated"):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        out = []
        for i, f in enumerate(inv):
            blend = min(1.0, max(0.0, (i - first) / (last - first)))
            if mutate == "yarn_linear":
                blend = 1.0
            out.append(blend * f / scaling["factor"] + (1 - blend) * f)
        inv = out
    elif kind == "longrope":
        # A divisor for each pair, of a list for longer contexts than the
        # original one and of another for all others.
        is_long = (config["max_position_embeddings"]
                   > config["original_max_position_embeddings"])
        factors = scaling["short_factor" if mutate == "longrope_short"
                          or not is_long else "long_factor"]
        rest = [1.0] * (len(inv) - len(factors))  # of a mutant that turns more
        inv = [f / factor for f, factor in zip(inv, factors + rest)]
    else:
        raise ValueError(kind)
    return torch.tensor(inv, dtype=torch.float64)


def rope_magnitude(config, mutate=None):
    """What turned elements are multiplied by."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("type") == "longrope" and mutate not in (
            "scaling_off", "longrope_magnitude_off"):
        original = config["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        return math.sqrt(1 + math.log(factor) / math.log(original))
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind != "yarn" or mutate in ("scaling_off", "yarn_magnitude_off"):
        return 1.0
    weights = [scaling.get(name, 0) for name in ("mscale", "mscale_all_dim")]
    if not all(weights):
        weights = [1, 0]
    above, below = (0.1 * weight * math.log(scaling["factor"]) + 1
                    for weight in weights)
    return above / below


def apply_rope(x, inv, magnitude, mutate=None):
    """x: [batch, heads, positions, head_dim]; pairs (i, i + n) for the n inv."""
    x, rest = x[..., :2 * len(inv)], x[..., 2 * len(inv):]
    positions = torch.arange(x.shape[2], dtype=torch.float64)
    if mutate == "position_off_by_one":
        # A shift of all positions changes nothing (RoPE is relative), so the
        # mistake is in the second half only, as after a chunk boundary.
        positions[x.shape[2] // 2:] += 1
    angle = positions[:, None] * inv[None, :]
    cos, sin = magnitude * angle.cos().float(), magnitude * angle.sin().float()
    if mutate == "rope_interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin),
                             dim=-1).flatten(-2)
        return torch.cat((turned, rest), dim=-1)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


def rms_norm(x, weight, eps, mutate=None):
    if mutate == "eps_small":
        eps = 1e-6
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def layer_turns(config, mutate=None):
    """Whether RoPE turns the heads of each layer."""
    layers = config["num_hidden_layers"]
    every = config.get("no_rope_layer_interval")
    if every is None or mutate == "rope_everywhere":
        return [True] * layers
    return [(i + 1) % every != 0 for i in range(layers)]


def unfused(config, weights, mutate=None):
    """Phi's files have Q, K and V in one matrix, and gate and up; others'
    weights as they are, but gpt-oss's, which have all experts in one."""
    if config["architectures"][0] == gpt_oss.NAME:
        return gpt_oss.unstacked(config, weights, mutate)
    if config["architectures"][0] != PHI:
        return weights
    q_size = config["num_attention_heads"] * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    inter = config["intermediate_size"]
    ups = ("up_proj", "gate_proj") if mutate == "gate_up_swapped" else (
        "gate_proj", "up_proj")
    out = {}
    for name, value in weights.items():
        for fused, parts, sizes in (
                ("qkv_proj", ("q_proj", "k_proj", "v_proj"),
                 (q_size, kv_size, kv_size)),
                ("gate_up_proj", ups, (inter, inter))):
            if fused in name:
                out.update({name.replace(fused, part): rows for part, rows in
                            zip(parts, value.split(sizes))})
                break
        else:
            out[name] = value
    return out


def layer_windows(config):
    """The window of each layer; None where a layer sees everything."""
    layers = config["num_hidden_layers"]
    window = config.get("sliding_window")
    kind = config["architectures"][0]
    if window is None or kind == "LlamaForCausalLM":
        return [None] * layers
    if kind in ("MistralForCausalLM", "MixtralForCausalLM", PHI):
        return [window] * layers
    if kind == gpt_oss.NAME:
        return [window if i % 2 == 0 else None for i in range(layers)]
    if kind == gemma.NAME:
        return [window if kind == "sliding_attention" else None
                for kind in config["layer_types"]]
    if not config.get("use_sliding_window", False):
        return [None] * layers
    first = config["max_window_layers"]
    return [window if i >= first else None for i in range(layers)]


def layer_experts(config):
    """How many experts each layer chooses from; 0 where it is an ordinary MLP."""
    layers = config["num_hidden_layers"]
    kind = config["architectures"][0]
    if kind in ("MixtralForCausalLM", gpt_oss.NAME):
        return [config["num_local_experts"]] * layers
    if kind in (GLM, deepseek.V2, deepseek.V3):
        dense = config["first_k_dense_replace"]
        return [0 if i < dense else config["n_routed_experts"]
                for i in range(layers)]
    if kind != "Qwen3MoeForCausalLM":
        return [0] * layers
    step, dense = config["decoder_sparse_step"], config["mlp_only_layers"]
    return [config["num_experts"] if i not in dense and (i + 1) % step == 0
            else 0 for i in range(layers)]


def mlp_names(config, experts):
    """Names within a layer: the MLP (of expert {}) and its matrices; router."""
    if config["architectures"][0] == "MixtralForCausalLM":
        moe = "block_sparse_moe."
        return moe + "experts.{}.", ("w1", "w3", "w2"), moe + "gate"
    router = ("mlp.router" if config["architectures"][0] == gpt_oss.NAME
              else "mlp.gate")
    return ("mlp.experts.{}." if experts else "mlp.",
            ("gate_proj", "up_proj", "down_proj"), router)


def expert_shares(config, logits, bias=None, mutate=None):
    """[tokens, experts]: what each expert's output counts; 0 if not chosen.
    GLM's and DeepSeek-V3's score each by itself, and are chosen with a bias."""
    count = config["num_experts_per_tok"]
    if mutate == "experts_one_less":
        count -= 1
    # Mixtral always normalizes and has no field for it.
    normalize = config.get("norm_topk_prob", True)
    if mutate == "experts_normalization_flipped":
        normalize = not normalize
    glm = config["architectures"][0] in (GLM, deepseek.V3)
    if glm and mutate != "scores_softmax":
        scores = torch.sigmoid(logits)
    else:
        scores = torch.softmax(logits, dim=-1)
    choose_by = scores
    if bias is not None and mutate != "choice_bias_off":
        choose_by = scores + bias
    choose_by = deepseek.keep_groups(config, choose_by, mutate)
    top = choose_by.topk(count, dim=-1)
    share = scores.gather(-1, top.indices)
    if normalize:
        share = share / share.sum(-1, keepdim=True)
    if "routed_scaling_factor" in config and mutate != "share_scale_off":
        share = share * config["routed_scaling_factor"]
    if mutate == "experts_unweighted":
        share = torch.full_like(share, 1.0 / count)
    return torch.zeros_like(logits).scatter(-1, top.indices, share)


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
    attention probabilities. Sums, norms, the residual and the experts' shares
    stay float32.
    """

    weights = unfused(config, weights, mutate)

    def rnd(x):
        return x.bfloat16().float() if bf16 else x

    def weight(name, of=weights):
        return rnd(of[name].float())

    def linear(x, name, of=weights):
        y = rnd(x) @ weight(name + ".weight", of).T
        if name + ".bias" in weights and mutate != "bias_off":
            y = y + weights[name + ".bias"].float()
        return y

    heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    dim = config.get("head_dim")
    eps = config["rms_norm_eps"]
    inv = inverse_frequencies(config, mutate)
    sliding_inv = inverse_frequencies(gemma.sliding_config(config, mutate),
                                      mutate)
    magnitude = rope_magnitude(config, mutate)
    batch, length = tokens.shape

    def norm(x, name):
        weight = gemma.norm_weight(config, weights[name + ".weight"].float(),
                                   mutate)
        return rms_norm(x, weight, eps, mutate)

    def latent_norm(x, name):
        return rms_norm(x, weights[name + ".weight"].float(),
                        deepseek.LATENT_EPS)

    def split(x, count):
        return x.view(batch, length, count, dim).transpose(1, 2)

    def mlp(h, prefix, names, of=weights):
        gate, up, down = (prefix + name for name in names)
        gate, up = linear(h, gate, of), linear(h, up, of)
        if "swiglu_limit" in config:
            gated = gpt_oss.swiglu(gate, up, config["swiglu_limit"], mutate)
        else:
            gated = gemma.gated(config, gate, up, mutate)
        return linear(gated, down, of)

    def mixture(h, layer, experts):
        prefix, names, router = mlp_names(config, experts)
        rows = h.reshape(batch * length, -1)
        bias = weights.get(layer + router + ".e_score_correction_bias")
        shares = expert_shares(config, linear(rows, layer + router), bias,
                               mutate)
        out = torch.zeros_like(rows)
        shared = layer + "mlp.shared_experts."
        if shared + names[0] + ".weight" in weights and (
                mutate != "shared_expert_off"):
            used = weights
            if mutate == "one_shared_expert":
                inner = config["moe_intermediate_size"]
                kept = {shared + name + ".weight": (
                    weights[shared + name + ".weight"][:, :inner]
                    if name == names[2]
                    else weights[shared + name + ".weight"][:inner])
                        for name in names}
                used = dict(weights, **kept)
            out += mlp(rows, shared, names, used)
        for e in range(experts):
            chosen = shares[:, e].nonzero()[:, 0]
            read = (e + 1) % experts if mutate == "experts_shifted" else e
            out[chosen] += shares[chosen, e, None] * mlp(
                rows[chosen], layer + prefix.format(read), names)
        return out.view_as(h)

    x = weight("model.embed_tokens.weight")[tokens]
    x = x * gemma.embedding_scale(config, mutate)
    windows, experts = layer_windows(config), layer_experts(config)
    turns = layer_turns(config, mutate)
    for i, window in enumerate(windows):
        layer = f"model.layers.{i}."
        before, behind, before_mlp, behind_mlp = (
            name and layer + name for name in gemma.norm_names(config))
        h = norm(x, before)
        if deepseek.is_latent(config):
            out = deepseek.attention(
                config, h, layer, linear, latent_norm,
                lambda y: apply_rope(y, inv, magnitude, mutate), rnd,
                attention_mask(length, window, mutate), weights, mutate)
            x = x + linear(out, layer + "self_attn.o_proj")
            h = norm(x, before_mlp)
            if experts[i]:
                x = x + mixture(h, layer, experts[i])
            else:
                prefix, names, _ = mlp_names(config, 0)
                x = x + mlp(h, layer + prefix, names)
            continue
        q = split(linear(h, layer + "self_attn.q_proj"), heads)
        k = split(linear(h, layer + "self_attn.k_proj"), kv_heads)
        v = split(linear(h, layer + "self_attn.v_proj"), kv_heads)
        if has_qk_norm(config) and mutate != "qk_norm_off":
            q = norm(q, layer + "self_attn.q_norm")
            k = norm(k, layer + "self_attn.k_norm")
        if turns[i]:
            by = inv if window is None else sliding_inv
            q = apply_rope(q, by, magnitude, mutate)
            k = apply_rope(k, by, magnitude, mutate)
        q, k = rnd(q), rnd(k)
        v = rnd(v)
        # Query head j reads KV head j // group.
        group = heads // kv_heads
        if mutate == "kv_heads_interleaved":
            k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
        else:
            k = k.repeat_interleave(group, dim=1)
            v = v.repeat_interleave(group, dim=1)
        scores = q @ k.transpose(-1, -2) * gemma.score_scale(config, mutate)
        scores = scores.masked_fill(
            ~attention_mask(length, window, mutate), float("-inf"))
        sinks = weights.get(layer + "self_attn.sinks")
        if sinks is None:
            shares = torch.softmax(scores, dim=-1)
        else:
            shares = gpt_oss.softmax(scores, sinks, mutate)
        out = rnd(shares) @ v
        out = out.transpose(1, 2).reshape(batch, length, heads * dim)
        x = gemma.add_branch(config, x,
                             linear(out, layer + "self_attn.o_proj"), norm,
                             behind, mutate)
        h = norm(x, before_mlp)
        if experts[i]:
            x = x + mixture(h, layer, experts[i])
        else:
            prefix, names, _ = mlp_names(config, 0)
            x = gemma.add_branch(config, x, mlp(h, layer + prefix, names),
                                 norm, behind_mlp, mutate)
    x = norm(x, "model.norm")
    head = ("model.embed_tokens" if config["tie_word_embeddings"]
            else "lm_head")
    return rnd(x) @ weight(head + ".weight").T
