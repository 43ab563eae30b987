"""The pre-tokenizers of BPE vocabularies as data: which names use which split patterns and flags.

Patterns use `\\p{..}` categories; `pretok.py` says how they are applied. A pattern that starts with
`@` names a splitter of `pretok.py`. The names are those of `tokenizer.ggml.pre`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PreTokenizer:
    """One rule set: names, patterns (each applied inside the pieces of the one before), flags."""

    names: str
    patterns: tuple[str, ...]
    clean_spaces: bool = True
    ignore_merges: bool = False
    add_bos: bool = False
    add_sep: bool = False
    force_bos: bool = False  # add BOS whatever the file says
    no_bos: bool = False  # the type's default BOS id does not count
    byte_encode: bool = True
    escape_spaces: bool = False  # space -> U+2581 before splitting
    whole_newlines: bool = False  # a run of newlines is looked up as one token first
    word_starts: bool = False  # each U+2581 starts a word, and so does each piece
    needs_merges: bool = True


SHORT = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
OTHER_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
KANJI = "[一-龥\u3040-ゟ゠-ヿ]+"
BREAK_AT_STOPS = " ?[^(\\s|.,!?…。，、।۔،)]+"

GPT2 = "@gpt2"
LLAMA3 = "@llama3"
QWEN2 = "@qwen2"
CHUNKS_OF_TEXT = rf"{ASCII_MARKS}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
DEEPSEEK3 = (r"\p{N}{1,3}", KANJI, rf"{CHUNKS_OF_TEXT}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACE}")

# ((?=[\p{L}])([^a-z]))* of the sources is a run of letters that are no lower-case ASCII, and so on
CASED = (
    r"[^\r\n\p{L}\p{N}]?[A-Z\p{L'}]*[a-z\p{L'}]+",
    r"[^\r\n\p{L}\p{N}]?[A-Z\p{L'}]+[a-z\p{L'}]*",
)
CASED_MARKS = tuple(part.replace(r"\p{L'}", r"\p{L'}\p{M}") for part in CASED)
# \p{Lu} and \p{Ll} are all one class to llama.cpp
UNCASED = tuple(
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]{a}[\p{{L}}\p{{M}}]{b}" for a, b in ("*+", "+*")
)
GPT4O = (rf"{CASED[0]}{SHORT}?|{CASED[1]}{SHORT}?|\p{{N}}{{1,3}}|{OTHER_SLASH}|{SPACE}",)

CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-"
    "ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-"
    "ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
ASIAN = "[一-龥ࠀ-一가-\ud7ff]+"

RULE_SETS = (
    PreTokenizer(
        "default",
        (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9]{3,3}"),
    ),
    PreTokenizer(
        "minicpm5",
        (r"\p{N}{1,3}", rf"{SHORT}|{WORD}|\p{{N}}+|{OTHER}|{SPACE}"),
        ignore_merges=True,
    ),
    PreTokenizer(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        (LLAMA3,),
        ignore_merges=True,
        add_bos=True,
    ),
    PreTokenizer("dbrx smaug-bpe", (LLAMA3,)),
    PreTokenizer("chatglm-bpe", (LLAMA3,), no_bos=True),
    PreTokenizer("glm4 glm5", (LLAMA3,), no_bos=True, ignore_merges=True),
    PreTokenizer(
        "jais-2",
        (
            rf"{SHORT}|{WORD}|\p{{N}}{{1,3}}|{OTHER}|\s*[\r\n]+"
            + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
            + r"|\s{1}",
        ),
    ),
    PreTokenizer(
        "deepseek-llm",
        (
            r"[\r\n]",
            rf"\s?[{CASED_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+\Z",
            ASIAN,
            r"\p{N}+",
        ),
        clean_spaces=False,
    ),
    PreTokenizer(
        "deepseek-coder",
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", ASIAN, r"\p{N}"),
        clean_spaces=False,
    ),
    PreTokenizer("deepseek-v3 hunyuan-dense joyai-llm hy_v4", DEEPSEEK3, clean_spaces=False),
    PreTokenizer(
        "spark2_5",
        (
            r"\p{N}{1,3}",
            KANJI,
            rf"{CHUNKS_OF_TEXT}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        ),
        clean_spaces=False,
    ),
    PreTokenizer(
        "youtu",
        (
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + KANJI,
            rf"{UNCASED[0]}{SHORT}?|{UNCASED[1]}{SHORT}?|\p{{N}}|{OTHER_SLASH}|{SPACE}",
        ),
        clean_spaces=False,
        ignore_merges=True,
    ),
    PreTokenizer("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9]{3,3}")),
    PreTokenizer("starcoder refact codeshell exaone minerva-7b mellum2", (r"\p{N}", GPT2)),
    PreTokenizer("command-r smollm", (r"\p{N}", GPT2), clean_spaces=False),
    PreTokenizer(
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert"
        " mpt olmo jais exaone4",
        (GPT2,),
    ),
    PreTokenizer("jina-v1-en jina-v2-code roberta-bpe", (GPT2,), add_sep=True),
    PreTokenizer("trillion granite-docling", (GPT2,), clean_spaces=False),
    PreTokenizer("stablelm2 megrez", (QWEN2,)),
    PreTokenizer(
        "qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open grok-2",
        (QWEN2,),
        clean_spaces=False,
    ),
    PreTokenizer("qwen35", ("@qwen35",), clean_spaces=False),
    PreTokenizer("laguna", ("@newlines", QWEN2), clean_spaces=False),
    PreTokenizer("bloom gpt3-finnish", (BREAK_AT_STOPS,)),
    PreTokenizer("poro-chat", (BREAK_AT_STOPS,), clean_spaces=False),
    PreTokenizer("viking", (BREAK_AT_STOPS, r"\p{N}"), clean_spaces=False),
    PreTokenizer(
        "tekken",
        (rf"{CASED[0]}|{CASED[1]}|\p{{N}}|{OTHER_SLASH}|{SPACE}",),
        clean_spaces=False,
        ignore_merges=True,
        add_bos=True,
    ),
    PreTokenizer(
        "chameleon",
        (
            "<sentinel:[0-9]+>",
            "(?:IMGIMG)(?:[A-I]{1,4})Z",
            r"(?:[\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ),
        clean_spaces=False,
        add_bos=True,
    ),
    PreTokenizer("gpt-4o llama4 kanana2 talkie minimax-m2", GPT4O, clean_spaces=False),
    PreTokenizer(
        "granite-embed-multi-97m",
        (
            rf"{CASED_MARKS[0]}{SHORT}?|{CASED_MARKS[1]}{SHORT}?"
            rf"|\p{{N}}{{1,3}}|{OTHER_SLASH}|{SPACE}",
        ),
        clean_spaces=False,
        ignore_merges=True,
    ),
    PreTokenizer(
        "tiny_aya cohere2moe",
        (
            "@digits",
            rf"{UNCASED[0]}{SHORT}?|{UNCASED[1]}{SHORT}?|\p{{N}}{{1,3}}|{OTHER_SLASH}|{SPACE}",
        ),
        clean_spaces=False,
    ),
    PreTokenizer("kimi-k2", ("@kimi-k2",), clean_spaces=False, needs_merges=False),
    PreTokenizer("superbpe", (r"\p{N}+", "@thousands"), clean_spaces=False),
    PreTokenizer(
        "bailingmoe bailingmoe2 llada-moe",
        (
            rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{WORD}|\p{{N}}|{OTHER}"
            r"|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
        clean_spaces=False,
    ),
    PreTokenizer(
        "seed-coder",
        (rf"{SHORT}|{WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACE}",),
        clean_spaces=False,
    ),
    PreTokenizer("ufakzeka", (rf"{WORD}|\p{{N}}|{OTHER}|{SPACE}",), clean_spaces=False),
    PreTokenizer(
        "afmoe",
        (
            "@digits",
            "[一-鿿㐀-䶿豈-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff"
            "\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff가-\ud7afᄀ-ᇿ]+",
            DEEPSEEK3[2],
        ),
        clean_spaces=False,
    ),
    PreTokenizer(
        "exaone-moe",
        (
            rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    PreTokenizer(
        "gemma4 granite-embed-multi-311m",
        ("@newlines",),
        force_bos=True,
        byte_encode=False,
        escape_spaces=True,
        whole_newlines=True,
    ),
    PreTokenizer(
        "mmbert",
        ("@newlines",),
        byte_encode=False,
        escape_spaces=True,
        whole_newlines=True,
        word_starts=True,
    ),
    PreTokenizer(
        "sarvam-moe", ("@newlines",), clean_spaces=False, byte_encode=False, escape_spaces=True
    ),
    PreTokenizer("whitespace", (r"\S+",), byte_encode=False),
)

BY_NAME = {name: rules for rules in RULE_SETS for name in rules.names.split()}
