"""Measures that need a GPU."""
