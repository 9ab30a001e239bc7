"""Trains one small tokenizer of each kind with Hugging Face's `tokenizers` and SentencePiece.

usage: tokenizers_make.py TEXT FOLDER [VOCABULARY]
"""
import json
import os
import sys

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

text, folder = sys.argv[1:3]
size = int(sys.argv[3]) if len(sys.argv) > 3 else 900
os.makedirs(folder, exist_ok=True)
foreign = (
    "Straße déjà vu naïve café Ångström 日本語 漢字 かな カナ 한국어 Привет мир Ελληνικά עברית العربية हिन्दी ไทย "
    "😀👩‍👩‍👧 ① ½ ﬁ ™ é 1234567890 3.14 don't I'll we've \t\r\n  many   spaces __init__(self): {x: 1}\n\n\nend. "
)
lines = (open(text).read() + foreign * 40).split("\n")
P, N, D, T = pre_tokenizers, normalizers, decoders, processors.TemplateProcessing
every_byte = P.ByteLevel.alphabet()
byte_tokens = [f"<0x{i:02X}>" for i in range(256)]


def save(tokenizer, name):
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump(json.loads(tokenizer.to_str()), file, ensure_ascii=False, separators=(",", ":"))


def bpe(name, normalizer=None, split=None, decoder=None, frame=None, added=(), special=("<s>", "</s>"), alphabet=(), **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer:
        tokenizer.normalizer = normalizer
    if split:
        tokenizer.pre_tokenizer = split
    if decoder:
        tokenizer.decoder = decoder
    affixes = {key: model[key] for key in ("continuing_subword_prefix", "end_of_word_suffix") if key in model}
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), initial_alphabet=list(alphabet),
                                  show_progress=False, **affixes)
    tokenizer.train_from_iterator(lines, trainer)
    if frame:
        tokenizer.post_processor = frame
    for token in added:
        tokenizer.add_tokens([token])
    save(tokenizer, name)


def isolated(*patterns):
    steps = [P.Split(Regex(pattern), "isolated") for pattern in patterns]
    return P.Sequence(steps + [P.ByteLevel(add_prefix_space=False, use_regex=False)])


contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
rest = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
of_bytes = dict(decoder=D.ByteLevel(), alphabet=every_byte)
bpe("gpt2", split=P.ByteLevel(add_prefix_space=False), special=["<|endoftext|>"], **of_bytes,
    added=[AddedToken("<tool>", normalized=False), AddedToken("Magic", single_word=True),
           AddedToken("<lr>", lstrip=True, rstrip=True)])
bpe("roberta", split=P.ByteLevel(add_prefix_space=True), frame=processors.RobertaProcessing(("</s>", 1), ("<s>", 0)), **of_bytes)
bpe("llama3", split=isolated(contractions + r"\p{N}{1,3}" + rest), special=["<|begin_of_text|>"], ignore_merges=True,
    frame=T(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]), **of_bytes)
bpe("qwen2", normalizer=N.NFC(), split=isolated(contractions + r"\p{N}" + rest), special=["<|endoftext|>"], **of_bytes)
bpe("starcoder", split=P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)]), **of_bytes)
bpe("deepseek", split=isolated(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), **of_bytes)
back = D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
of_characters = dict(unk_token="<unk>", byte_fallback=True, fuse_unk=True, special=["<unk>", "<s>", "</s>"] + byte_tokens)
bpe("llama2", normalizer=N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), decoder=back, **of_characters,
    frame=T(single="<s> $A", special_tokens=[("<s>", 1)]))
for scheme in ("first", "always", "never"):
    bpe(f"mistral_{scheme}", split=P.Metaspace(prepend_scheme=scheme, split=False), decoder=back, **of_characters)
bpe("gemma", normalizer=N.Replace(" ", "▁"), split=P.Split(" ", "merged_with_previous"),
    decoder=D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse()]), **of_characters)
bpe("clip", normalizer=N.Sequence([N.NFC(), N.Replace(Regex(r"\s+"), " "), N.Lowercase()]), decoder=D.ByteLevel(),
    split=P.Sequence([P.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
                      P.ByteLevel(add_prefix_space=False)]),
    alphabet=every_byte, unk_token="<|endoftext|>", special=["<|endoftext|>"], end_of_word_suffix="</w>")
bpe("old", normalizer=N.BertNormalizer(), split=P.BertPreTokenizer(), decoder=D.BPEDecoder(suffix="</w>"),
    unk_token="<unk>", special=["<unk>"], end_of_word_suffix="</w>")
bpe("prefix", split=P.Whitespace(), decoder=D.WordPiece(prefix="##", cleanup=False), unk_token="[UNK]", special=["[UNK]"],
    continuing_subword_prefix="##")
bpe("scripts", normalizer=N.NFKC(), split=P.Sequence([P.UnicodeScripts(), P.WhitespaceSplit()]), unk_token="[UNK]", special=["[UNK]"])
bpe("scripts_alone", split=P.UnicodeScripts(), unk_token="[UNK]", special=["[UNK]"])
bpe("plain", normalizer=N.NFKD(), split=P.WhitespaceSplit(), unk_token="[UNK]", special=["[UNK]"])


def wordpiece(name, normalizer, split, limit=100, cleanup=True):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=limit))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, split
    tokenizer.decoder = D.WordPiece(cleanup=cleanup)
    trainer = trainers.WordPieceTrainer(vocab_size=size, show_progress=False,
                                        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True)])
    save(tokenizer, name)


wordpiece("bert", N.BertNormalizer(), P.BertPreTokenizer())
wordpiece("bert_cased", N.BertNormalizer(lowercase=False), P.BertPreTokenizer(), cleanup=False)
wordpiece("wordpiece", N.Sequence([N.NFD(), N.StripAccents(), N.Strip(), N.Lowercase()]), limit=8,
          split=P.Sequence([P.WhitespaceSplit(), P.Punctuation("merged_with_previous"), P.Digits(False)]))

with open(f"{folder}/corpus.txt", "w") as file:
    file.write("\n".join(line for line in lines if line.strip()))
for name, kind, fallback, more in (
    ("sp_unigram", "unigram", False, {}),
    ("sp_bpe", "bpe", True, {}),
    ("sp_spaces", "unigram", True, dict(normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False)),
    ("sp_symbols", "bpe", False, dict(user_defined_symbols=["<sep>", "<call>"], normalization_rule_name="nfkc_cf")),
):
    sentencepiece.SentencePieceTrainer.train(
        input=f"{folder}/corpus.txt", model_prefix=f"{folder}/{name}", model_type=kind, byte_fallback=fallback,
        vocab_size=size + 256 * fallback, character_coverage=0.98, hard_vocab_limit=False, minloglevel=2, **more)
proto = sentencepiece_model_pb2.ModelProto()
proto.ParseFromString(open(f"{folder}/sp_unigram.model", "rb").read())
table = N.Precompiled(proto.normalizer_spec.precompiled_charsmap)


def unigram(name, normalizer, split, decoder, fallback=False):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, split, decoder
    special = ["<pad>", "</s>", "<unk>"] + byte_tokens * fallback
    trainer = trainers.UnigramTrainer(vocab_size=size + 256 * fallback, special_tokens=special, unk_token="<unk>",
                                      show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    whole = json.loads(tokenizer.to_str())
    whole["model"]["byte_fallback"] = fallback
    save(Tokenizer.from_str(json.dumps(whole)), name)


unigram("t5", table, P.Sequence([P.WhitespaceSplit(), P.Metaspace()]), D.Metaspace())
unigram("xlnet", N.Sequence([N.Replace("``", '"'), N.NFKD(), N.StripAccents(), table, N.Replace(Regex(" {2,}"), " ")]),
        P.Metaspace(), D.Metaspace())
unigram("unigram_bytes", N.Nmt(), P.Metaspace(prepend_scheme="never"),
        D.Sequence([D.ByteFallback(), D.Metaspace(prepend_scheme="never")]), fallback=True)
words = Tokenizer(models.WordLevel(unk_token="<unk>"))
words.pre_tokenizer = P.Sequence([P.CharDelimiterSplit(","), P.Punctuation("contiguous"), P.Split(" ", "merged_with_next"),
                                  P.Split(Regex("[aeiou]+"), "contiguous")])
words.train_from_iterator(lines, trainers.WordLevelTrainer(vocab_size=size, special_tokens=["<unk>"], show_progress=False))
save(words, "wordlevel")
