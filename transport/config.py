"""Every setting: one table of names, types, defaults and help. Imports kinds and errors only.

Each field of Settings is the environment variable TRANSPORT_<FIELD IN CAPITALS>, but for
GPU_PLATFORM.
"""

# ruff: noqa: RUF009  (_setting returns a dataclasses.field)

from __future__ import annotations

import dataclasses
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport import kinds
from transport.errors import InvalidUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

PREFIX = "TRANSPORT_"

_log = logging.getLogger("transport")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str  # of the environment variable
    attribute: str
    kind: str  # what to write into the variable, in words
    default: str
    help: str
    hidden: bool  # a value that must never be shown


def _setting(default: Any, kind: kinds.Kind, text: str, *, hidden: bool = False) -> Any:
    metadata = {"kind": kind, "help": text, "hidden": hidden}
    return field(default=default, metadata=metadata, repr=not hidden)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one engine. Checked when made: InvalidUse names the variable."""

    secret: str | None = _setting(
        None,
        kinds.TEXT,
        "the job's shared secret as text; prefer a file, for others may see an environment",
        hidden=True,
    )
    secret_file: Path | None = _setting(
        None, kinds.PATH, "file with the job's shared secret, readable by its owner only"
    )
    deadline: float = _setting(
        60.0, kinds.FOREVER, "after this long a transfer without its own deadline fails"
    )
    connect_timeout: float = _setting(
        10.0, kinds.SECONDS, "finding, proving and describing a peer must end within this"
    )
    liveness: float = _setting(10.0, kinds.SECONDS, "a peer that is silent for this long is lost")
    collectives_table: Path | None = _setting(
        None,
        kinds.PATH,
        "which carrier is for which collective, as `transport bench collectives --save` writes it;"
        " that of rank 0 counts",
    )
    close_timeout: float = _setting(
        5.0, kinds.SECONDS, "closing a region waits this long for peers that still touch it"
    )
    progress: str = _setting(
        "adaptive",
        kinds.choice("adaptive", "poll", "event"),
        "how a caller waits: adaptive polls for as long as a sleep would cost and then sleeps, "
        "poll never sleeps and takes a CPU, event sleeps at once",
    )
    inline_bytes: int = _setting(
        64 << 10, kinds.size(0, 1 << 40), "copies up to this size run inside the submitting call"
    )
    chunk_bytes: int = _setting(
        1 << 20,
        kinds.size(4096, 1 << 30),
        "larger copies and stream frames are cut into such pieces",
    )
    copy_threads: int = _setting(
        0,
        kinds.count(0, 8),
        "threads that copy a large block within this host, the waiting one and the engine's own "
        "among them; 0: as many as CPUs, at most 4, the others only where CPUs are idle",
    )
    stream_window: int = _setting(64, kinds.count(1, 65536), "requests in flight on one stream")
    notify_depth: int = _setting(
        64, kinds.count(1, 4096), "notifications that one peer may have unread here"
    )
    max_regions: int = _setting(
        1 << 20, kinds.count(16, 1 << 28), "regions that this engine may have at once"
    )
    register_threads: int = _setting(
        0,
        kinds.count(0, 64),
        "threads that fault in and register a large region; 0: as many as CPUs, at most 16",
    )
    register_prefault: int = _setting(
        256 << 20,
        kinds.size(0, 1 << 62),
        "regions of at least this size have their pages faulted in, by several threads, before "
        "RDMA devices register them; 0 leaves it to the devices",
    )
    register_step: int = _setting(
        1 << 30,
        kinds.size(1 << 16, 1 << 40),
        "registering a large region tells its progress, and can be interrupted, every so often",
    )
    reshard_inflight: int = _setting(
        1 << 30,
        kinds.size(1 << 20, 1 << 50),
        "bytes that one Execution of a sharded plan has in flight at a time",
    )
    reshard_staging: int = _setting(
        64 << 20,
        kinds.size(1 << 16, 1 << 40),
        "memory of one Execution that converts dtypes, for elements on their way",
    )
    mesh_inline: int = _setting(
        512 << 10,
        kinds.size(0, 1 << 24),
        "so many bytes of a call's tensors, the smallest ones first, travel in its message; the "
        "others are read by the engine",
    )
    mesh_lease: float = _setting(
        60.0,
        kinds.SECONDS,
        "a RemoteTensor that is on its way for this long, and that nobody has, is taken back",
    )
    mesh_room: int = _setting(
        256 << 20,
        kinds.size(0, 1 << 40),
        "a process of a mesh keeps so much memory ready, at most, for the tensors of the next call "
        "or result from another on the same host; 0 for none",
    )
    mesh_rooms: int = _setting(
        1 << 30,
        kinds.size(0, 1 << 50),
        "memory that a process keeps ready so, at most, for all others",
    )
    mesh_room_idle: float = _setting(
        5.0,
        kinds.SECONDS,
        "memory that is kept ready so, and not used for so long, is given back",
    )
    huge_pages: str = _setting(
        "transparent",
        kinds.choice("transparent", "reserved", "none"),
        "pages of pool memory: transparent huge pages where shmem_enabled allows, reserved ones "
        "(vm.nr_hugepages; none left is an error), or small ones",
    )
    gpu_direct: str = _setting(
        "prefer",
        kinds.choice("prefer", "require", "off"),
        "how NICs reach GPU memory: prefer lets them where they can, require makes it an error "
        "where none can and forbids that it goes through host memory, off keeps NICs away from it",
    )
    providers: tuple[str, ...] = _setting(
        ("gpu_ipc", "shm", "verbs", "tcp", "staged"),
        kinds.NAMES,
        "ways to move bytes, most wanted first",
    )
    tcp_streams: int = _setting(
        4,
        kinds.count(1, 16),
        "TCP sockets for each peer, the others opened once a large transfer needs them; both ends "
        "use the lesser",
    )
    tcp_threads: int = _setting(
        2,
        kinds.count(1, 2),
        "threads that move what several TCP streams carry, where the process may use as many CPUs",
    )
    tcp_interfaces: tuple[str, ...] = _setting(
        (),
        kinds.INTERFACES,
        "interfaces (eth0) or networks (10.1.0.0/16) of this host that TCP uses, ^docker0 for all "
        "but one; which addresses peers are told when listening on all, and which of theirs are "
        "tried; default all but those of containers and tunnels",
    )
    tcp_buffer: int = _setting(
        0,
        kinds.size(0, 1 << 30),
        "buffer of each TCP socket, each way, as far as net.core.wmem_max and rmem_max allow; 0 "
        "leaves it to the kernel, which sizes it by the path",
    )
    verbs_lib: str | None = _setting(None, kinds.TEXT, "libibverbs to load instead of the system's")
    verbs_devices: tuple[str, ...] = _setting(
        (),
        kinds.FEW_NAMES,
        "RDMA devices to use, most wanted first (mlx5_0, or mlx5_0:2 for one port); "
        "^mlx5_3 leaves one out; default all",
    )
    verbs_rails: int = _setting(
        8, kinds.count(1, 8), "ports that one engine uses at most, the best first"
    )
    verbs_nic_map: tuple[tuple[str, tuple[str, ...]], ...] = _setting(
        (),
        kinds.NIC_MAP,
        "devices to use for memory by where it is (gpu0=mlx5_0,mlx5_1;cpu:1=mlx5_2), instead of "
        "the nearest by PCIe and NUMA",
    )
    verbs_gid_index: int = _setting(-1, kinds.count(-1, 255), "GID table index to use; -1 chooses")
    verbs_gid: IPv4Address | IPv6Address | None = _setting(
        None, kinds.ADDRESS, "the address whose GID to use, wherever it is in the table"
    )
    verbs_gid_subnet: tuple[IPv4Network | IPv6Network, ...] = _setting(
        (), kinds.NETWORKS, "networks that the GID must be of; the first that a port has wins"
    )
    verbs_pkey: int | None = _setting(
        None, kinds.PKEY, "P_Key to use, by value; default the first of the port's table"
    )
    verbs_service_level: int = _setting(
        0, kinds.count(0, 15), "service level; on RoCE the VLAN priority, 0 to 7"
    )
    verbs_traffic_class: int = _setting(
        0, kinds.count(0, 255), "traffic class of the packets: DSCP times 4, plus the ECN bits"
    )
    verbs_hop_limit: int = _setting(
        64, kinds.count(1, 255), "routers that a packet may pass, plus 1"
    )
    verbs_mtu: int = _setting(
        0, kinds.MTU, "most payload of one packet; 0 takes the port's; both ends use the lesser"
    )
    verbs_timeout: int = _setting(
        14,
        kinds.count(1, 31),
        "a lost packet is sent again after 4.096 us * 2^this, or up to four times as long",
    )
    verbs_retry_count: int = _setting(
        7, kinds.count(0, 7), "times that a packet is sent again before its queue pair fails"
    )
    verbs_rnr_retry: int = _setting(
        6, kinds.count(0, 6), "times that a receiver may say that it is not ready (RNR)"
    )
    verbs_rnr_timer: int = _setting(
        14,
        kinds.count(0, 31),
        "how long a peer is asked to wait when this side is not ready: the code of the "
        "InfiniBand specification (14 is 1.28 ms)",
    )
    verbs_qps_per_peer: int = _setting(
        1, kinds.count(1, 32), "queue pairs for each pair of rails; both ends use the lesser"
    )
    verbs_idle_qps: int = _setting(
        1024,
        kinds.count(0, 65536),
        "queue pairs that may be open while nobody uses them; of more, those idle for the longest "
        "time are closed, and open again when they are used",
    )
    verbs_idle_time: float = _setting(
        60.0,
        kinds.seconds(1e-3),  # what is over the limit is looked at as often
        "queue pairs that neither end has used for this long are idle",
    )
    verbs_recovery: float = _setting(
        10.0,
        kinds.SECONDS,
        "transfers whose rails all failed wait this long for one to return, or another provider",
    )
    verbs_piece_bytes: int = _setting(
        1 << 20,
        kinds.size(4096, 1 << 30),
        "a work request moves at most this much: a small transfer waits for one of them",
    )
    verbs_window_bytes: int = _setting(
        32 << 20, kinds.size(4096, 1 << 40), "posted and not completed, for each queue pair"
    )
    verbs_depth: int = _setting(
        256, kinds.count(4, 32768), "work requests in flight on one queue pair"
    )
    verbs_inline_bytes: int = _setting(
        64, kinds.size(0, 4096), "payloads up to this size travel inside the work request"
    )
    verbs_region_bytes: int = _setting(
        0,
        kinds.size(0, 1 << 62),
        "larger regions are registered in parts of this size, several at once (handles then carry "
        "a key for each); 0: what the devices take at once",
    )
    verbs_relaxed_ordering: str = _setting(
        "auto",
        kinds.choice("auto", "on", "off"),
        "whether PCIe may reorder the NIC's writes to host memory; auto where the device and the "
        "kernel can",
    )
    gpu_platform: str = _setting(
        "any",
        kinds.choice("any", "cuda", "rocm", "none"),
        "whose GPUs to use, once in a process; any: those of the driver that the process has "
        "loaded, or of whichever has devices",
    )
    cuda_lib: str | None = _setting(None, kinds.TEXT, "CUDA driver to load, not libcuda.so.1")
    hip_lib: str | None = _setting(None, kinds.TEXT, "HIP runtime to load, not libamdhip64.so")
    hsa_lib: str | None = _setting(
        None, kinds.TEXT, "HSA runtime to load for dma-bufs before ROCm 7"
    )
    nccl_lib: str | None = _setting(None, kinds.TEXT, "NCCL to load, not torch's or libnccl.so.2")
    rccl_lib: str | None = _setting(None, kinds.TEXT, "RCCL to load, not torch's or librccl.so.1")
    verbs_sysfs: Path = _setting(
        Path("/sys"), kinds.FILLED_PATH, "where sysfs is mounted (a recorded tree, for tests)"
    )
    call_deadline: float = _setting(
        600.0,
        kinds.FOREVER,
        "an actor that has not answered a call after this long hangs: the call fails and its "
        "process is ended; options(deadline=) for one call",
    )
    spawn_deadline: float = _setting(
        300.0,
        kinds.FOREVER,
        "an actor whose __init__ has not returned after this long hangs, as in a call",
    )
    heartbeat: float = _setting(
        2.0, kinds.seconds(0.05), "processes of a mesh are asked so often whether they live"
    )
    heartbeat_timeout: float = _setting(
        30.0,
        kinds.seconds(0.1),
        "a process of a mesh that is silent for this long is lost; one that keeps Python's lock "
        "in a call into C is silent",
    )
    start_timeout: float = _setting(
        120.0, kinds.SECONDS, "processes of a mesh must have started within this"
    )
    allow_ptracer: str = _setting(
        "",
        kinds.PTRACER,
        "who may copy from this process's memory under Yama (PR_SET_PTRACER)",
    )
    mesh_on: str = _setting(
        "local",
        kinds.choice("local", "ranks", "ray", "monarch"),
        "where transport.processes() starts them when the program does not say",
    )
    mesh_address: str | None = _setting(
        None,
        kinds.TEXT,
        "host:port where the first process of a job that a launcher started listens for the "
        "others; by default what the launcher tells, and a port made from the job's name",
    )
    mesh_processes: int = _setting(
        1,
        kinds.count(1, 4096),
        "processes of a mesh on this machine, when the program does not say; for each process that "
        "a launcher started, or each of Ray's agents",
    )
    log_level: str = _setting(
        "",
        kinds.LEVEL,
        "level of the logger named transport; empty leaves it",
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value, kind = getattr(self, item.name), item.metadata["kind"]
            wrong = kind.check(value)
            if wrong:
                shown = "" if item.metadata["hidden"] else f", not {value!r}"
                raise InvalidUse(f"{variable(item.name)} {wrong}{shown}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Reads the environment; `overrides` (by attribute) win. An empty variable is unset."""
        source = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for item in dataclasses.fields(cls):
            text = source.get(variable(item.name), "")
            if text and item.name not in overrides:
                values[item.name] = _read(item.name, text, item.metadata["kind"])
        _warn_unknown(source)
        unknown = overrides.keys() - {item.name for item in dataclasses.fields(cls)}
        if unknown:
            raise InvalidUse(f"there is no setting named {', '.join(sorted(unknown))}")
        return cls(**values, **overrides)

    @classmethod
    def survey(cls, environ: Mapping[str, str]) -> tuple[Settings, dict[str, str]]:
        """For reports: what `from_env` would give, with the default where a variable makes no
        sense; and those variables, each with what is wrong with it.
        """
        wrong: dict[str, str] = {}
        for item in dataclasses.fields(cls):
            name = variable(item.name)
            try:
                cls.from_env({name: environ.get(name, "")})
            except InvalidUse as error:
                wrong[name] = str(error).removeprefix(f"{name} ")
        rest = {name: text for name, text in environ.items() if name not in wrong}
        return cls.from_env(rest), wrong

    def for_others(self) -> dict[str, str]:
        """Variables for processes that are started with this process's environment: what was set
        otherwise than by that. Without secrets, and where they are kept."""
        own, found = Settings.from_env(), dict[str, str]()
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.metadata["hidden"] or item.name == "secret_file":
                continue
            if value not in (item.default, getattr(own, item.name)):
                # Sizes are shown rounded, but read in digits as well.
                text = str(value) if isinstance(value, int) else item.metadata["kind"].show(value)
                found[variable(item.name)] = str(text)
        return found

    def shown(self, attribute: str) -> str:
        """A setting's value as text for reports; what is secret is only said to be set or not."""
        item = next(item for item in dataclasses.fields(self) if item.name == attribute)
        value = getattr(self, attribute)
        if item.metadata["hidden"]:
            return "(set)" if value is not None else "(not set)"
        return str(item.metadata["kind"].show(value))


def variable(attribute: str) -> str:
    """The environment variable of a setting."""
    return _SHARED_NAMES.get(attribute, PREFIX + attribute.upper())


# Names that other programs of the field read as well.
_SHARED_NAMES = {"gpu_platform": "GPU_PLATFORM"}


# Read by our build and tests, or for information only.
_OTHERS = frozenset(
    PREFIX + name for name in ("REQUIRE", "SANITIZE", "WERROR", "VERBS_HEADERS", "RIG")
)
_warned: set[str] = set()


def unknown_variables(environ: Iterable[str]) -> dict[str, str]:
    """Names with our prefix that nobody reads, and the known name that each may have meant."""
    from difflib import get_close_matches

    known = [row.name for row in TABLE]
    names = {name for name in environ if name.startswith(PREFIX)} - _OTHERS - set(known)
    meant = {PREFIX + name: name for name in _SHARED_NAMES.values()}
    return {
        name: meant.get(name) or (get_close_matches(name, known, 1, 0.0) or [""])[0]
        for name in sorted(names)
    }


def _warn_unknown(environ: Mapping[str, str]) -> None:
    """Once for each name: a misspelt variable is silent otherwise."""
    for name, nearest in unknown_variables(environ).items():
        if name not in _warned:
            _warned.add(name)
            _log.warning("%s is no setting; the nearest is %s", name, nearest)


def _read(attribute: str, text: str, kind: kinds.Kind) -> Any:
    try:
        return kind.parse(text)
    except ValueError:
        raise InvalidUse(f"{variable(attribute)} must be {kind.words}, not {text!r}") from None


def _row(item: dataclasses.Field[Any]) -> Setting:
    kind, hidden = item.metadata["kind"], item.metadata["hidden"]
    default = "" if hidden else str(kind.show(item.default))
    return Setting(
        variable(item.name), item.name, kind.words, default, item.metadata["help"], hidden
    )


TABLE: tuple[Setting, ...] = tuple(_row(item) for item in dataclasses.fields(Settings))
"""All settings in the order in which reports print them."""
