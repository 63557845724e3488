#!/usr/bin/env python3
"""Whether Hugging Face Transformers answers as the golden models say.

    tests/golden/check_transformers.py [--device cuda]

The goldens are of this folder's own reference (reference.py). Where Transformers
is installed (5.0 or later: before, it reads no rope_parameters), this asks it,
in float32, for the same: the logits of every position of every prompt, and each
greedy continuation. Engines whose golden tests pass there then answer as
Transformers does. Closes with one line 'N passed, N failed' over the models;
exit code 0 when nothing failed.
"""

import argparse
import json
import pathlib
import sys

import torch
import transformers

MODELS = pathlib.Path(__file__).resolve().parent / "models"
# expected.json has six digits, both sides add up float32 in an order of their
# own, and Transformers' angles are float32, too. A hundredth of what bfloat16
# engines are allowed, or less.
TOLERANCE = 1e-3


def logits_of(model, tokens):
    """[positions, vocabulary], without a cache: that of each prefix alike."""
    ids = torch.tensor([tokens], device=model.device)
    return model(input_ids=ids, use_cache=False).logits[0].float().cpu()


def difference(logits, expected):
    # Also what is not a number.
    worst = (logits - torch.tensor(expected)).abs().max().item()
    return worst if worst >= 0 else float("inf")


def check(path, device):
    """The largest difference of a logit, and how many continuations differ."""
    config = json.loads((path / "config.json").read_text())
    # Else products of many experts at a time, in whatever precision.
    plain = ({"experts_implementation": "eager"}
             if "num_experts_per_tok" in config else {})
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager",
        local_files_only=True, **plain).to(device).eval()
    expected = json.loads((path / "expected.json").read_text())
    worst, differ = 0.0, 0
    for prompt in expected["prompts"]:
        worst = max(worst, difference(logits_of(model, prompt["tokens"]),
                                      prompt["logits"]))
        tokens = list(prompt["tokens"])
        for _ in prompt["greedy"]:
            last = logits_of(model, tokens)[-1]
            tokens.append(int(last.argmax()))
        worst = max(worst, difference(last, prompt["last_greedy_logits"]))
        differ += tokens[len(prompt["tokens"]):] != prompt["greedy"]
    return worst, differ, len(expected["prompts"])


def main():
    if int(transformers.__version__.split(".")[0]) < 5:
        sys.exit(f"Transformers {transformers.__version__}: 5.0 or later is "
                 "needed")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    # Float32 that is none would hide behind no tolerance.
    torch.set_float32_matmul_precision("highest")
    print(f"Transformers {transformers.__version__}, PyTorch "
          f"{torch.__version__}, {device}, float32")
    failed = 0
    paths = sorted(path.parent for path in MODELS.glob("*/expected.json"))
    with torch.no_grad():
        for path in paths:
            worst, differ, prompts = check(path, device)
            passed = worst <= TOLERANCE and differ == 0
            failed += not passed
            print(f"{path.name:13} logits differ by up to {worst:.1e} "
                  f"(allowed {TOLERANCE:.0e}), {prompts - differ} of {prompts} "
                  f"continuations are the same{'' if passed else ': FAILED'}")
    print(f"{len(paths) - failed} passed, {failed} failed")
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
