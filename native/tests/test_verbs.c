/* The verbs provider over a software double of libibverbs ($TN_FAKES/fakeverbs.so), two engines in
 * one process: what a real device does not do on demand. */
#include <errno.h>

#include "tests/verbs_pair.h"

#define MEMORY (8u * MIB)

static const char *library;
static uint32_t lanes = 1;

static void open_pair(struct end *a, struct end *b)
{
    verbs_pair_open_shaped(a, b, MEMORY, (struct end_shape){.lanes = lanes});
}

static void close_pair(struct end *a, struct end *b)
{
    double_set("hold", 0);
    double_set("delay_us", 0);
    verbs_pair_close(a, b);
}

/* Writes `rows` rows that touch on neither side, reads them back, compares. */
static void move_rows(struct end *a, uint64_t rows)
{
    end_fill(a->memory, MIB, (unsigned)rows);
    memset(a->memory + 4 * MIB, 0, MIB);
    struct tn_range out = end_range(a, 0, 5, 50), back = end_range(a, 4 * MIB, 5, 50);
    out.rows = back.rows = rows;
    out.local_stride = back.local_stride = 100;
    out.remote_stride = back.remote_stride = 70;
    end_finish(end_submit(a, TN_OP_WRITE, &a->theirs.memory, &out, 1, NULL), TN_OK, "rc");
    end_finish(end_submit(a, TN_OP_READ, &a->theirs.memory, &back, 1, NULL), TN_OK, "rc");
    for (uint64_t row = 0; row < rows; row++)
        CHECK(memcmp(a->memory + row * 100, a->memory + 4 * MIB + row * 100, 50) == 0);
}

static void test_any_number_of_requests(void)
{
    static const uint64_t rows[] = {
        1, 31, 32, 33, END_SENDS - 1, END_SENDS, END_SENDS + 1, 10 * END_SENDS};
    struct end a, b;
    open_pair(&a, &b);
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        move_rows(&a, rows[i]);
    CHECK(double_get("doorbells") < double_get("requests") / 4);
    close_pair(&a, &b);
}

/* A send queue that is smaller than it claims, refusing in each of the known styles, is
 * back-pressure. */
static void test_full_send_queue(void)
{
    static const long limits[] = {16, 17, 20, 40};
    for (long style = 0; style < 3; style++) {
        for (size_t i = 0; i < sizeof(limits) / sizeof(*limits); i++) {
            struct end a, b;
            open_pair(&a, &b);
            double_set("full_style", style);
            double_set("send_limit", limits[i]);
            move_rows(&a, 500);
            double_set("send_limit", 0);
            close_pair(&a, &b);
        }
    }
}

static void test_refused_work_request_leads_to_another_path(void)
{
    struct end a, b;
    open_pair(&a, &b);
    double_set("send_limit", -1); /* none fits */
    struct tn_range range = end_range(&a, 0, 0, 64);
    char text[4096];
    end_finish(end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, NULL), TN_OK, "tcp");
    tn_peer_explain(a.peer, &a.theirs.memory, TN_OP_WRITE, text, sizeof(text));
    /* It is tried again after a while, which a slow machine may have reached. */
    CHECK_TEXT(strstr(text, "refuses a work request: Cannot allocate memory") ||
                   strstr(text, "opened again"),
               text);
    CHECK_TEXT(strstr(text, "verbs lane 0, fake0:1 to rail 0"), text);
    double_set("send_limit", 0);
    close_pair(&a, &b);
}

static void test_message_limit(void)
{
    double_set("max_msg_sz", MIB / 2 + 100);
    struct end a, b;
    open_pair(&a, &b);
    end_fill(a.memory, 3 * MIB, 3);
    struct tn_range parts[3]; /* that touch: one message if it were not for the limit */
    for (uint64_t i = 0; i < 3; i++)
        parts[i] = end_range(&a, i * MIB, i * MIB, MIB);
    end_finish(end_submit(&a, TN_OP_WRITE, &a.theirs.memory, parts, 3, NULL), TN_OK, "rc");
    CHECK(memcmp(a.memory, b.memory, 3 * MIB) == 0);
    double_set("max_msg_sz", 1L << 30);
    close_pair(&a, &b);
}

static void test_registration_refused(void)
{
    struct end a, b;
    struct tn_region *region;
    open_pair(&a, &b);
    double_set("reg_errno", ENOMEM);
    CHECK(tn_region_open(a.engine, a.memory, 4096, TN_READ, NULL, &region) == TN_NOMEM);
    CHECK(strstr(tn_last_error(), "RLIMIT_MEMLOCK") && strstr(tn_last_error(), "max_map_count"));
    double_set("reg_errno", EFAULT);
    CHECK(tn_region_open(a.engine, a.memory, 4096, TN_READ, NULL, &region) == TN_SYSTEM);
    double_set("reg_errno", 0);
    close_pair(&a, &b);
}

static void test_notifications(void)
{
    struct end a, b;
    char text[TN_MAX_NOTIFY + 1], seen[TN_MAX_NOTIFY + 1];
    open_pair(&a, &b);
    struct tn_transfer *sent[3 * END_DEPTH];
    struct tn_range range = end_range(&a, 0, 0, 64);
    for (unsigned i = 0; i < 3 * END_DEPTH; i++) {
        snprintf(text, sizeof(text), "%0*u", (int)(i * 21 + 2), i);
        sent[i] = end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, text);
    }
    bool came[3 * END_DEPTH] = {false}; /* no order is promised between transfers */
    for (unsigned i = 0; i < 3 * END_DEPTH; i++) {
        end_expect_note(&b, seen, sizeof(seen));
        unsigned which = (unsigned)strtoul(seen, NULL, 10);
        CHECK_TEXT(which < 3 * END_DEPTH && strlen(seen) == which * 21 + 2 && !came[which], seen);
        came[which] = true;
    }
    for (unsigned i = 0; i < 3 * END_DEPTH; i++)
        end_finish(sent[i], TN_OK, "rc");
    close_pair(&a, &b);
}

/* The path fails under many in flight: the lane is opened again, and none of them notices. D1, D9.
 */
static void test_a_lost_path_fails_nobody(void)
{
    struct end a, b;
    open_pair(&a, &b);
    struct tn_transfer *sent[40];
    struct tn_range range = end_range(&a, 0, 0, 4096);
    double_set("hold", 1);
    double_set("fail_status", 12); /* retry exceeded */
    double_set("fail_after", 10);
    for (int i = 0; i < 40; i++)
        sent[i] = end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, i % 4 ? NULL : "note");
    double_set("hold", 0);
    for (int i = 0; i < 40; i++)
        end_finish(sent[i], TN_OK, "rc");
    for (int i = 0; i < 10; i++) { /* each once */
        char text[8];
        end_expect_note(&b, text, sizeof(text));
    }
    struct tn_notification more;
    CHECK(tn_notification_poll(b.engine, &more) == 0);
    range = end_range(&b, 0, 0, 4096);
    end_finish(end_submit(&b, TN_OP_READ, &b.theirs.memory, &range, 1, NULL), TN_OK, "rc");
    close_pair(&a, &b);
}

/* What the request itself is to blame for fails it alone, with its own error. */
static void test_a_faulty_request_fails_alone(void)
{
    static const int faults[] = {1, 2, 4, 8, 9, 11};
    struct end a, b;
    open_pair(&a, &b);
    struct tn_transfer *sent[40];
    struct tn_range range = end_range(&a, 0, 0, 4096);
    for (size_t k = 0; k < sizeof(faults) / sizeof(*faults); k++) {
        double_set("hold", 1);
        double_set("fail_status", faults[k]);
        double_set("fail_after", 10);
        for (int i = 0; i < 40; i++)
            sent[i] = end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, NULL);
        double_set("hold", 0);
        int failed = 0;
        for (int i = 0; i < 40; i++) {
            struct tn_result result = end_result(sent[i]);
            CHECK_TEXT(result.status == TN_OK || result.status == TN_VERBS, result.text);
            CHECK(result.status == TN_OK || (result.error == faults[k] && result.vendor == 0x99));
            failed += result.status != TN_OK;
        }
        CHECK(failed == 1);
    }
    close_pair(&a, &b);
}

/* One stale access among 64 in flight: it alone fails, and as what it is; nobody changes to another
 * path. */
static void test_refused_access(void)
{
    struct end a, b;
    open_pair(&a, &b);
    struct tn_remote gone = a.theirs.second;
    struct tn_range range = end_range(&a, 0, 0, 4096);
    struct tn_transfer *sent[64];
    CHECK(tn_region_close(b.second, LONG) == TN_OK);
    for (int round = 0; round < 5; round++) {
        double_set("hold", 1);
        for (int i = 0; i < 64; i++)
            sent[i] =
                end_submit(&a, TN_OP_READ, i == 30 ? &gone : &a.theirs.memory, &range, 1, NULL);
        double_set("hold", 0);
        for (int i = 0; i < 64; i++)
            end_finish(sent[i], i == 30 ? TN_STALE : TN_OK, "rc");
        struct tn_range theirs = end_range(&b, 0, 0, 4096);
        end_finish(end_submit(&b, TN_OP_READ, &b.theirs.memory, &theirs, 1, NULL), TN_OK, "rc");
    }
    close_pair(&a, &b);
}

/* The region is there, but the device refuses: no lie about it. */
static void test_access_refused_without_reason(void)
{
    struct end a, b;
    open_pair(&a, &b);
    struct tn_remote wrong = a.theirs.memory;
    struct tn_range range = end_range(&a, 0, 0, 4096);
    wrong.rkeys[0] ^= 0x5555;
    end_finish(end_submit(&a, TN_OP_READ, &wrong, &range, 1, NULL), TN_REMOTE_ACCESS, "rc");
    end_finish(end_submit(&a, TN_OP_READ, &a.theirs.memory, &range, 1, NULL), TN_OK, "rc");
    close_pair(&a, &b);
}

static void test_closing_with_work_in_flight(void)
{
    for (long keep = 0; keep < 2; keep++) {
        struct end a, b;
        open_pair(&a, &b);
        struct tn_transfer *sent[300];
        struct tn_range range = end_range(&a, 0, 0, 4096);
        double_set("keep_on_destroy", keep);
        double_set("hold", 1);
        for (int i = 0; i < 300; i++)
            sent[i] = end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, NULL);
        tn_peer_down(a.peer, TN_CLOSED, "closed on purpose");
        for (int i = 0; i < 300; i++) {
            struct tn_result result = end_result(sent[i]);
            CHECK_TEXT(result.status == TN_CLOSED, result.text);
            CHECK_TEXT(strcmp(result.text, "closed on purpose") == 0, result.text);
        }
        double_set("keep_on_destroy", 0);
        close_pair(&a, &b);
    }
}

static void test_deadline_leaves_quiet_for_later(void)
{
    struct end a, b;
    open_pair(&a, &b);
    struct tn_range range = end_range(&a, 0, 0, 4096);
    end_finish(end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, NULL), TN_OK, "rc");
    double_set("hold", 1);
    struct tn_batch batch = {.op = TN_OP_WRITE,
                             .providers = UINT32_MAX,
                             .remotes = &a.theirs.memory,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .deadline_ns = tn_now() + SECOND};
    struct tn_transfer *transfer;
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_OK);
    CHECK(tn_transfer_wait(transfer, LONG) == TN_DEADLINE);
    CHECK(tn_transfer_quiet(transfer) == 0);
    double_set("hold", 0);
    CHECK(tn_transfer_wait_quiet(transfer, LONG) == 1);
    tn_transfer_release(transfer);
    end_finish(end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, NULL), TN_OK, "rc");
    close_pair(&a, &b);
}

static void test_probe(void)
{
    char text[256];
    struct tn_verbs_port ports[2];
    uint8_t gids[4][TN_VERBS_GID];
    CHECK(tn_verbs_probe(library, text, sizeof(text)) == TN_OK && strstr(text, "fake0"));
    CHECK(tn_verbs_ports(library, ports, 2) == 1 && ports[0].active_mtu == 1024 &&
          ports[0].link_layer == 2);
    CHECK(tn_verbs_gids(library, "fake0", 1, gids[0], 4) == 4 && gids[1][10] == 0xff &&
          !gids[3][0]);
    CHECK(tn_verbs_gids(library, "fake0", 2, gids[0], 4) == TN_UNAVAILABLE);
    CHECK(tn_verbs_gids(library, "fake1", 1, gids[0], 4) == TN_UNAVAILABLE);
    for (long devices = -1; devices < 1; devices++) {
        double_set("devices", devices);
        CHECK(tn_verbs_probe(library, text, sizeof(text)) == TN_UNAVAILABLE &&
              strstr(text, "no RDMA devices"));
        CHECK(tn_verbs_ports(library, ports, 2) == 0);
    }
    double_set("devices", 1);
    CHECK(tn_verbs_probe("/nonexistent.so", text, sizeof(text)) == TN_UNAVAILABLE &&
          strstr(text, "install"));
    CHECK(tn_verbs_probe("libc.so.6", text, sizeof(text)) == TN_UNAVAILABLE &&
          strstr(text, "ibv_get_device_list"));
    tn_verbs_probe(NULL, text, sizeof(text)); /* whatever this machine has: it must not crash */
}

int main(void)
{
    library = double_open();
    if (!library)
        return 77;
    test_probe();
    for (lanes = 1; lanes < 8; lanes += 3) {
        test_any_number_of_requests();
        test_full_send_queue();
        test_refused_work_request_leads_to_another_path();
        test_message_limit();
        test_registration_refused();
        test_notifications();
        test_a_lost_path_fails_nobody();
        test_a_faulty_request_fails_alone();
        test_refused_access();
        test_access_refused_without_reason();
        test_closing_with_work_in_flight();
        test_deadline_leaves_quiet_for_later();
    }
    return 0;
}
