"""Errors for people: what a user can cause is a LlamapyError with a one-line message and a hint."""

from __future__ import annotations

from os import PathLike


class LlamapyError(Exception):
    """A fault with a message for a person. `hint` says what to do; `exit_code` is the process's."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(LlamapyError):
    """The command was misused: an unknown value, contradicting options, a missing argument."""

    exit_code = 2


class FileFormatError(LlamapyError):
    """A file is not what it should be. Names the file, the field and the byte offset."""

    def __init__(
        self,
        path: str | PathLike[str],
        message: str,
        *,
        field: str = "",
        offset: int | None = None,
        hint: str = "",
    ) -> None:
        where = f"{path}: " + (f"{field}: " if field else "")
        at = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{where}{message}{at}", hint=hint)
        self.path, self.field, self.offset = str(path), field, offset


class OutputError(LlamapyError):
    """An output cannot be written: it is an input, its folder is missing, the disk is full."""


class FetchError(LlamapyError):
    """A model cannot be fetched or kept: no pip, no network, another file, a read-only cache."""


class ModelError(LlamapyError):
    """A model file is sound as a container, but is not a model that llamapy can use."""


class ShapeError(ModelError):
    """A tensor has not the shape that is needed; the message gives both."""


class TokenizerError(ModelError):
    """The vocabulary cannot be used, or a text cannot be tokenized with it."""


class QuantError(LlamapyError):
    """Values cannot be quantized as asked (non-finite, rows that do not divide, unknown type)."""


class TemplateError(LlamapyError):
    """A chat template fails, takes too long or reaches for what it may not touch."""


class BatchError(LlamapyError):
    """A batch does not fit the context: ids, positions or sequences that cannot be."""


class ContextFullError(LlamapyError):
    """The context has no room for what was asked; the message gives both numbers."""


class Aborted(LlamapyError):
    """The user interrupted the work."""

    exit_code = 130
