"""llamapy tokenize: what a model makes of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from llamapy.cli import console, options, texts
from llamapy.core.errors import UsageError

Stdin = Annotated[bool, Option("--stdin", help="Read the text from stdin.")]
Ids = Annotated[bool, Option("--ids", help="Only the ids, as [1, 2, 3].")]
NoBos = Annotated[bool, Option("--no-bos", help="Add no special tokens (--decode: drop them).")]
NoParse = Annotated[
    bool, Option("--no-parse-special", help="Control tokens in the text are plain text.")
]
ShowCount = Annotated[bool, Option("--show-count", help="Say how many tokens there are.")]
NoEscape = Annotated[bool, Option("--no-escape", help="\\n and the like in -p are two letters.")]
Decode = Annotated[bool, Option("--decode", help="The other way: the text of ids.")]
Visual = Annotated[bool, Option("--visual", help="Show the tokens as coloured pieces.")]
Pre = Annotated[
    str | None, Option("--pre", metavar="NAME", help="Split as this pre-tokenizer does.")
]


def main(
    model: options.ModelPath = None,
    hf_repo: options.HfRepo = "",
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    stdin: Stdin = False,
    ids: Ids = False,
    json: options.Json = False,
    no_bos: NoBos = False,
    no_parse_special: NoParse = False,
    show_count: ShowCount = False,
    no_escape: NoEscape = False,
    decode: Decode = False,
    visual: Visual = False,
    pre: Pre = None,
) -> None:
    """Turn a text into a model's tokens, or tokens into text."""
    if ids + json + visual > 1 or (decode and (ids or visual)):
        raise UsageError("--ids, --json and --visual do not go together, nor --decode with them")
    if stdin and (prompt is not None or file is not None):
        raise UsageError("--stdin does not go with -p and -f")
    text = texts.prompt_of(prompt, Path("-") if stdin else file, escapes=not no_escape)
    if text is None:
        raise UsageError("a text is missing", hint="give one with -p or -f, or pipe it in")
    from llamapy.cli import token_view
    from llamapy.runtime import sources
    from llamapy.tasks.tokenize import open_tokenizer, parse_ids

    with console.progress("fetching the model", unit="B") as tick:
        path = sources.resolve(options.model_of(model, hf_repo), tick)
    tokenizer = open_tokenizer(path, pre)
    parse = not no_parse_special
    if decode:
        found = parse_ids(text)
        data = tokenizer.decode(found, remove_special=no_bos, special=parse)
        if json:
            console.json({"ids": found, "text": data})
        else:
            token_view.raw(data)
        return
    # as llama-tokenize: a model that adds no BOS gets nothing added
    add_special = tokenizer.add_bos and not no_bos
    found = tokenizer.encode(text, add_special=add_special, parse_special=parse)
    if json:
        count = {"count": len(found)} if show_count else {}
        console.json({"ids": found, "pieces": [tokenizer.piece(t) for t in found]} | count)
        return
    if ids:
        print(found)
    elif visual:
        token_view.coloured(tokenizer, found)
    else:
        token_view.lines(tokenizer, found)
    if show_count:
        print(f"Total number of tokens: {len(found)}")
