"""Where bytes live: views of host memory, regions and rights to them, the pool of shared memory.

May import ffi, config, types and errors; not providers, control or the engine.
"""
