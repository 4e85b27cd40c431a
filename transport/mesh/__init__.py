"""Actors: one program that drives many processes, and hears of it when one dies.

May import sharding, engine, control, memory and what lies below them. Neither torch, numpy nor the
native module is imported before a tensor moves: a process of actors without tensors needs none.
"""
