"""One RC queue pair as other people's packages make it: Debian's pyverbs, and `ibverbs` of PyPI.

May import those two and numpy; nothing of ours. The two classes do the same, so that a test can
be told which to use.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

GID_INDEX, PORT, DEPTH = 1, 1, 64
READS = 16
SEQUENCE = 4711  # of our first packet


class Completion(NamedTuple):
    """Of a receive, where `received`; `immediate` is in the order of the host."""

    status: int
    received: bool
    immediate: int
    nbytes: int


class Pyverbs:
    def __init__(self, device):
        import pyverbs.enums as e
        from pyverbs.cq import CQ
        from pyverbs.device import Context
        from pyverbs.pd import PD
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

        self._e = e
        self._context = Context(name=device)
        self._pd = PD(self._context)
        self._cq = CQ(self._context, 4 * DEPTH)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=2 * DEPTH)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=cap)
        attr = QPAttr(port_num=PORT)
        attr.qp_access_flags = self._access
        self._qp = QP(self._pd, init, attr)
        self.number = self._qp.qp_num
        text = self._context.query_gid(PORT, GID_INDEX).gid
        self.gid = socket.inet_pton(socket.AF_INET6, text)
        self._regions = []

    @property
    def _access(self):
        e = self._e
        return e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE

    def register(self, array):
        """Its lkey and rkey."""
        from pyverbs.mr import MR

        mr = MR(self._pd, array.nbytes, self._access, array.ctypes.data)
        self._regions.append((mr, array))
        return mr.lkey, mr.rkey

    def connect(self, number, sequence, gid, mtu):
        from pyverbs.addr import GID, AHAttr, GlobalRoute
        from pyverbs.qp import QPAttr

        route = GlobalRoute(dgid=GID(gid.hex(":", 2)), sgid_index=GID_INDEX, hop_limit=64)
        attr = QPAttr(port_num=PORT)
        attr.qp_access_flags = self._access
        attr.path_mtu, attr.dest_qp_num, attr.rq_psn, attr.sq_psn = mtu, number, sequence, SEQUENCE
        attr.max_rd_atomic = attr.max_dest_rd_atomic = READS
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        attr.ah_attr = AHAttr(port_num=PORT, is_global=1, gr=route)
        self._qp.to_rtr(attr)
        self._qp.to_rts(attr)

    def expect(self, count):
        """Receives for immediates. Theirs must name memory; nothing is written to it."""
        import numpy as np
        from pyverbs.wr import SGE, RecvWR

        nowhere = np.zeros(8, np.uint8)
        lkey, _ = self.register(nowhere)
        for _ in range(count):
            sge = SGE(nowhere.ctypes.data, nowhere.nbytes, lkey)
            self._qp.post_recv(RecvWR(num_sge=1, sg=[sge]))

    def post(self, op, local, remote, length, immediate=None):
        """`local` and `remote` are an address and its key."""
        from pyverbs.wr import SGE, SendWR

        e = self._e
        codes = {"read": e.IBV_WR_RDMA_READ, "write": e.IBV_WR_RDMA_WRITE}
        code = codes[op] if immediate is None else e.IBV_WR_RDMA_WRITE_WITH_IMM
        wr = SendWR(
            opcode=code, num_sge=1, sg=[SGE(local[0], length, local[1])],
            imm_data=socket.htonl(immediate or 0), send_flags=e.IBV_SEND_SIGNALED,
        )  # fmt: skip
        wr.set_wr_rdma(remote[1], remote[0])
        self._qp.post_send(wr)

    def poll(self):
        found = self._cq.poll(16)[1]
        return [
            Completion(
                wc.status, bool(wc.opcode & self._e.IBV_WC_RECV), socket.ntohl(wc.imm_data),
                wc.byte_len,
            )
            for wc in found
        ]  # fmt: skip


class Ibverbs:
    def __init__(self, device):
        import ibverbs as ib

        self._ib = ib
        found = next(it for it in ib.get_device_list() if it.name == device)
        self._context = found.open()
        self._pd = self._context.alloc_pd()
        self._cq = self._context.create_cq(4 * DEPTH)
        init = ib.QPInitAttr(
            self._cq, self._cq, ib.QPType.RC, max_send_wr=DEPTH, max_recv_wr=2 * DEPTH
        )
        self._qp = self._pd.create_qp(init)
        self._qp.to_init(PORT, self._access)
        self.number = self._qp.qp_num
        self.gid = bytes(self._context.query_gid(PORT, GID_INDEX).raw)
        self._regions = []

    @property
    def _access(self):
        flags = self._ib.AccessFlags
        return flags.LOCAL_WRITE | flags.REMOTE_READ | flags.REMOTE_WRITE

    def register(self, array):
        mr = self._pd.reg_mr(array.ctypes.data, array.nbytes, self._access)
        self._regions.append((mr, array))
        return mr.lkey, mr.rkey

    def connect(self, number, sequence, gid, mtu):
        remote = self._ib.QPInfo(number, sequence, 0, gid, PORT, mtu)
        self._qp.to_rtr(remote, sgid_index=GID_INDEX, hop_limit=64, max_dest_rd_atomic=READS)
        self._qp.to_rts(SEQUENCE, max_rd_atomic=READS)

    def expect(self, count):
        self._qp.post_recv([self._ib.RecvWR() for _ in range(count)])

    def post(self, op, local, remote, length, immediate=None):
        ib = self._ib
        codes = {"read": ib.WROpcode.RDMA_READ, "write": ib.WROpcode.RDMA_WRITE}
        code = codes[op] if immediate is None else ib.WROpcode.RDMA_WRITE_WITH_IMM
        wr = ib.SendWR(
            sg_list=[ib.SGE(local[0], length, local[1])], opcode=code,
            send_flags=ib.SendFlags.SIGNALED, remote_addr=remote[0], rkey=remote[1],
            imm_data=immediate or 0,
        )  # fmt: skip
        self._qp.post_send([wr])

    def poll(self):
        received = int(self._ib.WCOpcode.RECV)
        return [
            Completion(int(wc.status), bool(int(wc.opcode) & received), wc.imm_data, wc.byte_len)
            for wc in self._cq.poll(16)
        ]


PACKAGES = {"pyverbs": Pyverbs, "ibverbs": Ibverbs}
