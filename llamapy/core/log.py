"""Messages for people go to stderr through one logger; stdout belongs to data."""

from __future__ import annotations

import logging

log = logging.getLogger("llamapy")
