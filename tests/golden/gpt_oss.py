"""gpt-oss's experts as its checkpoints have them: those of a layer in one
tensor, the outputs of gate and up in turns, in MXFP4 (Open Compute Project 2023,
"OCP Microscaling formats (MX)": 32 e2m1 numbers times a power of two).

From and to the names that reference.py uses for all families.
"""

import torch

NAME = "GptOssForCausalLM"
MUTANTS = ("mxfp4_halves_swapped", "gate_up_not_in_turns", "sinks_off",
           "swiglu_unlimited", "swiglu_as_others")
GROUP = 32
# e2m1 by its lower three bits; the fourth is the sign.
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
EXPERTS = "mlp.experts."


def quantize(matrix):
    """[outputs, inputs] -> blocks [outputs, groups, 16] and scales [outputs,
    groups], both uint8."""
    groups = matrix.float().view(matrix.shape[0], -1, GROUP)
    # The largest of a group becomes 4 to 8, of which 6 is as near as it gets.
    exponent = torch.floor(torch.log2(groups.abs().amax(-1))) - 2
    scaled = groups / torch.exp2(exponent)[..., None]
    distance = (scaled.abs()[..., None] - MAGNITUDES).abs()
    codes = distance.argmin(-1) + 8 * (scaled < 0)
    blocks = codes[..., 0::2] + 16 * codes[..., 1::2]
    return blocks.to(torch.uint8), (exponent + 127).to(torch.uint8)


def dequantize(blocks, scales, mutate=None):
    blocks = blocks.long()
    low, high = blocks & 15, blocks >> 4
    if mutate == "mxfp4_halves_swapped":
        low, high = high, low
    codes = torch.stack((low, high), dim=-1).flatten(-2)
    values = MAGNITUDES[codes & 7] * (1 - 2 * (codes >> 3).float())
    return (values * torch.exp2(scales.float() - 127)[..., None]).flatten(-2)


def stacked(config, weights):
    """The file's tensors, of weights with a matrix for each expert."""
    out = {name: value for name, value in weights.items()
           if EXPERTS not in name}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}." + EXPERTS

        def of_all(part, layer=layer):
            return torch.stack([weights[f"{layer}{e}.{part}"]
                                for e in range(config["num_local_experts"])])

        def in_turns(kind):
            pair = (of_all("gate_proj." + kind), of_all("up_proj." + kind))
            return torch.stack(pair, dim=2).flatten(1, 2)

        for name, matrices, bias in (
                ("gate_up_proj", in_turns("weight"), in_turns("bias")),
                ("down_proj", of_all("down_proj.weight"),
                 of_all("down_proj.bias"))):
            parts = [quantize(matrix) for matrix in matrices]
            out[f"{layer}{name}_blocks"] = torch.stack([p[0] for p in parts])
            out[f"{layer}{name}_scales"] = torch.stack([p[1] for p in parts])
            out[f"{layer}{name}_bias"] = bias
    return out


def unstacked(config, weights, mutate=None):
    """The other way; matrices in float32."""
    out = {name: value for name, value in weights.items()
           if EXPERTS not in name}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}." + EXPERTS
        for name in ("gate_up_proj", "down_proj"):
            matrix = dequantize(weights[f"{layer}{name}_blocks"],
                                weights[f"{layer}{name}_scales"], mutate)
            for kind, value in (("weight", matrix),
                                ("bias", weights[f"{layer}{name}_bias"])):
                if name == "down_proj":
                    parts = {"down_proj": value}
                elif mutate == "gate_up_not_in_turns":
                    half = value.shape[1] // 2
                    parts = {"gate_proj": value[:, :half],
                             "up_proj": value[:, half:]}
                else:
                    parts = {"gate_proj": value[:, 0::2],
                             "up_proj": value[:, 1::2]}
                for part, of_all in parts.items():
                    for e, of_one in enumerate(of_all):
                        out[f"{layer}{e}.{part}.{kind}"] = of_one
    return out


def swiglu(gate, up, limit, mutate=None):
    """As the model card of OpenAI (2025) has it."""
    if mutate == "swiglu_as_others":
        return torch.nn.functional.silu(gate) * up
    if mutate != "swiglu_unlimited":
        gate = gate.clamp(max=limit)
        up = up.clamp(min=-limit, max=limit)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def softmax(scores, sinks, mutate=None):
    """Over the keys and a sink of each head ([heads]), which gives nothing:
    scores [batch, heads, queries, keys]."""
    if mutate == "sinks_off":
        return torch.softmax(scores, dim=-1)
    sink = sinks.float()[None, :, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1]
