"""Shipped for authors of providers and adapters: the contract suite and helpers to run processes.

May import everything of the package, pytest and numpy; nothing of the package imports it.
"""
