"""The CPU: a graph compiled to node records that one native call walks."""
