"""When and where a graph is computed: memory, placement, order. Knows no model."""

from llamapy.engine.execute import Engine, Execution
from llamapy.engine.memory import Allocator, Layout
from llamapy.engine.schedule import Plan, Schedule, Split

__all__ = ["Allocator", "Engine", "Execution", "Layout", "Plan", "Schedule", "Split"]
