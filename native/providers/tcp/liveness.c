/* Heartbeats, and who counts as lost: a peer from which nothing comes, or that takes nothing. */
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "providers/tcp/state.h"

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

/* The peer speaks, but takes nothing: its kernel would, if its process did. */
static void check_blocked(struct tn_link *link, uint64_t now)
{
    int unsent = 0;
    if (!link->blocked || ioctl(link->watch.fd, SIOCOUTQ, &unsent))
        return;
    if (unsent != link->unsent_then) {
        link->unsent_then = unsent;
        link->blocked_since = now;
    } else if (now > link->blocked_since && now - link->blocked_since >= link->host->liveness_ns) {
        tn_link_break(link, TN_PEER_LOST, "the peer has not taken a byte for %.1f s",
                      seconds(now - link->blocked_since));
    }
}

/* Bytes that nobody has read yet: it was this process that slept, not the peer. */
static bool unread(struct tn_link *link)
{
    int bytes = 0;
    return !link->paused && !ioctl(link->watch.fd, SIOCINQ, &bytes) && bytes > 0;
}

static void check_silence(struct tn_link *link, uint64_t now, uint64_t heard)
{
    uint64_t silent = now > heard ? now - heard : 0;
    uint64_t beat = link->host->liveness_ns / 4;
    if (silent >= link->host->liveness_ns && !unread(link)) {
        tn_link_break(link, TN_PEER_LOST, "the peer has been silent for %.1f s", seconds(silent));
        return;
    }
    uint64_t last = atomic_load_explicit(&link->last_beat, memory_order_relaxed);
    if (silent < beat || (last && now - last < beat))
        return;
    atomic_store_explicit(&link->last_beat, now, memory_order_relaxed);
    atomic_fetch_add_explicit(&link->beats, 1, memory_order_relaxed);
    tn_link_signal(link, &link->ping, 1);
}

static uint64_t tick(struct tn_link *link, uint64_t now)
{
    uint64_t beat = link->host->liveness_ns / 4;
    uint64_t next = UINT64_MAX;
    tn_link_enter(link);
    if (!link->dead) {
        tn_link_rest_staging(link);
        tn_link_rest_requests(link);
        tn_link_rest_pool(link);
        check_blocked(link, now);
    }
    if (!link->dead) {
        uint64_t heard = atomic_load_explicit(&link->last_heard, memory_order_relaxed);
        check_silence(link, now, heard);
        next = heard + beat > now ? heard + beat : now + beat;
        uint64_t lost = heard + link->host->liveness_ns;
        next = lost > now && lost < next ? lost : next;
    }
    if (link->dead)
        next = UINT64_MAX;
    tn_link_leave(link);
    return next;
}

uint64_t tn_link_tick(struct tn_link *first, uint64_t now)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < tn_link_count(first); i++) {
        uint64_t due = tick(tn_link_stream(first, i), now);
        next = due < next ? due : next;
    }
    return next;
}
