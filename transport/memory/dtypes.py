"""The element types that a handle can name. Pure; imports nothing.

A name is torch's without the prefix, which is numpy's where numpy has the type. Types of less than
a byte and quantized ones have no place here: they travel as uint8.
"""

from __future__ import annotations

ITEMSIZES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,  # two numbers in a byte; torch counts the bytes as elements
}
"""Bytes per element by canonical name."""

# Buffer protocol (PEP 3118) codes in native size, as memoryview.format gives them. Plain byte
# formats ("B", "b", "c") are untyped: a bytearray is only bytes.
BUFFER_FORMATS: dict[str, str] = {
    "?": "bool",
    "h": "int16",
    "H": "uint16",
    "i": "int32",
    "I": "uint32",
    "l": "int64",
    "L": "uint64",
    "q": "int64",
    "Q": "uint64",
    "e": "float16",
    "f": "float32",
    "d": "float64",
    "Zf": "complex64",
    "Zd": "complex128",
}
