"""How engines find, prove and describe each other: addresses, the secret, the handshake, liveness.

May import ffi, config, types and errors; never memory, a provider or the engine. Providers reach it
as objects that meet providers.base.
"""
