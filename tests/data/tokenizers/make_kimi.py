#!/usr/bin/env python3
"""Makes kimi/: a small tokenizer as Kimi K2 and Moonlight have theirs, and answers.

tiktoken.model is trained here on the other folders' texts; expected.json says what
OpenAI's tiktoken would make of some. That was not at hand: what follows is its
algorithm, in a few lines, with the expression of tokenization_kimi.py, which the
module `regex` (version 1) understands as it is. Once, by hand:

    python3 tests/data/tokenizers/make_kimi.py
"""

import base64
import collections
import json
import pathlib
import random

import regex

HERE = pathlib.Path(__file__).parent
MERGES = 700
RESERVED = 256
# By how far behind the vocabulary they are.
NAMED = {
    0: ("[BOS]", True),
    1: ("[EOS]", True),
    2: ("<|im_end|>", True),
    3: ("<|im_user|>", True),
    4: ("<|im_assistant|>", True),
    17: ("<|im_middle|>", True),
    11: ("<|tool_calls_section_begin|>", False),
    254: ("[UNK]", True),
    255: ("[PAD]", True),
}
PATTERN = "|".join([
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"""
    r"""[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"""
    r"""[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""",
    r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
    r"""\s*[\r\n]+""",
    r"""\s+(?!\S)""",
    r"""\s+""",
])
WORDS = regex.compile(PATTERN, regex.VERSION1)


def words_of(text):
    words = WORDS.findall(text)
    assert "".join(words) == text, text
    return [word.encode() for word in words]


def joined(parts, at):
    return parts[:at] + [parts[at] + parts[at + 1]] + parts[at + 2:]


def encode_word(word, ranks):
    if word in ranks:
        return [ranks[word]]
    parts = [bytes([byte]) for byte in word]
    while True:
        best = min(((ranks[parts[i] + parts[i + 1]], i) for i in range(len(parts) - 1)
                    if parts[i] + parts[i + 1] in ranks), default=None)
        if best is None:
            return [ranks[part] for part in parts]
        parts = joined(parts, best[1])


def train(texts):
    single = [bytes([byte]) for byte in range(256)]
    random.Random(1).shuffle(single)  # as in theirs, ids of bytes are no order
    ranks = {token: rank for rank, token in enumerate(single)}
    words = [([bytes([byte]) for byte in word], count) for word, count in
             collections.Counter(w for text in texts for w in words_of(text)).items()]
    while len(ranks) < 256 + MERGES:
        pairs = collections.Counter()
        for parts, count in words:
            for pair in zip(parts, parts[1:]):
                pairs[pair] += count
        # What two pairs join to is one token.
        pair = max(pairs, key=lambda p: (pairs[p], p))
        ranks.setdefault(pair[0] + pair[1], len(ranks))
        for index, (parts, count) in enumerate(words):
            at = 0
            while at + 1 < len(parts):
                if (parts[at], parts[at + 1]) == pair:
                    parts = joined(parts, at)
                at += 1
            words[index] = (parts, count)
    return ranks


def encode(text, ranks, special):
    ids = []
    for part in regex.split("(" + "|".join(map(regex.escape, special)) + ")", text):
        if part in special:
            ids.append(special[part])
            continue
        for word in words_of(part):
            ids.extend(encode_word(word, ranks))
    return ids


def main():
    texts = [(HERE.parent / "stories.txt").read_text()]
    cases = []
    for name in ("llama-3.1", "qwen3", "mistral"):
        cases += [case["text"] for case in json.loads((HERE / name / "expected.json").read_text())]
    ranks = train(texts + cases)
    base = len(ranks)
    special = {NAMED.get(i, (f"<|reserved_token_{base + i}|>", True))[0]: base + i
               for i in range(RESERVED)}
    cases += [
        "你好，世界！Hello世界 and 漢字かな交じり文, カタカナ",
        "iPhone XMLHttpRequest DON'T can't WE'VE I'm HE'D",
        "École ÉCOLE naïve ǅungla ʼn ﬁn \u0301a",
        "12345 x86_64 3.14159\n\n  end  \t ",
        "한국어와 ไทย และ हिन्दी",
        "<|im_user|>user<|im_middle|>Hi <|reserved_token_%d|>[EOT]<|im_end|>[EOS]" % (base + 9),
        "<|tool_calls_section_begin|> <|im_end |>",
    ]
    out = HERE / "kimi"
    out.mkdir(exist_ok=True)
    with open(out / "tiktoken.model", "wb") as file:
        for token, rank in ranks.items():
            file.write(base64.b64encode(token) + b" %d\n" % rank)
    config = {
        "added_tokens_decoder": {
            str(base + i): {"content": content, "lstrip": False, "normalized": False,
                            "rstrip": False, "single_word": False, "special": is_special}
            for i, (content, is_special) in NAMED.items()},
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[PAD]",
        "tokenizer_class": "TikTokenTokenizer",
        "unk_token": "[UNK]",
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    answers = [{"text": text, "ids": encode(text, ranks, special)} for text in cases]
    (out / "expected.json").write_text(
        "[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in answers) + "\n]\n")


if __name__ == "__main__":
    main()
