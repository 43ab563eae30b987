"""What is to be computed: tensors, ops, and the graph in order. Knows no backend and no memory
plan."""

from llamapy.graph.builder import Builder
from llamapy.graph.graph import Graph
from llamapy.graph.op import Op
from llamapy.graph.tensor import INPUT, OUTPUT, PARAM, Tensor

__all__ = ["INPUT", "OUTPUT", "PARAM", "Builder", "Graph", "Op", "Tensor"]
