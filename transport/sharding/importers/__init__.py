"""Layouts from what others have: DTensors, FSDP1's flat parameters, safetensors files, tables.

May import the room's descriptions and errors. Torch is imported nowhere: its objects are recognised
by what they offer, so that a process without it can read files and tables.
"""
