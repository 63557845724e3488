#!/usr/bin/env python3
"""Writes a Hugging Face model directory with its layers' matrices in 4 bits.

As a GPTQ checkpoint has them, but for how they were rounded: to the nearest of
16 values between a group's least and greatest weight. For comparing what
becomes of such a checkpoint's weights:

    tests/bench/export_gptq.py models/stories /tmp/gptq
    baton perplexity /tmp/gptq tests/data/stories.txt --compare bf16,int4

Reads config.json and *.safetensors (F32, F16, BF16), copies the other files.
Needs numpy.
"""

import argparse
import json
import pathlib
import shutil
import struct
import sys

import numpy as np

from export_gguf import Safetensors, to_float32

DTYPES = {np.dtype(np.int32): "I32", np.dtype(np.float16): "F16"}


def quantize(weights, group_size, symmetric):
    """The tensors of one matrix [outputs, inputs]: q, zeros, scales."""
    outputs, inputs = weights.shape
    groups = -(-inputs // group_size)
    padded = np.zeros((outputs, groups * group_size), np.float32)
    padded[:, :inputs] = weights
    grouped = padded.reshape(outputs, groups, group_size)
    least = np.minimum(grouped.min(axis=2), 0)
    greatest = np.maximum(grouped.max(axis=2), 0)
    if symmetric:
        greatest = np.maximum(greatest, -least)
        least = -greatest
    scales = np.maximum((greatest - least) / 15, 1e-6).astype(np.float16)
    steps = scales.astype(np.float32)
    if symmetric:
        zeros = np.full(scales.shape, 8, np.int64)
    else:
        zeros = np.clip(np.rint(-least / steps), 0, 15).astype(np.int64)
    q = np.rint(grouped / steps[:, :, None]) + zeros[:, :, None]
    q = np.clip(q, 0, 15).astype(np.uint32).reshape(outputs, -1)[:, :inputs]
    return q, zeros, scales


def pack(numbers):
    """[rows, 8 * words] of 4 bits to int32 [rows, words], lowest first."""
    of_word = numbers.astype(np.uint32).reshape(numbers.shape[0], -1, 8)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    return np.bitwise_or.reduce(of_word << shifts, axis=2).view(np.int32)


def gptq_tensors(module, weights, group_size, symmetric):
    outputs, inputs = weights.shape
    if inputs % 8 or outputs % 8:
        sys.exit(f"{module}: {outputs} x {inputs} are no multiples of 8")
    q, zeros, scales = quantize(weights, group_size, symmetric)
    index = np.arange(inputs, dtype=np.int32) // group_size
    return {
        module + ".qweight": np.ascontiguousarray(pack(q).T),
        module + ".qzeros": pack((zeros.T - 1) % 16),
        module + ".scales": np.ascontiguousarray(scales.T),
        module + ".g_idx": index,
    }


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        end = at + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--symmetric", action="store_true")
    args = parser.parse_args()
    source = Safetensors(args.model)
    args.out.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name in source.tensors:
        raw, dtype = source.raw(name), source.dtype(name)
        if not (name.startswith("model.layers.") and raw.ndim == 2):
            tensors[name] = (dtype, list(raw.shape), raw.tobytes())
            continue
        module = name.removesuffix(".weight")
        made = gptq_tensors(module, to_float32(raw, dtype), args.group_size,
                            args.symmetric)
        for part, data in made.items():
            tensors[part] = (DTYPES[data.dtype], list(data.shape),
                             data.tobytes())
    write_safetensors(args.out / "model.safetensors", tensors)
    for file in args.model.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copy(file, args.out)
    config = json.loads((args.model / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "gptq", "bits": 4, "group_size": args.group_size,
        "sym": args.symmetric, "desc_act": False, "checkpoint_format": "gptq"}
    (args.out / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    main()
