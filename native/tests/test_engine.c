/* Two whole engines in one process, joined by a socket pair: submission, completion, notifications, deadlines, loss. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "transport_native.h"

#define MIB (1024u * 1024u)
#define SECOND 1000000000u

struct side {
    struct tn_engine *engine;
    struct tn_peer *peer; /* the other side */
    uint8_t *memory;
    struct tn_region *region;
    struct tn_remote remote; /* of this side's memory */
};

static struct tn_engine *open_engine(uint8_t mark, uint32_t depth)
{
    struct tn_engine_options options = {.incarnation = {mark}, .liveness_ns = 2ull * SECOND, .inline_bytes = 65536,
                                        .chunk_bytes = MIB, .notify_depth = depth, .max_regions = 1024,
                                        .stream_window = 16, .order = {TN_PROVIDER_SHM, TN_PROVIDER_TCP}, .providers = 2};
    struct tn_engine *engine;
    CHECK(tn_engine_open(&options, &engine) == TN_OK);
    return engine;
}

static void open_side(struct side *side, uint8_t mark, size_t bytes, uint32_t depth)
{
    side->engine = open_engine(mark, depth);
    side->memory = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        side->memory[i] = (uint8_t)(i * 7 + mark);
    CHECK(tn_region_open(side->engine, side->memory, bytes, TN_READ | TN_WRITE, NULL, &side->region) == TN_OK);
    tn_region_describe(side->region, &side->remote);
}

static void join(struct side *a, struct side *b, uint32_t depth)
{
    int fds[2];
    uint8_t name_a[TN_INCARNATION_BYTES] = {1}, name_b[TN_INCARNATION_BYTES] = {2};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    CHECK(tn_peer_open(a->engine, name_b, 11, &a->peer) == TN_OK);
    CHECK(tn_peer_open(b->engine, name_a, 22, &b->peer) == TN_OK);
    CHECK(tn_peer_up(a->peer, fds[0], TN_PROVIDER_SHM, depth) == TN_OK);
    CHECK(tn_peer_up(b->peer, fds[1], TN_PROVIDER_SHM, depth) == TN_OK);
}

static void open_pair(struct side *a, struct side *b, size_t bytes, uint32_t depth)
{
    open_side(a, 1, bytes, depth);
    open_side(b, 2, bytes, depth);
    join(a, b, depth);
}

static void close_side(struct side *side)
{
    CHECK(tn_region_close(side->region, SECOND) == TN_OK);
    tn_region_release(side->region);
    tn_peer_release(side->peer);
    tn_engine_close(side->engine);
    free(side->memory);
}

static struct tn_transfer *start(struct side *from, const struct tn_remote *remote, uint32_t op, void *local,
                                 uint64_t bytes, const char *notify, uint64_t deadline)
{
    struct tn_range range = {.local_address = (uintptr_t)local, .length = bytes, .rows = 1};
    struct tn_batch batch = {.op = op, .providers = UINT32_MAX, .remotes = remote, .ranges = &range, .n_remotes = 1,
                             .n_ranges = 1, .deadline_ns = deadline, .notify = notify,
                             .notify_length = notify ? (uint32_t)strlen(notify) : 0};
    struct tn_transfer *transfer;
    CHECK(tn_submit(from->peer, &batch, &transfer) == TN_OK);
    return transfer;
}

static void finish(struct tn_transfer *transfer, int expected)
{
    struct tn_result result;
    int status = tn_transfer_wait(transfer, 5ull * SECOND);
    tn_transfer_result(transfer, &result);
    CHECK_TEXT(status == expected, result.text);
    CHECK(tn_transfer_wait_quiet(transfer, 5ull * SECOND) == 1);
    tn_transfer_release(transfer);
}

static void test_read_and_write(void)
{
    struct side a = {0}, b = {0};
    size_t sizes[] = {1, 4096, 65535, 65537, 3 * MIB + 17};
    uint8_t *local = malloc(4 * MIB);
    open_pair(&a, &b, 4 * MIB, 8);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        finish(start(&a, &b.remote, TN_OP_READ, local, sizes[i], NULL, TN_NO_DEADLINE), TN_OK);
        CHECK(memcmp(local, b.memory, sizes[i]) == 0);
        memset(local, (int)i + 100, sizes[i]);
        finish(start(&a, &b.remote, TN_OP_WRITE, local, sizes[i], NULL, TN_NO_DEADLINE), TN_OK);
        CHECK(memcmp(local, b.memory, sizes[i]) == 0);
    }
    finish(start(&a, &b.remote, TN_OP_READ, local, 0, NULL, TN_NO_DEADLINE), TN_OK);
    close_side(&a);
    close_side(&b);
    free(local);
}

static void test_notifications_push_back(void)
{
    struct side a = {0}, b = {0};
    struct tn_transfer *transfers[5];
    struct tn_notification got;
    open_pair(&a, &b, 4096, 2);
    for (int i = 0; i < 5; i++)
        transfers[i] = start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "hello", TN_NO_DEADLINE);
    finish(transfers[0], TN_OK);
    finish(transfers[1], TN_OK);
    CHECK(tn_transfer_wait(transfers[2], SECOND / 20) == TN_PENDING); /* no credit: nobody has read */
    for (int i = 0; i < 5; i++) {
        CHECK(tn_notification_wait(b.engine, SECOND) == 1);
        CHECK(tn_notification_poll(b.engine, &got) == 1);
        CHECK(got.peer_cookie == 22 && got.length == 5 && memcmp(got.payload, "hello", 5) == 0);
        CHECK(got.region_number == b.remote.number);
    }
    for (int i = 2; i < 5; i++)
        finish(transfers[i], TN_OK);
    CHECK(tn_notification_poll(b.engine, &got) == 0);
    close_side(&a);
    close_side(&b);
}

static void test_deadline_and_cancel_while_without_credit(void)
{
    struct side a = {0}, b = {0};
    open_pair(&a, &b, 4096, 1);
    finish(start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "one", TN_NO_DEADLINE), TN_OK);
    finish(start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "two", tn_now() + SECOND / 20), TN_DEADLINE);
    struct tn_transfer *third = start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "three", TN_NO_DEADLINE);
    CHECK(tn_transfer_wait(third, SECOND / 50) == TN_PENDING);
    tn_transfer_cancel(third);
    finish(third, TN_CANCELLED);
    close_side(&a);
    close_side(&b);
}

static void test_errors_before_a_byte_moves(void)
{
    struct side a = {0}, b = {0};
    struct tn_transfer *transfer;
    open_pair(&a, &b, 4096, 4);
    struct tn_range range = {.local_address = (uintptr_t)a.memory, .remote_offset = 4000, .length = 97, .rows = 1};
    struct tn_batch batch = {.op = TN_OP_READ, .providers = UINT32_MAX, .remotes = &b.remote, .ranges = &range,
                             .n_remotes = 1, .n_ranges = 1, .deadline_ns = TN_NO_DEADLINE};
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_REMOTE_ACCESS);
    range.remote_offset = UINT64_MAX - 1;
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_REMOTE_ACCESS);
    range = (struct tn_range){.local_address = (uintptr_t)a.memory, .length = 8, .rows = 2, .remote_stride = -8};
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_REMOTE_ACCESS);
    range = (struct tn_range){.local_address = (uintptr_t)a.memory, .length = UINT64_MAX, .rows = 3};
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_INVALID);
    range = (struct tn_range){.local_address = (uintptr_t)a.memory, .length = 8, .rows = 1, .remote = 1};
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_INVALID);
    close_side(&a);
    close_side(&b);
}

static void test_closed_region_is_stale(void)
{
    struct side a = {0}, b = {0};
    open_pair(&a, &b, 4096, 4);
    CHECK(tn_region_close(b.region, SECOND) == TN_OK);
    finish(start(&a, &b.remote, TN_OP_READ, a.memory, 64, NULL, TN_NO_DEADLINE), TN_STALE);
    close_side(&a);
    close_side(&b);
}

static void test_submitted_while_connecting(void)
{
    struct side a = {0}, b = {0};
    uint8_t name_a[TN_INCARNATION_BYTES] = {1}, name_b[TN_INCARNATION_BYTES] = {2}, local[64];
    int fds[2];
    open_side(&a, 1, 4096, 4);
    open_side(&b, 2, 4096, 4);
    CHECK(tn_peer_open(a.engine, name_b, 11, &a.peer) == TN_OK);
    struct tn_transfer *goes = start(&a, &b.remote, TN_OP_READ, local, sizeof(local), NULL, TN_NO_DEADLINE);
    struct tn_transfer *late = start(&a, &b.remote, TN_OP_READ, local, sizeof(local), NULL, tn_now() + SECOND / 50);
    struct tn_transfer *dropped = start(&a, &b.remote, TN_OP_READ, local, sizeof(local), NULL, TN_NO_DEADLINE);
    tn_transfer_cancel(dropped);
    finish(dropped, TN_CANCELLED);
    finish(late, TN_DEADLINE);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    CHECK(tn_peer_open(b.engine, name_a, 22, &b.peer) == TN_OK);
    CHECK(tn_peer_up(b.peer, fds[1], TN_PROVIDER_SHM, 4) == TN_OK);
    CHECK(tn_peer_up(a.peer, fds[0], TN_PROVIDER_SHM, 4) == TN_OK);
    finish(goes, TN_OK);
    CHECK(memcmp(local, b.memory, sizeof(local)) == 0);
    close_side(&a);
    close_side(&b);
}

static int next_event(struct tn_engine *engine, struct tn_event *event, void *buffer)
{
    for (int i = 0; i < 1000; i++) {
        if (tn_engine_next_event(engine, event, buffer))
            return 1;
        usleep(1000);
    }
    return 0;
}

static void test_events(void)
{
    struct side a = {0}, b = {0};
    struct tn_event event;
    uint8_t *buffer = malloc(TN_MAX_CONTROL);
    open_pair(&a, &b, 4096, 4);
    CHECK(tn_peer_send(a.peer, "over here", 9) == TN_OK);
    CHECK(next_event(b.engine, &event, buffer) && event.kind == TN_EVENT_CONTROL && event.cookie == 22);
    CHECK(event.length == 9 && memcmp(buffer, "over here", 9) == 0);
    tn_peer_down(b.peer, TN_CLOSED, "enough");
    CHECK(next_event(a.engine, &event, buffer) && event.kind == TN_EVENT_PEER_DOWN && event.status == TN_PEER_LOST);
    finish(start(&a, &b.remote, TN_OP_READ, a.memory, 64, NULL, TN_NO_DEADLINE), TN_PEER_LOST);
    close_side(&a);
    close_side(&b);
    free(buffer);
}

static void test_queue(void)
{
    struct side a = {0}, b = {0};
    struct tn_queue *queue;
    uint64_t cookies[8];
    open_pair(&a, &b, 4 * MIB, 4);
    CHECK(tn_queue_open(a.engine, &queue) == TN_OK);
    uint8_t *local = malloc(4 * MIB);
    struct tn_transfer *transfer = start(&a, &b.remote, TN_OP_READ, local, 4 * MIB, NULL, TN_NO_DEADLINE);
    int status = tn_transfer_watch(transfer, queue, 77);
    for (int i = 0; status == TN_PENDING && i < 2000; i++) {
        if (tn_queue_reap(queue, cookies, 8) == 1) {
            CHECK(cookies[0] == 77);
            break;
        }
        CHECK(i < 1999);
        usleep(1000);
    }
    finish(transfer, TN_OK);
    CHECK(tn_queue_arm(queue) == 0);
    tn_queue_close(queue);
    close_side(&a);
    close_side(&b);
    free(local);
}

static void *hammer(void *argument)
{
    struct side *sides = argument;
    uint8_t local[3000];
    for (int i = 0; i < 200; i++)
        finish(start(&sides[0], &sides[1].remote, TN_OP_READ, local, 1 + (size_t)i * 13 % sizeof(local), NULL,
                     tn_now() + 5ull * SECOND), TN_OK);
    return NULL;
}

static void test_many_threads(void)
{
    struct side sides[2] = {0};
    pthread_t threads[4];
    open_pair(&sides[0], &sides[1], 4096, 4);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, hammer, sides) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    close_side(&sides[0]);
    close_side(&sides[1]);
}

static void test_close_with_transfers_in_flight(void)
{
    struct side a = {0}, b = {0};
    open_pair(&a, &b, 4 * MIB, 4);
    uint8_t *local = malloc(4 * MIB);
    struct tn_transfer *transfer = start(&a, &b.remote, TN_OP_READ, local, 4 * MIB, NULL, TN_NO_DEADLINE);
    tn_peer_release(a.peer);
    CHECK(tn_region_close(a.region, SECOND) == TN_OK);
    tn_region_release(a.region);
    tn_engine_close(a.engine);
    CHECK(tn_transfer_quiet(transfer) == 1);
    int status = tn_transfer_status(transfer);
    CHECK_TEXT(status == TN_OK || status == TN_CLOSED, tn_status_name(status));
    tn_transfer_release(transfer);
    free(a.memory);
    free(local);
    close_side(&b);
}

static void test_self(void)
{
    struct side a = {0};
    uint8_t local[100];
    open_side(&a, 1, 4096, 2);
    CHECK(tn_peer_open_self(a.engine, 5, &a.peer) == TN_OK);
    finish(start(&a, &a.remote, TN_OP_READ, local, sizeof(local), "me", TN_NO_DEADLINE), TN_OK);
    CHECK(memcmp(local, a.memory, sizeof(local)) == 0);
    struct tn_notification got;
    CHECK(tn_notification_poll(a.engine, &got) == 1 && got.peer_cookie == 5);
    close_side(&a);
}

int main(void)
{
    test_read_and_write();
    test_notifications_push_back();
    test_deadline_and_cancel_while_without_credit();
    test_errors_before_a_byte_moves();
    test_closed_region_is_stale();
    test_submitted_while_connecting();
    test_events();
    test_queue();
    test_many_threads();
    test_close_with_transfers_in_flight();
    test_self();
    return 0;
}
