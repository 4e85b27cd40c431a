"""Sharded tensors moved into other layouts: studies and regression runs."""
