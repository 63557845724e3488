"""What GGUF files of gpt-oss have that others have not: for export_gguf.py.

Experts in MXFP4 stay so: their numbers and exponents are written as they are, in
GGUF's order. Files say neither the limit of SwiGLU (7), nor which layers slide
(the first and every other one), nor that YaRN's pairs are not truncated.
"""

import sys

import numpy as np

ARCHITECTURE = "gpt-oss"


def metadata(config):
    layers = config["num_hidden_layers"]
    turns = [("sliding_attention", "full_attention")[i % 2]
             for i in range(layers)]
    if (config.get("swiglu_limit", 7.0) != 7.0
            or config.get("layer_types", turns) != turns):
        sys.exit("config.json: another swiglu_limit than 7, or other "
                 "layer_types than in turns, cannot be written")
    return {
        f"{ARCHITECTURE}.expert_feed_forward_length":
            config["intermediate_size"],
        f"{ARCHITECTURE}.attention.sliding_window": config["sliding_window"],
    }


def blocks(numbers, exponents):
    """[..., groups, 16] and [..., groups]: the exponent first, then bytes of the
    numbers i and i + 16, of which safetensors have 2 i and 2 i + 1."""
    codes = np.stack([numbers & 15, numbers >> 4], axis=-1)
    codes = codes.reshape(*numbers.shape[:-1], 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate([exponents[..., None], packed], axis=-1)


def expert_tensors(files, config, file_type, float_reader):
    """Yields (name, shape, type, function to bytes) of routers, experts and
    sinks. `float_reader(function to raw elements, name, type)`."""

    def whole(name):
        return lambda: files.raw(name)

    def floats(gguf, name, raw, shape, kind="f32"):
        return gguf, shape, kind, float_reader(raw, name, kind)

    for layer in range(config["num_hidden_layers"]):
        hf, gguf = f"model.layers.{layer}.", f"blk.{layer}."
        for name, of in (("attn_sinks.weight", "self_attn.sinks"),
                         ("ffn_gate_inp.weight", "mlp.router.weight"),
                         ("ffn_gate_inp.bias", "mlp.router.bias")):
            yield floats(gguf + name, hf + of, whole(hf + of),
                         files.shape(hf + of))
        experts = hf + "mlp.experts."
        # Outputs of gate and up lie in turns.
        for name, of, rows in (
                ("ffn_gate_exps", "gate_up_proj", slice(0, None, 2)),
                ("ffn_up_exps", "gate_up_proj", slice(1, None, 2)),
                ("ffn_down_exps", "down_proj", slice(None))):
            bias = f"{experts}{of}_bias"
            count, outputs = files.shape(bias)
            outputs = len(range(outputs)[rows])
            yield floats(f"{gguf}{name}.bias", bias,
                         lambda bias=bias, rows=rows: files.raw(bias)[:, rows],
                         [count, outputs])
            matrix = experts + of
            if f"{matrix}_blocks" in files.tensors:
                inputs = files.shape(f"{matrix}_blocks")[2] * 32

                def read(matrix=matrix, rows=rows):
                    return blocks(files.raw(f"{matrix}_blocks")[:, rows],
                                  files.raw(f"{matrix}_scales")[:, rows]
                                  ).tobytes()

                yield (f"{gguf}{name}.weight", [count, outputs, inputs],
                       "mxfp4", read)
                continue
            # Inputs before outputs.
            inputs = files.shape(matrix)[1]
            yield floats(
                f"{gguf}{name}.weight", matrix,
                lambda matrix=matrix, rows=rows:
                    files.raw(matrix).swapaxes(1, 2)[:, rows],
                [count, outputs, inputs], file_type)
