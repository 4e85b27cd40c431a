"""What `transport doctor` looks at: each check returns findings. May import config and facts.

A finding says what is, whether that is good, and what would help. Nothing here raises for what is
absent.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from transport.cli import doctor_gpu, doctor_rdma, facts, facts_rdma
from transport.cli.finding import Finding, judged
from transport.config import unknown_variables
from transport.types import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from transport.config import Settings

_SMALL_MEMLOCK = 64 << 20
_FEW_FILES = 4096


def all_findings(settings: Settings, root: Path = facts.ROOT) -> list[Finding]:
    """Every check, in the order of the report."""
    return [
        *machine(root),
        *libraries(settings),
        *rdma(root),
        *doctor_rdma.rails(settings),
        *doctor_gpu.gpus(settings, root),
        *limits(root),
        *same_host(root),
        *memory(root),
        *variables(os.environ),
    ]


def variables(environ: Iterable[str]) -> Iterator[Finding]:
    for name, nearest in unknown_variables(environ).items():
        yield Finding("environment", name, "note", "is no setting", f"did you mean {nearest}?")


def refused(wrong: Mapping[str, str]) -> Iterator[Finding]:
    """Variables with which no engine would open, and what is wrong with each."""
    for name, reason in wrong.items():
        remedy = "set it so, or unset it: engines refuse it, and this report has its default"
        yield Finding("environment", name, "missing", reason, remedy)


def machine(root: Path) -> Iterator[Finding]:
    about = facts.host(root)
    text = f"{about['cpu']}, {about['cores']} usable cores, {format_bytes(about['memory_bytes'])}"
    yield Finding("machine", "processor", "ok", text)
    features = " ".join(facts.cpu_features(root)) or "none of those that matter for copying"
    yield Finding("machine", "copy features", "ok", features)
    yield Finding("machine", "kernel", "ok", f"{about['kernel']} {about['machine']}")
    yield Finding("machine", "python", "ok", about["python"])
    yield Finding("machine", "tensor-transport", "ok", about["transport"])


def libraries(settings: Settings) -> Iterator[Finding]:
    """Foreign libraries are opened at first use; none is needed for shm and tcp."""
    name = settings.verbs_lib or "libibverbs.so.1"
    try:
        ctypes.CDLL(name)
    except OSError as error:
        remedy = "for RDMA: apt-get install ibverbs-providers (rdma-core), or TRANSPORT_VERBS_LIB"
        yield Finding("libraries", name, "missing", str(error), remedy)
        return
    path = mapped_file(Path(name).name)
    yield Finding("libraries", name, "ok", str(path) if path else "loaded")


def mapped_file(name: str, root: Path = facts.ROOT) -> Path | None:
    """The file behind a loaded library; its real name carries the version."""
    maps = facts.read(root / "proc/self/maps") or ""
    stem = re.escape(name.split(".so")[0])
    found = re.search(rf"(/\S*/{stem}[^/\s]*)$", maps, re.MULTILINE)
    return Path(found[1]) if found else None


def rdma(root: Path) -> Iterator[Finding]:
    obstacle = facts_rdma.obstacle(root)
    if obstacle is not None:
        yield Finding("rdma", "devices", "missing", *obstacle)
    for port in facts_rdma.ports(root):
        name = f"{port.device} port {port.number}"
        remedy = f"bring its network interface up; see `rdma link show {port.device}`"
        text = f"{port.state}, {port.link_layer}, {port.rate}"
        yield judged("rdma", name, text, "" if port.active else remedy)
        for gid in port.gids:
            text = f"{gid.address} {gid.kind} {gid.interface}".rstrip()
            yield judged("rdma", f"{name} GID {gid.index}", text, "")


def limits(root: Path) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    exempt = facts.has_capability(facts.CAP_IPC_LOCK, root)
    small = soft != resource.RLIM_INFINITY and soft < _SMALL_MEMLOCK and not exempt
    text = f"{_or_unlimited(soft, format_bytes)} (hard: {_or_unlimited(hard, format_bytes)})"
    if exempt:
        text += ", not applied to this process (CAP_IPC_LOCK)"
    remedy = "RDMA registers no more than this: ulimit -l unlimited, or LimitMEMLOCK=infinity"
    yield judged("limits", "locked memory", text, remedy if small else "")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{_or_unlimited(soft, str)} (hard: {_or_unlimited(hard, str)})"
    remedy = "every peer takes a few descriptors: ulimit -n 65536"
    yield judged("limits", "open files", text, remedy if soft < _FEW_FILES else "")


def _or_unlimited(value: int, show: Callable[[int], str]) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else show(value)


def same_host(root: Path) -> Iterator[Finding]:
    """What lets a peer on this host reach this process's memory."""
    yield _yama(facts.ptrace_scope(root), facts.has_capability(facts.CAP_SYS_PTRACE, root))
    dumpable = _prctl(_PR_GET_DUMPABLE)
    text = {0: "no", 1: "yes"}.get(dumpable, f"only for root ({dumpable})")
    remedy = "process_vm cannot reach this process; pool memory (engine.empty) is mapped instead"
    yield judged("same host", "dumpable", text, "" if dumpable == 1 else remedy)
    for kind, name in facts.namespaces(root).items():
        yield Finding("same host", f"{kind} namespace", "ok", name.partition(":")[2])
    mapped = facts.whole_user_namespace(root)
    text = " ".join((facts.read(root / "proc/self/uid_map") or "unknown").split())
    remedy = "peers in another user namespace may be refused process_vm"
    yield judged("same host", "uid map", text, "" if mapped else remedy)


def _yama(scope: int | None, privileged: bool) -> Finding:
    if scope is None:
        return judged("same host", "ptrace_scope", "no Yama in this kernel: the uid decides", "")
    if scope == 0:
        return judged("same host", "ptrace_scope", "0: the uid decides", "")
    remedy = "keep tensors in pool memory (engine.empty), which is mapped and needs no permission"
    if scope == 1:
        remedy += ", or set TRANSPORT_ALLOW_PTRACER where the memory is"
    text = f"{scope}: process_vm is restricted"
    if privileged:
        text += ", not for this process (CAP_SYS_PTRACE)"
    return judged("same host", "ptrace_scope", text, remedy)


_PR_GET_DUMPABLE = 3


def _prctl(option: int) -> int:
    return int(ctypes.CDLL(None).prctl(option, 0, 0, 0, 0))


def memory(root: Path) -> Iterator[Finding]:
    """What bounds pool memory, which lives in memfd files."""
    group = facts.memory_group(root)
    if group is None or group.limit is None:
        yield Finding("memory", "control group", "ok", "no limit" if group else "cannot tell")
    else:
        used = f"{format_bytes(group.used)} used of " if group.used is not None else ""
        text = f"{used}{format_bytes(group.limit)} ({group.path})"
        yield Finding("memory", "control group", "note", text, "pool memory counts towards it")
    shm = root / "dev/shm"
    if shm.is_dir():
        usage = shutil.disk_usage(shm)
        text = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}"
        yield Finding("memory", "/dev/shm", "ok", f"{text} (memfd is not bounded by it)")
    yield from _huge_pages(root)


def _huge_pages(root: Path) -> Iterator[Finding]:
    """What TRANSPORT_HUGE_PAGES can give pool memory."""
    folder = root / "sys/kernel/mm/transparent_hugepage"
    private, shared = (facts.read(folder / name) for name in ("enabled", "shmem_enabled"))
    if private is not None:
        yield Finding("memory", "huge pages enabled", "ok", private)
    if shared is not None:
        denied = "[never]" in shared or "[deny]" in shared
        remedy = f"pool memory gets small pages; to allow: echo advise > {folder}/shmem_enabled"
        yield judged("memory", "huge pages shmem_enabled", shared, remedy if denied else "")
    counts = dict(re.findall(r"(HugePages_\w+):\s+(\d+)", facts.read(root / "proc/meminfo") or ""))
    if "HugePages_Total" in counts:
        text = f"{counts.get('HugePages_Free', '?')} free of {counts['HugePages_Total']}"
        yield Finding("memory", "huge pages reserved", "ok", f"{text} (vm.nr_hugepages)")
