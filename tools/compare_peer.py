"""llamapy beside the peer, on the same files, in turns: `compare_peer.py quantize MODEL.gguf ...`.

A comparison is a module `compare_NAME.py` in this folder with `add_arguments(parser)` and
`run(args)`, which prints a table and returns what goes into the file of --json.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


def comparisons() -> dict[str, str]:
    """Names of the comparisons, and the first line of what each says of itself."""
    found = {}
    for path in sorted(HERE.glob("compare_*.py")):
        name = path.stem.removeprefix("compare_")
        if path != Path(__file__).resolve():
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            found[name] = text.partition("\n")[0]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMPARISON")
    found = comparisons()
    named = [word for word in sys.argv[1:2] if word in found]  # the others' modules stay unloaded
    for name, text in found.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
        if name in named:
            importlib.import_module(f"compare_{name}").add_arguments(command)
    args = parser.parse_args()
    figures = importlib.import_module(f"compare_{args.name}").run(args)
    if args.json:
        about = {"comparison": args.name, "date": datetime.now(UTC).isoformat(timespec="seconds")}
        about |= {"machine": platform.processor() or platform.machine()}
        args.json.write_text(json.dumps(about | {"figures": figures}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
