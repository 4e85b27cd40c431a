/* The whole C interface of tensor-transport, one noun per file: what bindings/ mirrors and nothing
 * else is visible.
 *
 * Conventions: functions return 0 or a positive count on success and a negative enum tn_status
 * otherwise; outputs are set only on success; the reason of the last failure on this thread is in
 * tn_last_error(). Times are nanoseconds of CLOCK_MONOTONIC; sizes are bytes. Any function may be
 * called from any thread unless it says otherwise. C never calls back into the caller's language.
 */
#ifndef TRANSPORT_NATIVE_H
#define TRANSPORT_NATIVE_H

#include "transport/status.h"
#include "transport/copy.h"
#include "transport/engine.h"
#include "transport/segment.h"
#include "transport/region.h"
#include "transport/memory.h"
#include "transport/peer.h"
#include "transport/map.h"
#include "transport/transfer.h"
#include "transport/blocks.h"
#include "transport/queue.h"
#include "transport/notification.h"
#include "transport/shm.h"
#include "transport/gpu_ipc.h"
#include "transport/staged.h"
#include "transport/verbs.h"
#include "transport/gpu.h"
#include "transport/device.h"
#include "transport/nccl.h"
#include "transport/board.h"

#endif
