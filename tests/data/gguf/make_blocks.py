#!/usr/bin/env python3
"""Writes blocks.json: blocks of each format, and the weights they stand for.

    python3 tests/data/gguf/make_blocks.py a-Q4_0.gguf a-Q4_K.gguf ...

The files are those that `llama-quantize --pure` makes of a model of random
weights that tests/bench/export_gguf.py wrote. Of the first tensor of each
format, 256 weights are kept. The weights are computed here from the formats'
definitions, independently of the engine, in exact arithmetic rounded to
float32 at the same places.
"""

import json
import pathlib
import struct
import sys

import numpy as np

F32 = np.float32
NAMES = {2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 12: "Q4_K",
         13: "Q5_K", 14: "Q6_K"}


def half(data):
    return F32(np.frombuffer(data, "<f2")[0])


def q4_0(block):
    low = [b & 15 for b in block[2:]]
    high = [b >> 4 for b in block[2:]]
    return [F32(q - 8) * half(block[:2]) for q in low + high]


def q4_1(block):
    low = [b & 15 for b in block[4:]]
    high = [b >> 4 for b in block[4:]]
    return [F32(q) * half(block[:2]) + half(block[2:4]) for q in low + high]


def fifth_bits(four):
    (word,) = struct.unpack("<I", four)
    return [16 * (word >> i & 1) for i in range(32)]


def q5_0(block):
    quants = [b & 15 for b in block[6:]] + [b >> 4 for b in block[6:]]
    return [F32(q + top - 16) * half(block[:2])
            for q, top in zip(quants, fifth_bits(block[2:6]))]


def q5_1(block):
    quants = [b & 15 for b in block[8:]] + [b >> 4 for b in block[8:]]
    return [F32(q + top) * half(block[:2]) + half(block[2:4])
            for q, top in zip(quants, fifth_bits(block[4:8]))]


def q8_0(block):
    return [F32(q) * half(block[:2]) for q in struct.unpack("32b", block[2:])]


def k_groups(block, quants, tops):
    d, dmin = half(block[0:2]), half(block[2:4])
    # Twelve bytes: 6-bit scales of groups 0-3, minima 0-3, then the low halves
    # of scales (low) and minima (high) 4-7, whose top bits are those of the
    # first eight bytes.
    s = block[4:16]
    scales = [s[i] % 64 for i in range(4)]
    scales += [s[8 + i] % 16 + s[i] // 64 * 16 for i in range(4)]
    minima = [s[4 + i] % 64 for i in range(4)]
    minima += [s[8 + i] // 16 + s[4 + i] // 64 * 16 for i in range(4)]
    out = []
    for group in range(8):
        pair = quants[32 * (group // 2) : 32 * (group // 2) + 32]
        values = [q % 16 if group % 2 == 0 else q // 16 for q in pair]
        factor, low = d * F32(scales[group]), dmin * F32(minima[group])
        out += [factor * F32(q + 16 * (top >> group & 1)) - low
                for q, top in zip(values, tops)]
    return out


def q4_k(block):
    return k_groups(block, block[16:], [0] * 32)


def q5_k(block):
    return k_groups(block, block[48:], block[16:48])


def q6_k(block):
    low, high = block[:128], block[128:192]
    scales = struct.unpack("16b", block[192:208])
    d = half(block[208:])
    quants = []
    for h in range(2):
        for quarter in range(4):
            for i in range(32):
                byte = low[64 * h + 32 * (quarter % 2) + i]
                nibble = byte % 16 if quarter < 2 else byte // 16
                top = high[32 * h + i] // 4**quarter % 4
                quants.append(nibble + 16 * top - 32)
    return [d * F32(scales[i // 16]) * F32(q) for i, q in enumerate(quants)]


# The function and the bytes of a block.
READERS = {"Q4_0": (q4_0, 18), "Q4_1": (q4_1, 20), "Q5_0": (q5_0, 22),
           "Q5_1": (q5_1, 24), "Q8_0": (q8_0, 34), "Q4_K": (q4_k, 144),
           "Q5_K": (q5_k, 176), "Q6_K": (q6_k, 210)}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0]

    def string(self):
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def skip(self, kind):
        if kind == 8:
            self.string()
        elif kind == 9:
            element, count = self.take("I"), self.take("Q")
            for _ in range(count):
                self.skip(element)
        else:
            self.at += (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)[kind]


def first_block_tensor(path):
    """(format, its first bytes) of the first tensor of a known format."""
    r = Reader(path.read_bytes())
    r.at = 8
    tensors, values = r.take("Q"), r.take("Q")
    for _ in range(values):
        r.string()
        r.skip(r.take("I"))
    found = None
    for _ in range(tensors):
        r.string()
        for _ in range(r.take("I")):
            r.take("Q")
        kind, offset = r.take("I"), r.take("Q")
        if found is None and kind in NAMES:
            found = NAMES[kind], offset
    start = -(-r.at // 32) * 32 + found[1]
    name = found[0]
    size = READERS[name][1] * (1 if name.endswith("K") else 8)
    return name, r.data[start : start + size]


def main():
    result = {}
    for path in sys.argv[1:]:
        name, blocks = first_block_tensor(pathlib.Path(path))
        read, size = READERS[name]
        weights = []
        for at in range(0, len(blocks), size):
            weights += read(blocks[at : at + size])
        result[name] = {
            "blocks": blocks.hex(),
            "weights": np.array(weights, "<f4").tobytes().hex(),
        }
    out = pathlib.Path(__file__).parent / "blocks.json"
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
