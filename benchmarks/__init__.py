"""Studies and regression runs. Sees every room; nothing imports it, and no wheel has it.

Run from the root of the tree: `python -m benchmarks.p2p.measures`, `pytest benchmarks/micro`.
"""
