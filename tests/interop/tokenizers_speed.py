"""Speed of `sluice tokenize` and of Hugging Face's `tokenizers` on the same text and cores, in one run.

usage: tokenizers_speed.py SLUICE TEXT FOLDER
The vocabularies have 30,000 tokens, trained on files of this machine's documentation beside the text. Both use all
cores. What counts is the time that their threads have computed, user and system, which other programs on the machine
hardly change; the time that passed is printed beside it. Each runs three times, in turns, and its best run counts.
Exits with 1 if ours is not at least 5 times as fast, or gives another number of tokens.
"""
import glob
import gzip
import os
import random
import resource
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
NEEDED, TURNS = 5, 3


def timed(who, call):
    """Returns the processor's seconds, the seconds that passed, and what the call gave."""
    start, before = time.time(), resource.getrusage(who)
    result = call()
    after = resource.getrusage(who)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.time() - start, result


slow = False
for name, split in splits.items():
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    tokenizer.train_from_iterator(lines[::4], trainers.BpeTrainer(
        vocab_size=30000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"],
        show_progress=False))
    tokenizer.save(f"{folder}/speed-{name}.json")
    ours, theirs = [], []
    command = [sluice, "tokenize", "-t", f"{folder}/speed-{name}.json", "--lines", "-o", f"{folder}/speed.bin", corpus]
    for _ in range(TURNS):
        theirs.append(timed(resource.RUSAGE_SELF, lambda: tokenizer.encode_batch_fast(lines, add_special_tokens=False)))
        theirs[-1] = theirs[-1][:2] + (sum(len(each.ids) for each in theirs[-1][2]),)
        ours.append(timed(resource.RUSAGE_CHILDREN, lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)))
    count = theirs[0][2]
    same = os.path.getsize(f"{folder}/speed.bin") == 2 * count
    theirs, ours = ([min(each[i] for each in runs) for i in range(2)] for runs in (theirs, ours))
    ratio = theirs[0] / ours[0]
    print(f"{name}: {size / 1e6:.1f} MB, {count} tokens: a processor's second: tokenizers {size / theirs[0] / 1e6:.1f} MB, "
          f"sluice {size / ours[0] / 1e6:.1f} MB, {ratio:.1f} x; on all cores {size / theirs[1] / 1e6:.1f} and "
          f"{size / ours[1] / 1e6:.1f} MB/s, {theirs[1] / ours[1]:.1f} x" + ("" if same else ", NOT THE SAME NUMBER OF TOKENS"))
    slow |= ratio < NEEDED or not same
sys.exit(f"sluice is not {NEEDED} times as fast, or its tokens are others" if slow else 0)
