"""The names a user may import, and nothing else.

Every name is loaded when it is first asked for (PEP 562), so that `import transport` costs neither
torch nor numpy nor the native module. May import: nothing at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transport import sharding as sharding
    from transport import weights as weights
    from transport.collectives.communicator import Communicator as Communicator
    from transport.collectives.operation import Operation as Operation
    from transport.collectives.reduction import Premultiplied as Premultiplied
    from transport.config import Settings as Settings
    from transport.engine.adopt import Adopted as Adopted
    from transport.engine.atomics import AtomicTransfer as AtomicTransfer
    from transport.engine.batch import Read as Read
    from transport.engine.batch import Write as Write
    from transport.engine.blocks import Blocks as Blocks
    from transport.engine.engine import Engine as Engine
    from transport.engine.grant import Grant as Grant
    from transport.engine.mapping import Mapping as Mapping
    from transport.engine.notifications import Notification as Notification
    from transport.engine.notifications import Notifications as Notifications
    from transport.engine.peer import Lane as Lane
    from transport.engine.peer import Peer as Peer
    from transport.engine.prepared import Prepared as Prepared
    from transport.engine.rail import Rail as Rail
    from transport.engine.transfer import Transfer as Transfer
    from transport.errors import ActorCrashed as ActorCrashed
    from transport.errors import ActorError as ActorError
    from transport.errors import Cancelled as Cancelled
    from transport.errors import CudaError as CudaError
    from transport.errors import DeadlineExceeded as DeadlineExceeded
    from transport.errors import HipError as HipError
    from transport.errors import InvalidUse as InvalidUse
    from transport.errors import LayoutError as LayoutError
    from transport.errors import NativeError as NativeError
    from transport.errors import NcclError as NcclError
    from transport.errors import OutOfRange as OutOfRange
    from transport.errors import PeerError as PeerError
    from transport.errors import PeerLost as PeerLost
    from transport.errors import PeerRefused as PeerRefused
    from transport.errors import RankLost as RankLost
    from transport.errors import RemoteAccessError as RemoteAccessError
    from transport.errors import StaleRegion as StaleRegion
    from transport.errors import TransferError as TransferError
    from transport.errors import TransportError as TransportError
    from transport.errors import Unavailable as Unavailable
    from transport.errors import VerbsError as VerbsError
    from transport.errors import VersionGone as VersionGone
    from transport.errors import VersionMismatch as VersionMismatch
    from transport.errors import VersionMoved as VersionMoved
    from transport.memory.backing import Backing as Backing
    from transport.memory.gpu_array import GpuArray as GpuArray
    from transport.memory.mempool import gpu_pool as gpu_pool
    from transport.memory.region import Region as Region
    from transport.memory.remote import RemoteRegion as RemoteRegion
    from transport.mesh.actor import Actor as Actor
    from transport.mesh.actor import endpoint as endpoint
    from transport.mesh.actor_mesh import ActorMesh as ActorMesh
    from transport.mesh.call import Endpoint as Endpoint
    from transport.mesh.communicator import communicator as communicator
    from transport.mesh.context import current_rank as current_rank
    from transport.mesh.future import Future as Future
    from transport.mesh.hosts.choice import processes as processes
    from transport.mesh.hosts.local import local as local
    from transport.mesh.own import this_proc as this_proc
    from transport.mesh.process_mesh import ProcessMesh as ProcessMesh
    from transport.mesh.remote_tensor import RemoteTensor as RemoteTensor
    from transport.mesh.shape import Point as Point
    from transport.mesh.sharded import Sharded as Sharded
    from transport.mesh.stream import Stream as Stream
    from transport.mesh.supervision import Policy as Policy
    from transport.mesh.values import ValueMesh as ValueMesh
    from transport.sharding.execute import Execution as Execution
    from transport.sharding.layout import Layout as Layout
    from transport.sharding.mesh import Mesh as Mesh
    from transport.sharding.placement import Replicate as Replicate
    from transport.sharding.placement import Shard as Shard
    from transport.sharding.placement import StridedShard as StridedShard
    from transport.sharding.places import Places as Places
    from transport.sharding.plan import Plan as Plan
    from transport.sharding.plan import plan as plan
    from transport.sharding.run import Report as Report
    from transport.sharding.state import StateLayout as StateLayout
    from transport.types import Access as Access
    from transport.types import Viability as Viability

    __version__: str

# Where each public name lives. tests/unit/test_names.py keeps it equal to the imports above.
_HOMES = {
    "Access": "types",
    "Actor": "mesh.actor",
    "ActorCrashed": "errors",
    "ActorError": "errors",
    "ActorMesh": "mesh.actor_mesh",
    "Adopted": "engine.adopt",
    "AtomicTransfer": "engine.atomics",
    "Backing": "memory.backing",
    "Blocks": "engine.blocks",
    "Cancelled": "errors",
    "Communicator": "collectives.communicator",
    "CudaError": "errors",
    "DeadlineExceeded": "errors",
    "Endpoint": "mesh.call",
    "Engine": "engine.engine",
    "Execution": "sharding.execute",
    "Future": "mesh.future",
    "GpuArray": "memory.gpu_array",
    "Grant": "engine.grant",
    "HipError": "errors",
    "InvalidUse": "errors",
    "Lane": "engine.peer",
    "Layout": "sharding.layout",
    "LayoutError": "errors",
    "Mapping": "engine.mapping",
    "Mesh": "sharding.mesh",
    "NativeError": "errors",
    "NcclError": "errors",
    "Notification": "engine.notifications",
    "Notifications": "engine.notifications",
    "Operation": "collectives.operation",
    "OutOfRange": "errors",
    "Peer": "engine.peer",
    "PeerError": "errors",
    "PeerLost": "errors",
    "PeerRefused": "errors",
    "Places": "sharding.places",
    "Plan": "sharding.plan",
    "Point": "mesh.shape",
    "Premultiplied": "collectives.reduction",
    "Prepared": "engine.prepared",
    "Policy": "mesh.supervision",
    "ProcessMesh": "mesh.process_mesh",
    "Rail": "engine.rail",
    "RankLost": "errors",
    "Read": "engine.batch",
    "Region": "memory.region",
    "RemoteAccessError": "errors",
    "RemoteRegion": "memory.remote",
    "RemoteTensor": "mesh.remote_tensor",
    "Replicate": "sharding.placement",
    "Report": "sharding.run",
    "Settings": "config",
    "Shard": "sharding.placement",
    "Sharded": "mesh.sharded",
    "StaleRegion": "errors",
    "StateLayout": "sharding.state",
    "Stream": "mesh.stream",
    "StridedShard": "sharding.placement",
    "Transfer": "engine.transfer",
    "TransferError": "errors",
    "TransportError": "errors",
    "Unavailable": "errors",
    "ValueMesh": "mesh.values",
    "VerbsError": "errors",
    "VersionGone": "errors",
    "VersionMismatch": "errors",
    "VersionMoved": "errors",
    "Viability": "types",
    "Write": "engine.batch",
    "communicator": "mesh.communicator",
    "current_rank": "mesh.context",
    "endpoint": "mesh.actor",
    "gpu_pool": "memory.mempool",
    "local": "mesh.hosts.local",
    "processes": "mesh.hosts.choice",
    "plan": "sharding.plan",
    "this_proc": "mesh.own",
}

# Public names that are modules, with names of their own.
_MODULES = frozenset(("sharding", "weights"))

__all__ = ["__version__", *_HOMES, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Loads a public name on first use; afterwards it is an ordinary attribute."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("tensor-transport")
    elif name in _HOMES or name in _MODULES:
        from importlib import import_module

        value = import_module(f"transport.{_HOMES.get(name, name)}")
        value = value if name in _MODULES else getattr(value, name)
    else:
        raise AttributeError(f"module 'transport' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
