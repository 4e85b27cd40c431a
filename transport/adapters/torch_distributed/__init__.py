"""`torch.distributed.init_process_group("transport")`: collectives and messages of torch.

Importing this package registers the backend, which torch 2.13 needs; from 2.14 on torch finds it
by its entry point. May import collectives, engine and below. Needs torch 2.13 or newer.
"""

from __future__ import annotations

from transport.adapters.torch_distributed.registration import register

__all__ = ["register"]

register()
