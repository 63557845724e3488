"""The tokenizer of a Hugging Face model directory, as GGUF has it: for
export_gguf.py."""

import json
import sys

import numpy as np

# Kinds of tokens.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
# What tokenizer.ggml.pre calls the regular expressions of tokenizer.json.
PRE_TOKENIZERS = {
    CONTRACTIONS
    + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+": "llama-bpe",
    CONTRACTIONS
    + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+": "qwen2",
}


def byte_alphabet():
    """GPT-2's characters for the bytes 0 to 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others))
            for b in range(256)]


def made_up_tokenizer(vocab_size):
    """Bytes, one merge, and names without a meaning."""
    tokens = byte_alphabet() + ["ab"]
    tokens += [f"<token_{i}>" for i in range(vocab_size - len(tokens))]
    tokens = tokens[:vocab_size]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(
            [NORMAL if i < 257 else UNUSED for i in range(len(tokens))]),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.add_bos_token": False,
    }


def pre_tokenizer_name(tokenizer):
    pre = tokenizer.get("pre_tokenizer") or {}
    parts = pre.get("pretokenizers", [pre])
    for part in parts:
        regex = part.get("pattern", {}).get("Regex")
        if regex in PRE_TOKENIZERS:
            return PRE_TOKENIZERS[regex]
    kinds = [part.get("type") for part in parts]
    if kinds == ["Digits", "ByteLevel"]:
        return "smollm"
    if kinds == ["ByteLevel"]:
        return "gpt-2"
    sys.exit("tokenizer.json: a pre_tokenizer that has no name in GGUF")


def scores_of(tokens, merges):
    """Scores that make a SentencePiece merge in the order of `merges`."""
    scores = {}
    for rank, merge in enumerate(merges):
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        scores.setdefault(left + right, -float(rank))
    return np.array([scores.get(t, -1e6) for t in tokens], np.float32)


def added_bos(tokenizer, bos):
    post = tokenizer.get("post_processor") or {}
    for part in [post, *post.get("processors", [])]:
        first = (part.get("single") or [{}])[0].get("SpecialToken", {})
        if first and first.get("id") == bos:
            return True
    return False


def tokenizer_metadata(directory, vocab_size):
    path = directory / "tokenizer.json"
    if not path.exists():
        return made_up_tokenizer(vocab_size)
    tokenizer = json.loads(path.read_text())
    model = tokenizer["model"]
    byte_fallback = model.get("byte_fallback", False)
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    kinds = np.full(vocab_size, UNUSED)
    for token, i in model["vocab"].items():
        is_byte = byte_fallback and len(token) == 6 and token[:3] == "<0x"
        tokens[i] = token
        kinds[i] = BYTE if is_byte else NORMAL
    for added in tokenizer.get("added_tokens", []):
        i = added["id"]
        tokens[i] = added["content"]
        kinds[i] = CONTROL if added["special"] else USER_DEFINED
        if added["content"] == model.get("unk_token"):
            kinds[i] = UNKNOWN
    metadata = {
        "tokenizer.ggml.model": "llama" if byte_fallback else "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
    }
    if byte_fallback:
        metadata["tokenizer.ggml.scores"] = scores_of(tokens, model["merges"])
    else:
        metadata["tokenizer.ggml.pre"] = pre_tokenizer_name(tokenizer)
        metadata["tokenizer.ggml.merges"] = [
            m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    config_path = directory / "tokenizer_config.json"
    config = json.loads(config_path.read_text()) if config_path.exists() else {}
    for name in ("bos", "eos", "unk", "pad"):
        token = config.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        gguf_name = {"unk": "unknown", "pad": "padding"}.get(name, name)
        if token in tokens:
            metadata[f"tokenizer.ggml.{gguf_name}_token_id"] = tokens.index(
                token)
        if name == "bos":
            metadata["tokenizer.ggml.add_bos_token"] = added_bos(
                tokenizer, token)
    if isinstance(config.get("chat_template"), str):
        metadata["tokenizer.chat_template"] = config["chat_template"]
    return metadata
