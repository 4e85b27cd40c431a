"""Which rank holds which part of a tensor, and the copies that turn one such layout into another.

Pure arithmetic in numpy: no torch and no I/O, and nothing but `execute` touches an engine. May
import memory.dtypes, types and errors.
"""
