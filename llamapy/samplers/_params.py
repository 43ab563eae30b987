"""The parameters of sampling: names and defaults as in llama.cpp, ranges checked when made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

import numpy as np

from llamapy.core.errors import UsageError
from llamapy.core.log import log
from llamapy.samplers._registry import parse_order

DEFAULT_ORDER = (
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
)  # fmt: skip
MAX_INT = 2**31 - 1
MAX_SEED = 2**32 - 1  # like -1 it asks for a random seed: it is what -1 becomes in llama.cpp
MAX_FLOAT = float(np.finfo(np.float32).max)
TINY = 1e-38  # the reciprocal of a repeat penalty must be finite in single precision

# option -> (lowest, highest) of the parameter with that name
RANGES: dict[str, tuple[str, float, float]] = {
    "seed": ("--seed", -1, MAX_SEED),
    "temp": ("--temp", 0, MAX_FLOAT),
    "dynatemp_range": ("--dynatemp-range", 0, MAX_FLOAT),
    "dynatemp_exponent": ("--dynatemp-exp", 0, MAX_FLOAT),
    "top_k": ("--top-k", -1, MAX_INT),
    "top_p": ("--top-p", 0, 1),
    "min_p": ("--min-p", 0, 1),
    "typ_p": ("--typical", 0, 1),
    "top_n_sigma": ("--top-n-sigma", -MAX_FLOAT, MAX_FLOAT),
    "xtc_probability": ("--xtc-probability", 0, 1),
    "xtc_threshold": ("--xtc-threshold", 0, 1),
    "penalty_last_n": ("--repeat-last-n", -1, MAX_INT),
    "penalty_repeat": ("--repeat-penalty", TINY, MAX_FLOAT),
    "penalty_freq": ("--frequency-penalty", -MAX_FLOAT, MAX_FLOAT),
    "penalty_present": ("--presence-penalty", -MAX_FLOAT, MAX_FLOAT),
    "dry_multiplier": ("--dry-multiplier", 0, MAX_FLOAT),
    "dry_base": ("--dry-base", 1, MAX_FLOAT),
    "dry_allowed_length": ("--dry-allowed-length", 0, MAX_INT),
    "dry_penalty_last_n": ("--dry-penalty-last-n", -1, MAX_INT),
    "mirostat": ("--mirostat", 0, 2),
    "mirostat_tau": ("--mirostat-ent", 0, MAX_FLOAT),
    "mirostat_eta": ("--mirostat-lr", 0, MAX_FLOAT),
    "adaptive_target": ("--adaptive-target", -1, 1),
    "adaptive_decay": ("--adaptive-decay", 0, 0.99),
    "min_keep": ("--min-keep", 0, MAX_INT),
}

# Keys that a model file may hold under `general.sampling.`; all but the sequence are named as the
# parameter.
FILE_KEYS = (
    "top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold", "temp", "penalty_last_n",
    "penalty_repeat", "mirostat", "mirostat_tau", "mirostat_eta",
)  # fmt: skip


@dataclass(frozen=True)
class SamplerParams:
    """How to choose tokens. Raises UsageError, naming the option and its range, for a value outside
    it.

    `seed` -1 is random. `penalty_last_n` and `dry_penalty_last_n`: 0 is off, -1 the whole text (in
    llama.cpp negative windows switch the step off). `top_k` 0 or less, `top_p` 1, `min_p` 0,
    `typ_p` 1, `top_n_sigma` 0 or less, `xtc_threshold` above 0.5 and `adaptive_target` below 0
    switch their step off. `order` names the steps before the token is chosen; `logit_bias` maps
    token ids to what is added.
    """

    seed: int = -1
    temp: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typ_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    penalty_last_n: int = 64
    penalty_repeat: float = 1.0
    penalty_freq: float = 0.0
    penalty_present: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    min_keep: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    order: tuple[str, ...] = DEFAULT_ORDER

    def __post_init__(self) -> None:
        for name, (option, low, high) in RANGES.items():
            whole = isinstance(getattr(type(self), name), int)
            _check(option, getattr(self, name), low, high, whole=whole)
        for token, bias in self.logit_bias.items():
            if not isinstance(token, int) or token < 0:
                raise UsageError(f"--logit-bias: {token!r} is not a token id (0 or more)")
            if math.isnan(bias) or bias == math.inf:
                raise UsageError(f"--logit-bias {token}: {bias} is not a finite number or -inf")

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], **user: Any) -> SamplerParams:
        """Defaults of the model file (`general.sampling.*`), under what the `user` set (None: not
        set).

        A file's value that is no number or out of range is left out with a warning; a user's raises
        UsageError.
        """
        chosen = {name: value for name, value in user.items() if value is not None}
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(chosen) - known):
            raise UsageError(f"no such sampling parameter: {', '.join(unknown)}")
        for name in FILE_KEYS:
            value = metadata.get(f"general.sampling.{name}")
            if name not in chosen and value is not None:
                _take_file_value(name, value, chosen)
        sequence = metadata.get("general.sampling.sequence")
        if "order" not in chosen and isinstance(sequence, str) and sequence:
            chosen["order"] = parse_order(sequence, strict=False)
        return cls(**chosen)


def _take_file_value(name: str, value: Any, chosen: dict[str, Any]) -> None:
    """Put a model file's default into `chosen`, or warn that it cannot be used."""
    option, low, high = RANGES[name]
    whole = isinstance(getattr(SamplerParams, name), int)
    try:
        number = int(value) if whole else float(value)
        _check(option, number, low, high, whole=whole)
    except (TypeError, ValueError, OverflowError, UsageError):
        log.warning("the file's general.sampling.%s = %r cannot be used; ignored", name, value)
        return
    chosen[name] = number


def _check(option: str, value: Any, low: float, high: float, *, whole: bool) -> None:
    """UsageError unless `value` is a number in [low, high] (and a whole one if asked)."""
    kind = "a whole number" if whole else "a number"
    fits = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not fits or not low <= value <= high:  # NaN compares false
        raise UsageError(f"{option} {value!r}: must be {kind} {_range_text(low, high)}")


def _range_text(low: float, high: float) -> str:
    """`from 0 to 1`, `0 or more`, `that is finite`."""
    if low == -MAX_FLOAT:
        return "that is finite"
    if low == TINY:
        return "above 0"
    if high in (MAX_INT, MAX_FLOAT):
        return f"{low:g} or more"
    return f"from {low:.10g} to {high:.10g}"
