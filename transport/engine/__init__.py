"""Engines: transfers between local memory and regions of peers, and what surrounds them.

May import providers, control, memory, ffi, config, types and errors; nothing above.
"""
