#!/usr/bin/env python3
"""Writes a Llama model N times as wide that says, but for rounding, the same.

What is added is zero: a step of it reads as much as one of a large model does,
and its texts are those of the small one. So what depends on both, such as
guesses at next tokens, can be measured where no large model is at hand:

    tests/bench/widen_model.py models/stories /tmp/wide --factor 16

N is a power of four, so that norms, over N times as many elements, stay exact.
Reads config.json and model.safetensors (BF16), copies the other files. Needs
numpy.
"""

import argparse
import json
import pathlib
import shutil
import struct
import sys

import numpy as np


def read_tensors(path):
    """Name -> (shape, bits as uint16)."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            sys.exit(f"{path}: {name} is {entry['dtype']}, not BF16")
        begin, end = (8 + size + at for at in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], np.uint16).reshape(
            entry["shape"]
        )
    return tensors


def widen(name, bits, factor, vocab):
    if bits.ndim == 1:  # a norm
        floats = (bits.astype(np.uint32) << 16).view(np.float32)
        floats = (floats / np.float32(factor**0.5)).astype(np.float32)
        bits = (floats.view(np.uint32) >> 16).astype(np.uint16)
        return np.pad(bits, (0, bits.shape[0] * (factor - 1)))
    rows, columns = bits.shape
    more = 0 if rows == vocab else rows * (factor - 1)
    return np.pad(bits, ((0, more), (0, columns * (factor - 1))))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--factor", type=int, default=16, help="4, 16 or 64")
    args = parser.parse_args()
    if args.factor not in (4, 16, 64):
        sys.exit(f"--factor: 4, 16 or 64, not {args.factor}")
    config = json.loads((args.model / "config.json").read_text())
    if config["architectures"] != ["LlamaForCausalLM"]:
        sys.exit(f"{args.model}/config.json: no LlamaForCausalLM")
    tensors = read_tensors(args.model / "model.safetensors")
    vocab = config["vocab_size"]
    for field in (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
    ):
        config[field] *= args.factor
    config["rms_norm_eps"] /= args.factor
    args.out.mkdir(parents=True)
    (args.out / "config.json").write_text(json.dumps(config, indent=1))
    for path in args.model.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, args.out)
    wide = {
        name: widen(name, bits, args.factor, vocab)
        for name, bits in tensors.items()
    }
    header = {}
    at = 0
    for name, bits in wide.items():
        header[name] = {
            "dtype": "BF16",
            "shape": list(bits.shape),
            "data_offsets": [at, at + bits.nbytes],
        }
        at += bits.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(args.out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for bits in wide.values():
            file.write(np.ascontiguousarray(bits).tobytes())


if __name__ == "__main__":
    main()
