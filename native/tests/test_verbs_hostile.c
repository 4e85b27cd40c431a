/* A peer whose stream says anything about queue pairs: its link ends or goes on, nothing breaks,
 * and nothing is left behind. */
#include <string.h>
#include <unistd.h>

#include "providers/verbs/verbs.h"
#include "tests/verbs_pair.h"

static unsigned next_random(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static struct tn_verbs_message make(unsigned *seed, const struct end *target)
{
    struct tn_verbs_message message = {.kind = next_random(seed) % 8,
                                       .lane = next_random(seed) % 8 ? 0 : next_random(seed),
                                       .epoch = next_random(seed) % 5,
                                       .status = (int)(next_random(seed) % 3) - 1};
    message.offer = (struct tn_verbs_offer){.gid = {[10] = 0xff, 0xff, 10, 9, 0, 1},
                                            .ring_address = 4096,
                                            .ring_rkey = next_random(seed) % 9,
                                            .ring_slots = next_random(seed) % 4 ? 16 : 0,
                                            .queue_pair = next_random(seed) % 20,
                                            .sequence = next_random(seed),
                                            .mtu = next_random(seed) % 3 ? 1024 : 1000,
                                            .rail = next_random(seed) % 9 ? 0 : 7,
                                            .link_layer = next_random(seed) % 9 ? 2 : 1,
                                            .reads_in = 16,
                                            .reads_out = 16};
    message.region = next_random(seed) % 3;
    message.generation = next_random(seed) % 3;
    message.length = next_random(seed) % 2 ? 100 : UINT64_MAX;
    message.offset = next_random(seed) % 2 ? 0 : UINT64_MAX;
    message.access = next_random(seed) % 5;
    memset(message.text, 0x1b, sizeof(message.text)); /* no end, and nothing printable */
    (void)target;
    return message;
}

static void play(unsigned seed)
{
    struct end a, b;
    verbs_pair_open(&a, &b, 2 * MIB);
    struct tn_host *host = tn_engine_host(a.engine);
    struct tn_range range = end_range(&b, 0, 0, 4096);
    struct tn_transfer *transfer = NULL;
    for (int i = 0; i < 30; i++) {
        struct tn_verbs_message message = make(&seed, &b);
        size_t length = next_random(&seed) % 40 ? sizeof(message) : next_random(&seed) % 200 + 1;
        host->send_link(host, a.peer, TN_PROVIDER_VERBS, &message, length);
        if (i == 10 && tn_peer_state(b.peer) == TN_OK)
            transfer = end_submit(&b, TN_OP_READ, &b.theirs.memory, &range, 1, "note");
        if (next_random(&seed) % 4 == 0)
            usleep(200);
    }
    if (transfer) {
        tn_transfer_cancel(transfer);
        tn_peer_down(b.peer, TN_CLOSED, "enough");
        end_result(transfer);
    }
    verbs_pair_close(&a, &b);
}

int main(void)
{
    if (!double_open())
        return 77;
    for (unsigned seed = 1; seed <= 60; seed++)
        play(seed);
    return 0;
}
