"""One end of a loop over Debian's pyverbs, for beside_perftest.py: what Python code without this
library would do. Needs nothing but python3-pyverbs.

    python pyverbs_side.py DEVICE

Says its facts, hears the other end's, and then runs a loop for every line.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

DEPTH = 128  # as perftest
GID_INDEX = 1
_BYTES = 4 << 20
_ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE
_OPCODES = {"read": e.IBV_WR_RDMA_READ, "write": e.IBV_WR_RDMA_WRITE}


class End:
    def __init__(self, device: str) -> None:
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.mr = MR(self.pd, _BYTES, _ACCESS)
        self.cq = CQ(self.context, DEPTH + 1)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))

    def facts(self) -> dict[str, Any]:
        gid = self.context.query_gid(1, GID_INDEX).gid
        return {"gid": gid, "qp": self.qp.qp_num, "rkey": self.mr.rkey, "address": self.mr.buf}

    def connect(self, peer: dict[str, Any]) -> None:
        from pyverbs.addr import GID

        route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=GID_INDEX)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = _ACCESS
        attr.path_mtu = e.IBV_MTU_4096
        attr.dest_qp_num = peer["qp"]
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 16
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        self.qp.to_rts(attr)
        self.peer = peer

    def run(self, op: str, size: int, messages: int) -> float:
        """Microseconds per message with DEPTH under way."""
        sge = SGE(self.mr.buf, size, self.mr.lkey)
        wr = SendWR(opcode=_OPCODES[op], num_sge=1, sg=[sge], send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_rdma(self.peer["rkey"], self.peer["address"])
        posted = done = 0
        begin = time.perf_counter()
        while done < messages:
            while posted < messages and posted - done < DEPTH:
                self.qp.post_send(wr)
                posted += 1
            count, completions = self.cq.poll(16)
            for completion in completions:
                if completion.status != e.IBV_WC_SUCCESS:
                    raise SystemExit(f"pyverbs: completion status {completion.status}")
            done += count
        return (time.perf_counter() - begin) / messages * 1e6


def main() -> None:
    end = End(sys.argv[1])
    print(json.dumps(end.facts()), flush=True)
    end.connect(json.loads(sys.stdin.readline()))
    print("{}", flush=True)
    for line in sys.stdin:
        row = json.loads(line)
        us = end.run(row["op"], row["size"], row["batch"] * row["submissions"])
        print(json.dumps({"us": us}), flush=True)


if __name__ == "__main__":
    main()
