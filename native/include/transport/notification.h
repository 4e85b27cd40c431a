/* Notifications that peers sent here. */
#ifndef TRANSPORT_NOTIFICATION_H
#define TRANSPORT_NOTIFICATION_H

#include "transport/status.h"

struct tn_notification {
    uint64_t peer_cookie;
    uint64_t region_number;
    uint32_t length;
    uint8_t payload[TN_MAX_NOTIFY];
};
int tn_notification_poll(struct tn_engine *engine, struct tn_notification *out); /* 1 or 0 */
/* Makes progress until one is there: 1, or 0 when the time is over (or on a signal). Does not take
 * it. */
int tn_notification_wait(struct tn_engine *engine, uint64_t timeout_ns);

#endif
