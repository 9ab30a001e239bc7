"""Compares our ids and decoded texts with those of `tokenizers` and SentencePiece, on random and nasty texts.

usage: tokenizers_check.py ENCODE_TEXTS TEXT FOLDER TEXTS_A_KIND [SEED]
Characters newer than Unicode 3.2 are left out of the random ones: some tables of the reference are old.
"""
import glob
import json
import os
import random
import subprocess
import sys
import unicodedata

import sentencepiece
from tokenizers import Tokenizer

encode_texts, text, folder, count = sys.argv[1:5]
random.seed(int(sys.argv[5]) if len(sys.argv) > 5 else 1)
corpus = open(text).read()
words = corpus.split(" ")
bits = """the|'s|'S|'ll| don't|123|4|3.14|é|é|Å|ﬁ|①|½|漢字|日本|かな|カナ|한국|Привет|мир|ﷺ|עִברית|हिन्दी|ไทย|😀|👩‍👩‍👧|🇩🇪|<s>|</s>
<unk>|[MASK]|[CLS]|<|endoftext|>|<tool>|Magic|Magics|<lr>|<sep>|<call>|▁|▁▁|Ġ|##ing|</w>|<0x41>|_|__|-|—|…|“|”|``|''|$|€|∑|ǅ|İ|ı|ſ|ß
ΑΣ|Σ|ﬀ|㎏|Ⅷ|𠀀|x|Zz|...|!!|,|{|}|()|[|]|\\|/|@|#|~|^|`""".replace("\n", "|").split("|") + [
    " ", "  ", "\n", "\n\n", "\t", "\r\n", "\u200b", "\ufeff", "\u00a0", "\u3000", "\u2028", "\u0085", "\u0301", "\x00", "\x01",
    "\x7f", "\ufffd", "a" * 40, "<|endoftext|>"]
old = unicodedata.ucd_3_2_0


def character():
    first, last = random.choice([(32, 127), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x20000)])
    while True:
        one = chr(random.randrange(first, last))
        if old.category(one) != "Cn":
            return one


def random_text():
    kind = random.random()
    if kind < 0.1:
        return "".join(character() for _ in range(random.randrange(1, 30)))
    if kind < 0.3:
        at = random.randrange(len(corpus) - 200)
        return corpus[at : at + random.randrange(1, 200)]
    return "".join(random.choice(bits) + random.choice(["", " "]) if random.random() < 0.7 else random.choice(words)
                   for _ in range(random.randrange(1, 25)))


texts = ["", " ", "  ", "a", " a", "a ", "\n"] + [random_text() for _ in range(int(count))]


def ours(path, special):
    run = subprocess.run([encode_texts, path, special, special], input=json.dumps(texts), capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{path}: {run.stderr.strip()}")
    return json.loads(run.stdout)


def theirs(path):
    """Returns ids and decoded texts; None for a text that has bytes which are no UTF-8."""
    if path.endswith(".model"):
        model = sentencepiece.SentencePieceProcessor(model_file=path)
        for ids in map(model.encode, texts):
            decoded = model.decode(ids)
            yield ids, None if "\ufffd" in decoded or "⁇" in decoded else decoded
        return
    tokenizer = Tokenizer.from_file(path)
    for ids in (tokenizer.encode(each).ids for each in texts):
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        yield ids, None if "\ufffd" in decoded else decoded


wrong = 0
for path in sorted(glob.glob(f"{folder}/*.json") + glob.glob(f"{folder}/*.model")):
    bad = 0
    for given, got, (ids, decoded) in zip(texts, ours(path, "0" if path.endswith(".model") else "1"), theirs(path)):
        if got.get("ids") != ids or (decoded is not None and got["text"] != decoded):
            bad += 1
            if bad == 1:
                print(f"{path}: {given!r}\n  ours   {got}\n  theirs {ids} {decoded!r}")
    print(f"{os.path.basename(path)}: {len(texts)} texts, {bad} different")
    wrong += bad
sys.exit(1 if wrong else 0)
