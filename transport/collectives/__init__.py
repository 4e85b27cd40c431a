"""Collective operations of a group of processes, and groups that shrink instead of dying.

`communicator` is what users see, `call` is what it hands down, and each `carrier` is one way to
carry it out: NCCL or RCCL, gloo, or one-sided transfers of our own.
May import sharding, engine and below.
"""
