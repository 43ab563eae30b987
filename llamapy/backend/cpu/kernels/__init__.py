"""One file is one kernel (or one small family): OPS that it computes, `plan(node, machine)`, the
compiled function.

A kernel's file depends on the node records (`record`), the ways to share work (`sync`) and the
values of tensor types
(`values`), never on another kernel's file.
"""
