"""Speed of `sluice tokenize` and of Hugging Face's `tokenizers` on the same text and cores, in one run.

usage: tokenizers_speed.py SLUICE TEXT FOLDER
The vocabularies have 30,000 tokens, trained on files of this machine's documentation beside the text.
"""
import glob
import gzip
import os
import random
import subprocess
import sys
import time

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

sluice, text, folder = sys.argv[1:4]
documents = open(text).read().split("\n\n")
for path in sorted(glob.glob("/usr/share/doc/**/*.gz", recursive=True)) + sorted(glob.glob("/usr/include/**/*.h", recursive=True)):
    try:
        with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
            documents.append(file.read(200000).replace("\r", ""))
    except (OSError, UnicodeDecodeError):
        pass
    if sum(map(len, documents)) > 40_000_000:
        break
random.Random(1).shuffle(documents)
lines = [line for each in documents for line in each.split("\n") if line.strip()]
corpus = f"{folder}/speed.txt"
with open(corpus, "w") as file:
    file.write("\n".join(lines) + "\n")
size = os.path.getsize(corpus)
byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
llama3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
splits = {
    "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "llama3": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(llama3), "isolated"), byte_level]),
}
slow = False
for name, split in splits.items():
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    tokenizer.train_from_iterator(lines[::4], trainers.BpeTrainer(
        vocab_size=30000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"],
        show_progress=False))
    tokenizer.save(f"{folder}/speed-{name}.json")
    start = time.time()
    count = sum(len(each.ids) for each in tokenizer.encode_batch_fast(lines, add_special_tokens=False))
    theirs = time.time() - start
    start = time.time()
    subprocess.run([sluice, "tokenize", "-t", f"{folder}/speed-{name}.json", "--lines", "-o", f"{folder}/speed.bin", corpus],
                   check=True, stdout=subprocess.DEVNULL)
    ours = time.time() - start
    same = os.path.getsize(f"{folder}/speed.bin") == 2 * count
    print(f"{name}: {size / 1e6:.1f} MB, {count} tokens: tokenizers {size / theirs / 1e6:.1f} MB/s, "
          f"sluice {size / ours / 1e6:.1f} MB/s, {theirs / ours:.1f} x" + ("" if same else ", NOT THE SAME NUMBER OF TOKENS"))
    slow |= theirs < 5 * ours or not same
sys.exit(1 if slow else 0)
