#!/usr/bin/env python3
"""Times the steps of engine_cuda_gpu_benchmark with PyTorch.

    tests/bench/torch_decoder.py [--layers 32] [--beside bench.log] [--quick]

The same shapes (Llama-3-8B, random weights, bfloat16), the same batches and
contexts, on the same GPU: decode steps are one CUDA graph each, attention is
scaled_dot_product_attention, weights of Q, K and V and of gate and up lie
together. Each line has the median of 30 steps, or of 7 prompts, and the host's
waiting for the result, as there. Keys and values of a batch lie in one tensor:
what paging costs is not in these numbers. Prints

    torch  WHAT  BATCH  TOKENS  MS

and with --beside, the output of engine_cuda_gpu_benchmark in the same run, how
many times as long as Baton's each took ("groups" where that is the faster one).

Needs a PyTorch with grouped heads in scaled_dot_product_attention (2.5).
--device cpu, with few layers and --quick, tries the script alone.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 4096, 32, 8, 128
INTERMEDIATE, VOCABULARY, EPSILON, THETA = 14336, 128256, 1e-5, 500000.0


class Decoder:
    """The model, and keys and values of a batch of sequences."""

    def __init__(self, layers, device, scale=1):
        self.hidden = HIDDEN // scale
        self.heads = HEADS // scale
        self.kv_heads = max(1, KV_HEADS // scale)
        self.device = device
        q, kv = self.heads * HEAD_DIM, self.kv_heads * HEAD_DIM
        inner = INTERMEDIATE // scale

        def weights(outputs, inputs):
            return torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16) * 0.02

        self.layers = [{
            "qkv": weights(q + 2 * kv, self.hidden),
            "o": weights(self.hidden, q),
            "gate_up": weights(2 * inner, self.hidden),
            "down": weights(self.hidden, inner),
            "norms": torch.ones(2, self.hidden, device=device, dtype=torch.bfloat16),
        } for _ in range(layers)]
        self.embedding = weights(VOCABULARY // scale, self.hidden)
        self.head = weights(VOCABULARY // scale, self.hidden)
        self.final_norm = torch.ones(self.hidden, device=device, dtype=torch.bfloat16)
        angles = torch.outer(
            torch.arange(16384, dtype=torch.float32),
            THETA ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM))
        self.cosines = angles.cos().to(device)
        self.sines = angles.sin().to(device)

    def norm(self, x, weight):
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
        return (wide * scale).to(x.dtype) * weight

    def rotate(self, x, positions):
        """x: [batch, heads, tokens, head_dim]."""
        a, b = x.float().chunk(2, dim=-1)
        cosines, sines = self.cosines[positions], self.sines[positions]
        return torch.cat((a * cosines - b * sines, b * cosines + a * sines), dim=-1).to(x.dtype)

    def cache(self, batch, tokens):
        shape = (batch, self.kv_heads, tokens, HEAD_DIM)
        return [tuple(torch.zeros(shape, device=self.device, dtype=torch.bfloat16)
                      for _ in range(2)) for _ in self.layers]

    def run(self, tokens, first, cache):
        """Tokens [batch, n], of which the first stands at `first`: the next ones,
        greedily."""
        batch, count = tokens.shape
        positions = torch.arange(first, first + count, device=self.device)
        x = self.embedding[tokens]
        for layer, (keys, values) in zip(self.layers, cache):
            qkv = F.linear(self.norm(x, layer["norms"][0]), layer["qkv"])
            q, k, v = (part.view(batch, count, -1, HEAD_DIM).transpose(1, 2)
                       for part in qkv.split((self.heads * HEAD_DIM, self.kv_heads * HEAD_DIM,
                                              self.kv_heads * HEAD_DIM), dim=-1))
            keys[:, :, first:first + count] = self.rotate(k, positions)
            values[:, :, first:first + count] = v
            attended = F.scaled_dot_product_attention(
                self.rotate(q, positions), keys[:, :, :first + count],
                values[:, :, :first + count], is_causal=count > 1, enable_gqa=True)
            x = x + F.linear(attended.transpose(1, 2).reshape(batch, count, -1), layer["o"])
            gate, up = F.linear(self.norm(x, layer["norms"][1]),
                                layer["gate_up"]).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer["down"])
        last = self.norm(x[:, -1], self.final_norm)
        return F.linear(last, self.head).argmax(dim=-1)


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def median_ms(run, device, warm, runs):
    seconds = []
    for i in range(warm + runs):
        wait(device)
        begin = time.perf_counter()
        run().cpu()
        if i >= warm:
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * 1e3


def decode(model, batch, context):
    cache = model.cache(batch, context)
    tokens = torch.full((batch, 1), 100, device=model.device)

    def step():
        return model.run(tokens, context - 1, cache)

    if model.device != "cuda":
        return median_ms(step, model.device, 1, 3)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # tokens, and the cache
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay():
        graph.replay()
        return result

    return median_ms(replay, model.device, 5, 30)


def prefill(model, length):
    cache = model.cache(1, length)
    vocabulary = model.embedding.shape[0]
    tokens = (torch.arange(length, device=model.device) * 7919 % vocabulary)[None]
    return median_ms(lambda: model.run(tokens, 0, cache), model.device, 2, 7)


def times_beside(path):
    """(what, batch, tokens) -> ms, of the rows in bfloat16."""
    times = {}
    if not os.path.exists(path):
        print(f"{path}: not there; no ratios")
        return times
    with open(path, encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            if len(fields) != 7 or fields[0] != "bf16":
                continue
            what = fields[1].replace("groups", "prefill")
            key = (what, int(fields[2]), int(fields[3]))
            times[key] = min(float(fields[4]), times.get(key, float("inf")))
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--beside", metavar="FILE")
    parser.add_argument("--quick", action="store_true",
                        help="an eighth of each size, and short contexts: does it run?")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_decoder: no GPU that PyTorch can use")
    scale = 8 if options.quick else 1
    contexts = (16, 40) if options.quick else (1024, 8192)
    lengths = (16, 40) if options.quick else (2048, 8192)
    beside = times_beside(options.beside) if options.beside else {}

    def show(what, batch, tokens, measure):
        try:
            ms = measure()
        except torch.cuda.OutOfMemoryError:
            ms = None
        if ms is None:  # when what the error held is gone
            if model.device == "cuda":
                torch.cuda.empty_cache()
            print(f"torch    {what:8} {batch:6} {tokens:8} not enough memory", flush=True)
            return
        ours = beside.get((what, batch, tokens))
        ratio = f" {ms / ours:8.2f} x Baton's" if ours else ""
        print(f"torch    {what:8} {batch:6} {tokens:8} {ms:10.3f}{ratio}", flush=True)

    with torch.inference_mode():
        model = Decoder(options.layers, options.device, scale)
        for context in contexts:
            for batch in (1, 8, 64):
                show("decode", batch, context, lambda: decode(model, batch, context))
        for length in lengths:
            show("prefill", 1, length, lambda: prefill(model, length))


if __name__ == "__main__":
    main()
