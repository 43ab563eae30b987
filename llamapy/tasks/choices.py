"""Tests of choice: HellaSwag, Winogrande and multiple choice, scored as llama-perplexity does
(tools/perplexity/perplexity.cpp).

Which tasks are drawn, where texts are cut, which tokens count: all as there, so that scores can be
compared.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from llamapy.core.errors import LlamapyError
from llamapy.gguf.cursor import Cursor
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model
from llamapy.runtime.rounding import wrapped
from llamapy.runtime.scores import Rows

Z95 = 1.95996398454  # of a 95 % interval
HELLASWAG_LINES = 6
HELLASWAG_TASKS = 400
LEAST_TRAILING = 3  # tokens after the choice, above which the choice itself does not count
MOST_ANSWERS = 100


@dataclass(frozen=True)
class Task:
    """Texts of which one is right. starts: of how many tokens a score begins after, for each text;
    None: after what all have in common. skip_last: the last token does not count."""

    texts: list[bytes]
    right: set[int]
    prefixes: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """One task: mean log-probability of each text, which was chosen, whether it is right."""

    scores: list[float]
    chosen: int
    right: bool


@dataclass
class Score:
    """n_right of n tasks, and the chance of guessing."""

    n: int = 0
    n_right: int = 0
    n_answers: int = 0

    @property
    def accuracy(self) -> float:
        return self.n_right / self.n if self.n else 0.0

    @property
    def error(self) -> float:
        return _error(self.accuracy, self.n)

    @property
    def chance(self) -> float:
        return self.n / self.n_answers if self.n_answers else 0.0

    @property
    def chance_error(self) -> float:
        return _error(self.chance, self.n)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy."""
        p, z = self.accuracy, Z95**2 / self.n
        half = z * sqrt(self.n * (4 * p * (1 - p) + z)) / (2 * Z95)
        return (p + z / 2 - half) / (1 + z), (p + z / 2 + half) / (1 + z)


def _error(p: float, n: int) -> float:
    return sqrt(p * (1 - p) / (n - 1)) if n > 1 else 0.0


# -- reading


def hellaswag(data: bytes, n: int = HELLASWAG_TASKS) -> list[Task]:
    """Six lines a task: context, number of the right ending, four endings."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if not lines or len(lines) % HELLASWAG_LINES:
        raise LlamapyError(f"{len(lines)} lines; HellaSwag needs {HELLASWAG_LINES} a task")
    groups = [lines[i : i + HELLASWAG_LINES] for i in range(0, len(lines), HELLASWAG_LINES)]
    random = _twister()
    tasks = []
    for _ in range(min(n, len(groups))):
        group = groups.pop(_below(random, len(groups)))
        if group[1].strip() not in ("0", "1", "2", "3"):
            raise LlamapyError(f"the right ending is {group[1]!r}, not 0 to 3")
        texts = [f"{group[0]} {end}".encode("utf-8", "surrogateescape") for end in group[2:]]
        tasks.append(Task(texts, {int(group[1])}))
    return tasks


def winogrande(data: bytes, n: int = 0) -> list[Task]:
    """Lines of index, sentence with a _, two choices, number of the right one; n 0 is all."""
    tasks = []
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        if not line.strip():
            continue
        cells = _cells(line)
        if len(cells) != 5 or "_" not in cells[1] or cells[4].strip() not in ("1", "2"):
            raise LlamapyError(f"{line[:60]!r} is no Winogrande task")
        before, _, after = cells[1].partition("_")
        heads = [before + choice for choice in cells[2:4]]
        texts = [(head + after).encode("utf-8", "surrogateescape") for head in heads]
        prefixes = [head.encode("utf-8", "surrogateescape") for head in heads]
        tasks.append(Task(texts, {int(cells[4]) - 1}, prefixes))
    return _some(tasks, n)


def _cells(line: str) -> list[str]:
    """The cells of a line; commas inside double quotes do not count."""
    cells, quoted = [""], False
    for char in line:
        if char == "," and not quoted and len(cells) < 5:
            cells.append("")
        else:
            quoted ^= char == '"'
            cells[-1] += char
    return [cell[1:-1] if cell[:1] == cell[-1:] == '"' else cell for cell in cells]


def multiple_choice(data: bytes, n: int = 0) -> list[Task]:
    """u32 count, u32 positions; for each task texts and labels: question, answers with one right,
    answers with several. n 0 is all. FileFormatError for anything else."""
    at = Cursor("multiple choice", data, len(data))
    count = at.number("I", "number of tasks")
    if not 0 < count <= at.left // 4:
        raise at.fail(f"{count} tasks cannot be", "number of tasks", 0)
    positions = struct.unpack(f"<{count}I", at.take(4 * count, "positions"))
    if 0 < n < count:
        chosen = _some(list(positions), n)
        return [_choice(Cursor("multiple choice", data[p:], len(data) - p)) for p in chosen]
    return [_choice(at) for _ in range(count)]


def _choice(at: Cursor) -> Task:
    question = _string(at)
    answers, labels = _answers(at)
    _answers(at)  # those with several right ones are not used
    if not question or not answers or not all(answers):
        raise at.fail("an empty question or answer", "task", at.pos)
    right = {i for i, label in enumerate(labels) if label == 1}
    return Task([question + b" " + answer for answer in answers], right)


def _string(at: Cursor) -> bytes:
    n = at.number("I", "length of a text")
    return bytes(at.take(n, "text"))


def _answers(at: Cursor) -> tuple[list[bytes], Sequence[int]]:
    n = at.number("I", "number of answers")
    if n > MOST_ANSWERS:
        raise at.fail(f"{n} answers; at most {MOST_ANSWERS}", "number of answers", at.pos)
    texts = [_string(at) for _ in range(n)]
    return texts, struct.unpack(f"<{n}i", at.take(4 * n, "labels"))


def _twister() -> Callable[[], int]:
    """std::mt19937 seeded with 1: 32 bits a call."""
    state = np.random.RandomState(1)
    return lambda: int(state.randint(0, 2**32, dtype=np.uint32))


def _below(random: Callable[[], int], n: int) -> int:
    """libstdc++'s uniform_int_distribution of 0 to n - 1: the upper bits of a product."""
    product = random() * n
    if product & 0xFFFFFFFF < n:
        least = (2**32 - n) % n
        while product & 0xFFFFFFFF < least:
            product = random() * n
    return product >> 32


def _some(tasks: list[Any], n: int) -> list[Any]:
    """n of the tasks at random, in upstream's order; all if n is 0 or too many."""
    if not 0 < n < len(tasks):
        return tasks
    random, left, chosen = _twister(), list(tasks), []
    scale = np.float32(1) / (np.float32(1) + np.float32(2**32 - 1))
    for _ in range(n):
        at = int(scale * np.float32(random()) * np.float32(len(left)))
        chosen.append(left[at])
        left[at] = left[-1]
        left.pop()
    return chosen


# -- scoring


def score(
    model: Model,
    tasks: Sequence[Task],
    *,
    n_ctx: int = 512,
    on_task: Callable[[Outcome, Score], None] | None = None,
    activations: str = "exact",
    **options: Any,
) -> Score:
    """Let the model choose: of each task's texts the one with the highest mean log-probability.

    LlamapyError for a task that does not fit into n_ctx tokens.
    """
    most = max((len(task.texts) for task in tasks), default=1)
    options |= {"observer": wrapped(activations, None), "activation_bits": 16}
    context = Context(model, n_ctx=n_ctx, n_batch=n_ctx, n_seq_max=most, **options)
    found = Score()
    with Rows(2) as rows:
        for i, task in enumerate(tasks):
            scores = _scores(context, rows, task, i)
            # Of two equal ones the first, but Winogrande's second.
            chosen = int(np.argmax(scores))
            if task.prefixes:
                chosen = 0 if scores[0] > scores[1] else 1
            outcome = Outcome(scores, chosen, chosen in task.right)
            found.n, found.n_answers = found.n + 1, found.n_answers + len(scores)
            found.n_right += outcome.right
            if on_task is not None:
                on_task(outcome, found)
    return found


def _scores(context: Context, rows: Rows, task: Task, number: int) -> list[float]:
    encode = context.model.tokenizer.encode
    texts = [encode(text, add_special=True) for text in task.texts]
    shared = _shared(texts)
    if not 0 < shared < min(len(ids) for ids in texts):
        raise LlamapyError(f"task {number}: its texts do not begin alike and then differ")
    needed = shared + sum(len(ids) - shared for ids in texts)
    if needed > context.n_ctx:
        raise LlamapyError(
            f"task {number} has {needed} tokens, the context {context.n_ctx}",
            hint="a larger context: -c",
        )
    log_p = _decode(context, rows, texts, shared)
    if not task.prefixes:
        return [float(one.mean()) for one in log_p]
    starts = [shared] * len(texts)
    if all(len(ids) - shared > LEAST_TRAILING for ids in texts):
        starts = [len(encode(text, add_special=True)) for text in task.prefixes]
    return [
        float(one[start - shared : len(one) - (len(ids) - start > 1)].mean())
        for one, ids, start in zip(log_p, texts, starts)
    ]


def _shared(texts: Sequence[Sequence[int]]) -> int:
    """How many tokens all texts begin with."""
    n = 0
    for column in zip(*texts):
        if len(set(column)) > 1:
            break
        n += 1
    return n


def _decode(
    context: Context, rows: Rows, texts: Sequence[Sequence[int]], shared: int
) -> list[np.ndarray[Any, Any]]:
    """Log-probabilities of each text's tokens after the shared ones, which are computed once."""
    context.memory.clear()
    everyone = list(range(len(texts)))
    tokens, positions = list(texts[0][:shared]), list(range(shared))
    sequences: list[list[int]] = [everyone] * shared
    outputs = [False] * (shared - 1) + [True]
    for i, ids in enumerate(texts):
        tokens += ids[shared:]
        positions += range(shared, len(ids))
        sequences += [[i]] * (len(ids) - shared)
        outputs += [True] * (len(ids) - shared - 1) + [False]
    logits = context.decode(
        Batch(tokens, positions=positions, sequences=sequences, outputs=outputs), copy=False
    )
    found, at = [], 1
    for ids in texts:
        n = len(ids) - shared - 1
        mine = np.concatenate([logits[:1], logits[at : at + n]])
        found.append(-rows.nll(mine, np.array(ids[shared:], np.int32)))
        at += n
    return found
