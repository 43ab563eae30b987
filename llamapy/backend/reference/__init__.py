"""The backend that runs each op's numpy meaning: what every other backend is compared with."""

from llamapy.backend.reference.device import Reference

__all__ = ["Reference"]
