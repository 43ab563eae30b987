"""Record which types llama.cpp gives the tensors of tiny models, and the hashes of its files.

    python tools/record_quantize.py            # writes fixtures/quantize/, needs the peer
    python tools/record_quantize.py --check    # says whether the fixture is what would be recorded

The models are in quantize_models.py. types.json: {model: {file type: {"plain" or "importance":
[types, sha256]}}}; the types are in the order of the file, `q4_K*3` for three in a row; a text in
place of the list is why llama.cpp refuses.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import peer_tasks  # noqa: E402
import quantize_models as models  # noqa: E402
from peer import Peer, connect  # noqa: E402
from peer_fetch import PeerError  # noqa: E402

from llamapy.gguf.reader import GGUFFile  # noqa: E402
from llamapy.quants import codec  # noqa: E402
from llamapy.tasks.file_types import COPY, FILE_TYPES  # noqa: E402

FOLDER = HERE.parent / "fixtures" / "quantize"
ENTRIES = "quantize.imatrix.entries_count"


def record(peer: Peer) -> dict[str, Any]:
    """Everything that goes into types.json."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in models.MODELS:
            source = Path(folder) / f"{name}.gguf"
            models.write(name, source)
            found[name] = {
                one.name: {
                    "plain": outcome(peer, source, one.name, {}),
                    "importance": outcome(peer, source, one.name, models.importances(name)),
                }
                for one in (*FILE_TYPES, COPY)
            }
    return found


def outcome(peer: Peer, source: Path, file_type: str, weights: dict[str, Any]) -> Any:
    """What llama.cpp makes of a model: types and hash, or why it refuses."""
    target = source.with_suffix(".out")
    options: dict[str, Any] = {"threads": 1}
    if weights:
        options |= {"imatrix": weights, "overrides": {ENTRIES: len(weights)}}
    try:
        peer_tasks.quantize(peer, source, target, file_type, **options)
    except PeerError as error:
        return str(error).rpartition("failed to quantize: ")[2]
    with GGUFFile(target, type_sizes=codec.type_sizes) as file:
        types = [codec.get(info.type_id).name for info in file.tensors]
    return [packed(types), hashlib.sha256(target.read_bytes()).hexdigest()]


def packed(types: list[str]) -> str:
    """Types in a text, repeated ones counted."""
    runs = [(kind, len(list(several))) for kind, several in groupby(types)]
    return " ".join(f"{kind}*{n}" if n > 1 else kind for kind, n in runs)


def unpacked(text: str) -> list[str]:
    """The inverse of `packed`."""
    found = []
    for run in text.split():
        kind, _, n = run.partition("*")
        found += [kind] * int(n or 1)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    peer = connect()
    text = json.dumps(record(peer), indent=0) + "\n"
    path = FOLDER / "types.json"
    if args.check:
        same = path.exists() and path.read_text() == text
        print("the same" if same else "not as recorded now")
        return int(not same)
    FOLDER.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (FOLDER / "MANIFEST.toml").write_text(
        'made_by = "tools/record_quantize.py"\n'
        'made_from = "the tiny models of tools/quantize_models.py, by llama.cpp v0.4.0 (npm'
        ' @node-llama-cpp/linux-x64)"\n'
        f'\n["types.json"]\nbytes = {len(text.encode())}\nsha256 = "{digest}"\n'
    )
    print(f"{path}: {len(text):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
