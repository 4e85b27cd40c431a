/* How often a lane is opened again: the later, the longer its path has been failing, and never so
 * often that a peer could keep the driving thread from its other work. Driver only. */
#include "providers/verbs/verbs.h"

#define RETRY_FIRST_NS 10000000u
#define RETRY_LAST_NS 5000000000u
#define RETRY_DOUBLINGS 9
/* Whoever waits for a lane sees it tried so often before the recovery time is over. */
#define TRIES 4
#define SHORT_LIFE_NS 20000000u
#define SHORT_LIVES 8

static uint64_t longest(const struct tn_verbs_link *link)
{
    uint64_t pause = link->recovery_ns / TRIES;
    if (pause > RETRY_LAST_NS)
        return RETRY_LAST_NS;
    return pause > RETRY_FIRST_NS ? pause : RETRY_FIRST_NS;
}

/* The longer the path has been failing, the later the next try. */
void tn_verbs_pace_failed(struct tn_verbs_lane *lane, uint64_t now)
{
    uint32_t doublings = lane->failures ? lane->failures - 1 : 0;
    if (doublings > RETRY_DOUBLINGS)
        doublings = RETRY_DOUBLINGS;
    uint64_t pause = (uint64_t)RETRY_FIRST_NS << doublings;
    uint64_t most = longest(lane->link);
    lane->retry_at = now + (pause < most ? pause : most);
}

/* A lane that was broken by the fault of a request is opened again at once, unless that happens
 * over and over. */
void tn_verbs_pace_broken(struct tn_verbs_lane *lane, bool path, uint64_t now)
{
    bool soon = now < lane->ready_at + SHORT_LIFE_NS;
    lane->short_lives = soon ? lane->short_lives + 1 : 0;
    if (path)
        tn_verbs_pace_failed(lane, now);
    else if (lane->short_lives > SHORT_LIVES)
        lane->retry_at = now + RETRY_FIRST_NS;
}

bool tn_verbs_pace_opens(struct tn_verbs_link *link, uint64_t now)
{
    if (now >= link->openings_since + TN_VERBS_OPENINGS_NS) {
        link->openings_since = now;
        link->openings = 0;
    }
    return link->openings < TN_VERBS_OPENINGS;
}
