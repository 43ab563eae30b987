"""From the bytes of generated tokens to text that may be shown: whole characters, no part of a
stop.

A character whose bytes come from several tokens is emitted when it is complete; bytes that are no
UTF-8 become U+FFFD exactly as `bytes.decode(errors="replace")` makes them of the whole text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from llamapy.runtime.stop import StopMatcher


class TextStream:
    """Turns pieces of bytes into pieces of text until a stop appears; `raw` holds all bytes."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.raw = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matcher = StopMatcher(stops)

    @property
    def stopped_by(self) -> str | None:
        """The stop that ended the text, if one did."""
        return self._matcher.matched

    def push(self, piece: bytes) -> tuple[str, bool]:
        """(text to show now, whether a stop ended it)."""
        self.raw += piece
        return self._matcher.push(self._decoder.decode(piece))

    def finish(self) -> str:
        """The rest when generation ends without a stop: what was held back, a character cut off."""
        text, stopped = self._matcher.push(self._decoder.decode(b"", final=True))
        return text if stopped else text + self._matcher.flush()
