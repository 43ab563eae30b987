"""Record what Hugging Face transformers makes of chat templates: the truth for tests/chat.

    python tools/record_chat.py [FOLDER]        # default: fixtures/chat

FOLDER holds `*.jinja` (templates of real models) and `conversations.json` ({name: arguments of
apply_chat_template}); `expected.json` ({template: {conversation: text or null}}, null where the
template refuses) and `MANIFEST.toml` are written there. Needs transformers, in a virtual
environment of its own: it is no dependency of llamapy. The clock is stopped at NOW.
"""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

NOW = datetime(2025, 3, 4, 5, 6, 7)
BOS, EOS = "<s>", "</s>"


class StoppedClock(datetime):
    """datetime.now() for transformers."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return NOW


def renderer(template: str) -> Any:
    """A function from the arguments of apply_chat_template to the text, or None where it raises."""
    from tokenizers import Tokenizer, models  # type: ignore[import-not-found]
    from transformers import PreTrainedTokenizerFast  # type: ignore[import-not-found]
    from transformers.utils import chat_template_utils  # type: ignore[import-not-found]

    chat_template_utils.datetime = StoppedClock
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token=BOS, eos_token=EOS
    )

    def render(arguments: dict[str, Any]) -> str | None:
        messages, options = arguments["messages"], {**arguments}
        del options["messages"]
        try:
            text: str = tokenizer.apply_chat_template(
                messages, tokenize=False, chat_template=template, **options
            )
        except Exception:  # noqa: BLE001  (a template may raise anything)
            return None
        return text

    return render


def record(folder: Path) -> None:
    """Write expected.json and MANIFEST.toml."""
    import transformers  # type: ignore[import-not-found]

    conversations = json.loads((folder / "conversations.json").read_text())
    expected = {}
    for path in sorted(folder.glob("*.jinja")):
        render = renderer(path.read_text())
        expected[path.stem] = {name: render(arguments) for name, arguments in conversations.items()}
        if not any(expected[path.stem].values()):
            raise SystemExit(f"{path} renders no conversation at all")
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    (folder / "expected.json").write_text(text + "\n")
    lines = [
        'made_by = "tools/record_chat.py"',
        f'made_from = "apply_chat_template of transformers {transformers.__version__}"',
        'templates = "of the models they are named after"',
    ]
    for path in sorted(folder.glob("*.jso*")) + sorted(folder.glob("*.jinja")):
        raw = path.read_bytes()
        lines += ["", f'["{path.name}"]', f"bytes = {len(raw)}"]
        lines += [f'sha256 = "{hashlib.sha256(raw).hexdigest()}"']
    (folder / "MANIFEST.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    default = Path(__file__).parent.parent / "fixtures" / "chat"
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
