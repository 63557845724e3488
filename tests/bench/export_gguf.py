#!/usr/bin/env python3
"""Writes a Hugging Face model directory as one GGUF file.

For comparing Baton with programs that read only GGUF, and for making test data:

    python3 tests/bench/export_gguf.py models/stories /tmp/stories.gguf \\
        --type f16

Reads config.json, *.safetensors (F32, F16, BF16, MXFP4 of gpt-oss) and
tokenizer.json of Llama, Mistral, Qwen2, Qwen3, Phi-3, SmolLM3, Mixtral, GLM-4.5
and gpt-oss models. Without a tokenizer.json it writes a byte-level
tokenizer padded with made-up tokens, so that a model of random weights can be
measured too. Needs numpy.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import argparse
import json
import math
import mmap
import pathlib
import struct
import sys

import numpy as np

import gguf_deepseek
import gguf_gemma
import gguf_gpt_oss
import gguf_phi3
from gguf_tokenizer import tokenizer_metadata

ALIGNMENT = 32
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Phi3ForCausalLM": gguf_phi3.ARCHITECTURE,
    "SmolLM3ForCausalLM": gguf_phi3.SMOLLM3,
    "Gemma3ForCausalLM": gguf_gemma.ARCHITECTURE,
    "MixtralForCausalLM": "llama",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Glm4MoeForCausalLM": "glm4moe",
    "GptOssForCausalLM": gguf_gpt_oss.ARCHITECTURE,
    "DeepseekV2ForCausalLM": gguf_deepseek.ARCHITECTURE,
    "DeepseekV3ForCausalLM": gguf_deepseek.ARCHITECTURE,
    "Glm4MoeLiteForCausalLM": gguf_deepseek.ARCHITECTURE,
}
# GGUF's numbers of tensor types, and of whole files (general.file_type).
TENSOR_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "mxfp4": 39}
FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32}
# Numbers of metadata value types.
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


class Safetensors:
    """The tensors of a model directory."""

    def __init__(self, directory):
        self.tensors = {}
        for path in sorted(directory.glob("*.safetensors")):
            with open(path, "rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            (length,) = struct.unpack_from("<Q", data)
            header = json.loads(data[8 : 8 + length])
            for name, entry in header.items():
                if name != "__metadata__":
                    self.tensors[name] = (data, 8 + length, entry)
        if not self.tensors:
            sys.exit(f"{directory}: has no *.safetensors")

    def shape(self, name):
        return self.tensors[name][2]["shape"]

    def dtype(self, name):
        return self.tensors[name][2]["dtype"]

    def raw(self, name):
        """The stored elements; bfloat16 as the uint16 of its bits."""
        data, base, entry = self.tensors[name]
        types = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16,
                 "U8": np.uint8}
        if entry["dtype"] not in types:
            sys.exit(f"tensor {name}: cannot read {entry['dtype']}")
        begin, end = entry["data_offsets"]
        view = np.frombuffer(
            data, types[entry["dtype"]],
            (end - begin) // np.dtype(types[entry["dtype"]]).itemsize,
            base + begin)
        return view.reshape(entry["shape"])


def to_float32(raw, dtype):
    if dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)


def to_bf16(values):
    """Rounds to nearest even; returns the bits."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def convert(raw, dtype, target):
    """Elements of safetensors type `dtype` as GGUF type `target`."""
    if dtype.lower() == target:
        return raw
    values = to_float32(raw, dtype)
    if target == "f16":
        return values.astype(np.float16)
    return to_bf16(values) if target == "bf16" else values


def interleave_heads(matrix, heads):
    """The order that files of Llama's keep the rows of q and k in: RoPE there
    turns neighbouring elements, in Hugging Face's files those half a head
    apart."""
    rows = matrix.shape[0]
    halves = matrix.reshape(heads, 2, rows // heads // 2, *matrix.shape[1:])
    return halves.swapaxes(1, 2).reshape(matrix.shape)


def rope_scaling_of(config):
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return scaling.get("rope_type", scaling.get("type", "default")), scaling


def llama3_rope_factors(config, scaling, head_dim):
    """Divisors of the frequencies, as transformers' "llama3" computes them."""
    theta = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    old = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = []
    for frequency in theta**-exponents:
        wavelength = 2 * math.pi / frequency
        if wavelength < old / high:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(scaling["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def model_metadata(config, name, arch, file_type):
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    kind, scaling = rope_scaling_of(config)
    metadata = {
        "general.architecture": arch,
        "general.name": name,
        "general.file_type": FILE_TYPES[file_type],
        f"{arch}.vocab_size": config["vocab_size"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": hidden,
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.feed_forward_length": config.get(
            "intermediate_size", config.get("moe_intermediate_size")),
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": config.get(
            "num_key_value_heads", heads),
        f"{arch}.attention.key_length": head_dim,
        f"{arch}.attention.value_length": head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": float(
            config.get("rms_norm_eps", 1e-6)),
        f"{arch}.rope.dimension_count": int(
            head_dim * config.get("partial_rotary_factor",
                                  0.5 if arch == "glm4moe" else 1)),
        f"{arch}.rope.freq_base": float(
            scaling.get("rope_theta", config.get("rope_theta", 10000.0))),
    }
    experts = count_experts(config)
    if experts:
        metadata[f"{arch}.expert_count"] = experts
        metadata[f"{arch}.expert_used_count"] = config["num_experts_per_tok"]
        if arch == "qwen3moe":
            metadata[f"{arch}.expert_feed_forward_length"] = config[
                "moe_intermediate_size"]
            # Files of this architecture say neither.
            if config.get("mlp_only_layers") or not config["norm_topk_prob"]:
                sys.exit("config.json: layers without experts, or shares that "
                         "are not normalized, cannot be written")
    if arch == gguf_gpt_oss.ARCHITECTURE:
        metadata |= gguf_gpt_oss.metadata(config)
    if arch == gguf_deepseek.ARCHITECTURE:
        metadata |= gguf_deepseek.metadata(config, scaling)
    if arch == gguf_gemma.ARCHITECTURE:
        metadata |= gguf_gemma.metadata(config)
    if arch == gguf_phi3.SMOLLM3:
        gguf_phi3.check_smollm3(config)
    if arch == gguf_phi3.ARCHITECTURE:
        metadata |= gguf_phi3.metadata(config, scaling)
        if gguf_phi3.is_long(scaling):
            kind = "default"
    if arch == "glm4moe":
        metadata |= {
            f"{arch}.expert_feed_forward_length":
                config["moe_intermediate_size"],
            f"{arch}.expert_shared_count": config["n_shared_experts"],
            f"{arch}.expert_gating_func": 2,  # sigmoid
            f"{arch}.expert_weights_scale": float(
                config["routed_scaling_factor"]),
            f"{arch}.expert_weights_norm": config["norm_topk_prob"],
            f"{arch}.leading_dense_block_count":
                config["first_k_dense_replace"],
        }
    if kind == "linear":
        metadata[f"{arch}.rope.scaling.type"] = "linear"
        metadata[f"{arch}.rope.scaling.factor"] = float(scaling["factor"])
    elif kind == "yarn":
        metadata[f"{arch}.rope.scaling.type"] = "yarn"
        metadata[f"{arch}.rope.scaling.factor"] = float(scaling["factor"])
        metadata[f"{arch}.rope.scaling.original_context_length"] = scaling.get(
            "original_max_position_embeddings",
            config["max_position_embeddings"])
        # Such files say nothing else of it.
        truncated = arch != gguf_gpt_oss.ARCHITECTURE
        if (scaling.get("beta_fast", 32), scaling.get("beta_slow", 1),
                scaling.get("truncate", True)) != (32, 1, truncated):
            sys.exit("config.json: another YaRN than with 32 turns to 1, "
                     f"{'' if truncated else 'not '}truncated, cannot be "
                     "written")
    elif kind not in ("default", "llama3"):
        sys.exit(f"config.json: rope scaling {kind} is unknown here")
    return metadata


def count_experts(config):
    return config.get("num_local_experts", config.get(
        "num_experts", config.get("n_routed_experts", 0)))


def expert_names(config, layer):
    """(GGUF's name, Hugging Face's names of what it holds one after another)
    of a layer's experts; the router first."""
    if "num_local_experts" in config:
        block, parts = "block_sparse_moe", ("w1", "w3", "w2")
    else:
        block, parts = "mlp", ("gate_proj", "up_proj", "down_proj")
    prefix = f"model.layers.{layer}.{block}."
    yield f"blk.{layer}.ffn_gate_inp", [prefix + "gate"]
    for gguf, part in zip(("gate", "up", "down"), parts):
        yield (f"blk.{layer}.ffn_{gguf}_exps",
               [f"{prefix}experts.{e}.{part}"
                for e in range(count_experts(config))])


def norm_name(config):
    """GGUF's name of the norm before the feed-forward network."""
    after = config["architectures"][0] in ("Glm4MoeForCausalLM",
                                           "GptOssForCausalLM")
    return "post_attention_norm" if after else "ffn_norm"


def tensor_names(config):
    """(GGUF's name, Hugging Face's name, heads of q and k or 0)."""
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    yield "token_embd", "model.embed_tokens", 0
    yield "output_norm", "model.norm", 0
    if not config.get("tie_word_embeddings", False):
        yield "output", "lm_head", 0
    gemma = config["architectures"][0] == "Gemma3ForCausalLM"
    norms = (gguf_gemma.NORMS if gemma
             else ((norm_name(config), "post_attention_layernorm"),))
    for i in range(config["num_hidden_layers"]):
        for gguf, hf in norms:
            yield f"blk.{i}.{gguf}", f"model.layers.{i}.{hf}", 0
        for gguf, hf, rows in [
            ("attn_norm", "input_layernorm", 0),
            ("attn_qkv", "self_attn.qkv_proj", 0),
            ("attn_q", "self_attn.q_proj", heads),
            ("attn_k", "self_attn.k_proj", kv_heads),
            ("attn_v", "self_attn.v_proj", 0),
            ("attn_output", "self_attn.o_proj", 0),
            *((gguf, hf, 0) for gguf, hf in gguf_deepseek.TENSORS),
            ("attn_q_norm", "self_attn.q_norm", 0),
            ("attn_k_norm", "self_attn.k_norm", 0),
            ("ffn_gate", "mlp.gate_proj", 0),
            ("ffn_up", "mlp.up_proj", 0),
            ("ffn_up", "mlp.gate_up_proj", 0),
            ("ffn_down", "mlp.down_proj", 0),
            ("ffn_gate_shexp", "mlp.shared_experts.gate_proj", 0),
            ("ffn_up_shexp", "mlp.shared_experts.up_proj", 0),
            ("ffn_down_shexp", "mlp.shared_experts.down_proj", 0),
        ]:
            yield f"blk.{i}.{gguf}", f"model.layers.{i}.{hf}", rows


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(v):
    """A metadata value with its type before it."""
    if isinstance(v, bool):
        return struct.pack("<IB", BOOL, v)
    if isinstance(v, int):
        return struct.pack("<II", UINT32, v)
    if isinstance(v, float):
        return struct.pack("<If", FLOAT32, v)
    if isinstance(v, str):
        return struct.pack("<I", STRING) + string(v)
    if isinstance(v, list):
        head = struct.pack("<IIQ", ARRAY, STRING, len(v))
        return head + b"".join(map(string, v))
    kind = FLOAT32 if v.dtype.kind == "f" else INT32
    head = struct.pack("<IIQ", ARRAY, kind, len(v))
    return head + v.astype("<f4" if kind == FLOAT32 else "<i4").tobytes()


def write_gguf(path, metadata, tensors):
    """`tensors`: (name, shape outermost first, type, function to bytes)."""
    sizes = {"f32": 4, "f16": 2, "bf16": 2, "mxfp4": 17 / 32}
    with open(path, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
        for key, v in metadata.items():
            out.write(string(key) + value(v))
        offset = 0
        for name, shape, kind, _ in tensors:
            out.write(string(name) + struct.pack("<I", len(shape)))
            out.write(struct.pack(f"<{len(shape)}Q", *reversed(shape)))
            out.write(struct.pack("<IQ", TENSOR_TYPES[kind], offset))
            size = int(math.prod(shape) * sizes[kind])
            offset += -(-size // ALIGNMENT) * ALIGNMENT
        for _, _, _, read in tensors:
            out.write(bytes(-out.tell() % ALIGNMENT))
            out.write(read())
        out.write(bytes(-out.tell() % ALIGNMENT))


def plan_tensors(directory, config, arch, file_type):
    files = Safetensors(directory)

    def reader(name, heads, target):
        def read():
            raw = files.raw(name)
            if heads and arch in ("llama", gguf_phi3.SMOLLM3):
                raw = interleave_heads(raw, heads)
            data = convert(np.ascontiguousarray(raw), files.dtype(name),
                           target).tobytes()
            if arch == gguf_gemma.ARCHITECTURE and gguf_gemma.is_norm(name):
                return gguf_gemma.norm_bytes(data)
            return data

        return read

    tensors = []
    kind, scaling = rope_scaling_of(config)
    if kind == "llama3":
        head_dim = (config.get("head_dim")
                    or config["hidden_size"] // config["num_attention_heads"])
        factors = llama3_rope_factors(config, scaling, head_dim)
        tensors.append(
            ("rope_freqs.weight", [len(factors)], "f32", factors.tobytes))
    if arch == gguf_phi3.ARCHITECTURE:
        tensors.extend(gguf_phi3.rope_tensors(scaling))
    for gguf, hf, heads in tensor_names(config):
        for part in ("weight", "bias"):
            name = f"{hf}.{part}"
            if name not in files.tensors:
                continue
            shape = files.shape(name)
            target = file_type if len(shape) == 2 else "f32"
            tensors.append((f"{gguf}.{part}", shape, target,
                            reader(name, heads, target)))

    if arch == gguf_gpt_oss.ARCHITECTURE:
        def float_reader(raw, name, target):
            def read():
                return convert(np.ascontiguousarray(raw()), files.dtype(name),
                               target).tobytes()

            return read

        return tensors + list(gguf_gpt_oss.expert_tensors(
            files, config, file_type, float_reader))

    def many_reader(names, target):
        def read():
            return b"".join(reader(name, 0, target)() for name in names)

        return read

    layers = config["num_hidden_layers"] if count_experts(config) else 0
    for layer in range(config.get("first_k_dense_replace", 0), layers):
        bias = f"model.layers.{layer}.mlp.gate.e_score_correction_bias"
        if bias in files.tensors:
            tensors.append((f"blk.{layer}.exp_probs_b.bias", files.shape(bias),
                            "f32", reader(bias, 0, "f32")))
        for gguf, modules in expert_names(config, layer):
            names = [f"{module}.weight" for module in modules]
            router = len(names) == 1 and gguf.endswith("_inp")
            shape = ([] if router else [len(names)]) + list(
                files.shape(names[0]))
            target = "f32" if router else file_type
            tensors.append((f"{gguf}.weight", shape, target,
                            many_reader(names, target)))
    return tensors


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--type", choices=FILE_TYPES, default="f16",
                        help="of the matrices; vectors are always f32")
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    arch = ARCHITECTURES.get(config["architectures"][0])
    if arch is None:
        sys.exit(f"config.json: architecture {config['architectures'][0]} "
                 "is unknown here")
    metadata = model_metadata(
        config, args.model.resolve().name, arch, args.type)
    metadata |= tokenizer_metadata(args.model, config["vocab_size"])
    write_gguf(args.output, metadata,
               plan_tensors(args.model, config, arch, args.type))


if __name__ == "__main__":
    main()
