/* Two whole engines in one process, joined by a socket pair: submission, completion, notifications,
 * deadlines, loss. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/engine_pair.h"

static void test_read_and_write(void)
{
    struct side a = {0}, b = {0};
    size_t sizes[] = {1, 4096, 65535, 65537, 3 * MIB + 17};
    uint8_t *local = malloc(4 * MIB);
    pair_open(&a, &b, 4 * MIB, 8);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        pair_finish(pair_start(&a, &b.remote, TN_OP_READ, local, sizes[i], NULL, TN_NO_DEADLINE),
                    TN_OK);
        CHECK(memcmp(local, b.memory, sizes[i]) == 0);
        memset(local, (int)i + 100, sizes[i]);
        pair_finish(pair_start(&a, &b.remote, TN_OP_WRITE, local, sizes[i], NULL, TN_NO_DEADLINE),
                    TN_OK);
        CHECK(memcmp(local, b.memory, sizes[i]) == 0);
    }
    pair_finish(pair_start(&a, &b.remote, TN_OP_READ, local, 0, NULL, TN_NO_DEADLINE), TN_OK);
    pair_close_side(&a);
    pair_close_side(&b);
    free(local);
}

static void test_notifications_push_back(void)
{
    struct side a = {0}, b = {0};
    struct tn_transfer *transfers[5];
    struct tn_notification got;
    pair_open(&a, &b, 4096, 2);
    for (int i = 0; i < 5; i++)
        transfers[i] =
            pair_start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "hello", TN_NO_DEADLINE);
    pair_finish(transfers[0], TN_OK);
    pair_finish(transfers[1], TN_OK);
    CHECK(tn_transfer_wait(transfers[2], SECOND / 20) ==
          TN_PENDING); /* no credit: nobody has read */
    for (int i = 0; i < 5; i++) {
        CHECK(tn_notification_wait(b.engine, LONG) == 1);
        CHECK(tn_notification_poll(b.engine, &got) == 1);
        CHECK(got.peer_cookie == 22 && got.length == 5 && memcmp(got.payload, "hello", 5) == 0);
        CHECK(got.region_number == b.remote.number);
    }
    for (int i = 2; i < 5; i++)
        pair_finish(transfers[i], TN_OK);
    CHECK(tn_notification_poll(b.engine, &got) == 0);
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_deadline_and_cancel_while_without_credit(void)
{
    struct side a = {0}, b = {0};
    pair_open(&a, &b, 4096, 1);
    pair_finish(pair_start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "one", TN_NO_DEADLINE), TN_OK);
    pair_finish(pair_start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "two", tn_now() + SECOND / 20),
                TN_DEADLINE);
    struct tn_transfer *third =
        pair_start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "three", TN_NO_DEADLINE);
    CHECK(tn_transfer_wait(third, SECOND / 50) == TN_PENDING);
    tn_transfer_cancel(third);
    pair_finish(third, TN_CANCELLED);
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_errors_before_a_byte_moves(void)
{
    struct side a = {0}, b = {0};
    struct tn_transfer *transfer;
    pair_open(&a, &b, 4096, 4);
    struct tn_range range = {
        .local_address = (uintptr_t)a.memory, .remote_offset = 4000, .length = 97, .rows = 1};
    struct tn_batch batch = {.op = TN_OP_READ,
                             .providers = UINT32_MAX,
                             .remotes = &b.remote,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .deadline_ns = TN_NO_DEADLINE};
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_REMOTE_ACCESS);
    range.remote_offset = UINT64_MAX - 1;
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_REMOTE_ACCESS);
    range = (struct tn_range){
        .local_address = (uintptr_t)a.memory, .length = 8, .rows = 2, .remote_stride = -8};
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_REMOTE_ACCESS);
    range =
        (struct tn_range){.local_address = (uintptr_t)a.memory, .length = UINT64_MAX, .rows = 3};
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_INVALID);
    range = (struct tn_range){
        .local_address = (uintptr_t)a.memory, .length = 8, .rows = 1, .remote = 1};
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_INVALID);
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_atomics_are_checked(void)
{
    struct side a = {0}, b = {0};
    struct tn_transfer *transfer;
    pair_open(&a, &b, 4096, 4);
    struct tn_range word = {
        .local_address = (uintptr_t)a.memory, .remote_offset = 4088, .length = 8, .rows = 1};
    struct tn_range ranges[2] = {word, word};
    struct tn_batch batch = {.op = TN_OP_FETCH_ADD,
                             .providers = UINT32_MAX,
                             .remotes = &b.remote,
                             .ranges = ranges,
                             .n_remotes = 1,
                             .n_ranges = 2,
                             .deadline_ns = TN_NO_DEADLINE};
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_INVALID);
    batch.n_ranges = 0;
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_INVALID);
    batch.n_ranges = 1;
    struct {
        uint64_t *field, wrong;
        int status;
    } faults[] = {{&ranges[0].length, 16, TN_INVALID},
                  {&ranges[0].length, 4, TN_INVALID},
                  {&ranges[0].rows, 2, TN_INVALID},
                  {&ranges[0].remote_offset, 4, TN_INVALID},
                  {&ranges[0].remote_offset, 4096, TN_REMOTE_ACCESS},
                  {&ranges[0].remote_offset, UINT64_MAX - 7, TN_REMOTE_ACCESS},
                  {&ranges[0].local_address, word.local_address + 4, TN_INVALID}};
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
        uint64_t right = *faults[i].field;
        *faults[i].field = faults[i].wrong;
        CHECK(tn_submit(a.peer, &batch, &transfer) == faults[i].status);
        *faults[i].field = right;
    }
    b.remote.access = TN_WRITE; /* what was there may not be told */
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_REMOTE_ACCESS);
    b.remote.access = TN_READ | TN_WRITE;
    batch.op = TN_OP_COMPARE_SWAP + 1;
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_INVALID);
    batch.op = TN_OP_COMPARE_SWAP;
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_OK);
    pair_finish(transfer, TN_NO_PATH); /* a stream has none */
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_closed_region_is_stale(void)
{
    struct side a = {0}, b = {0};
    pair_open(&a, &b, 4096, 4);
    CHECK(tn_region_close(b.region, LONG) == TN_OK);
    pair_finish(pair_start(&a, &b.remote, TN_OP_READ, a.memory, 64, NULL, TN_NO_DEADLINE),
                TN_STALE);
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_submitted_while_connecting(void)
{
    struct side a = {0}, b = {0};
    uint8_t local[64];
    pair_open_side(&a, 1, 4096, 4);
    pair_open_side(&b, 2, 4096, 4);
    pair_open_peer(&a, 2);
    struct tn_transfer *goes =
        pair_start(&a, &b.remote, TN_OP_READ, local, sizeof(local), NULL, TN_NO_DEADLINE);
    struct tn_transfer *late =
        pair_start(&a, &b.remote, TN_OP_READ, local, sizeof(local), NULL, tn_now() + SECOND / 50);
    struct tn_transfer *dropped =
        pair_start(&a, &b.remote, TN_OP_READ, local, sizeof(local), NULL, TN_NO_DEADLINE);
    tn_transfer_cancel(dropped);
    pair_finish(dropped, TN_CANCELLED);
    pair_finish(late, TN_DEADLINE);
    pair_open_peer(&b, 1);
    pair_join(&b, &a, 4);
    pair_finish(goes, TN_OK);
    CHECK(memcmp(local, b.memory, sizeof(local)) == 0);
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_events(void)
{
    struct side a = {0}, b = {0};
    struct tn_event event;
    uint8_t *buffer = malloc(TN_MAX_CONTROL);
    pair_open(&a, &b, 4096, 4);
    CHECK(tn_peer_send(a.peer, "over here", 9) == TN_OK);
    CHECK(pair_next_event(b.engine, &event, buffer) && event.kind == TN_EVENT_CONTROL &&
          event.cookie == 22);
    CHECK(event.length == 9 && memcmp(buffer, "over here", 9) == 0);
    tn_peer_down(b.peer, TN_CLOSED, "enough");
    CHECK(pair_next_event(a.engine, &event, buffer) && event.kind == TN_EVENT_PEER_DOWN &&
          event.status == TN_PEER_LOST);
    pair_finish(pair_start(&a, &b.remote, TN_OP_READ, a.memory, 64, NULL, TN_NO_DEADLINE),
                TN_PEER_LOST);
    pair_close_side(&a);
    pair_close_side(&b);
    free(buffer);
}

static void test_queue(void)
{
    struct side a = {0}, b = {0};
    struct tn_queue *queue;
    uint64_t cookies[8];
    pair_open(&a, &b, 4 * MIB, 4);
    CHECK(tn_queue_open(a.engine, &queue) == TN_OK);
    uint8_t *local = malloc(4 * MIB);
    struct tn_transfer *transfer =
        pair_start(&a, &b.remote, TN_OP_READ, local, 4 * MIB, NULL, TN_NO_DEADLINE);
    int status = tn_transfer_watch(transfer, queue, 77);
    for (uint64_t end = tn_now() + LONG; status == TN_PENDING; usleep(1000)) {
        if (tn_queue_reap(queue, cookies, 8) == 1) {
            CHECK(cookies[0] == 77);
            break;
        }
        CHECK(tn_now() < end);
    }
    pair_finish(transfer, TN_OK);
    CHECK(tn_queue_arm(queue) == 0);
    tn_queue_close(queue);
    pair_close_side(&a);
    pair_close_side(&b);
    free(local);
}

static void *hammer(void *argument)
{
    struct side *sides = argument;
    uint8_t local[3000];
    for (int i = 0; i < 200; i++)
        pair_finish(pair_start(&sides[0], &sides[1].remote, TN_OP_READ, local,
                               1 + (size_t)i * 13 % sizeof(local), NULL, tn_now() + LONG),
                    TN_OK);
    return NULL;
}

static void test_many_threads(void)
{
    struct side sides[2] = {0};
    pthread_t threads[4];
    pair_open(&sides[0], &sides[1], 4096, 4);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, hammer, sides) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    pair_close_side(&sides[0]);
    pair_close_side(&sides[1]);
}

static void test_close_with_transfers_in_flight(void)
{
    struct side a = {0}, b = {0};
    pair_open(&a, &b, 4 * MIB, 4);
    uint8_t *local = malloc(4 * MIB);
    struct tn_transfer *transfer =
        pair_start(&a, &b.remote, TN_OP_READ, local, 4 * MIB, NULL, TN_NO_DEADLINE);
    tn_peer_release(a.peer);
    CHECK(tn_region_close(a.region, LONG) == TN_OK);
    tn_region_release(a.region);
    tn_engine_close(a.engine);
    CHECK(tn_transfer_quiet(transfer) == 1);
    int status = tn_transfer_status(transfer);
    CHECK_TEXT(status == TN_OK || status == TN_CLOSED, tn_status_name(status));
    tn_transfer_release(transfer);
    free(a.memory);
    free(local);
    pair_close_side(&b);
}

static void test_self(void)
{
    struct side a = {0};
    uint8_t local[100];
    pair_open_side(&a, 1, 4096, 2);
    CHECK(tn_peer_open_self(a.engine, 5, &a.peer) == TN_OK);
    pair_finish(pair_start(&a, &a.remote, TN_OP_READ, local, sizeof(local), "me", TN_NO_DEADLINE),
                TN_OK);
    CHECK(memcmp(local, a.memory, sizeof(local)) == 0);
    struct tn_notification got;
    CHECK(tn_notification_poll(a.engine, &got) == 1 && got.peer_cookie == 5);
    pair_close_side(&a);
}

int main(void)
{
    test_read_and_write();
    test_notifications_push_back();
    test_deadline_and_cancel_while_without_credit();
    test_errors_before_a_byte_moves();
    test_atomics_are_checked();
    test_closed_region_is_stale();
    test_submitted_while_connecting();
    test_events();
    test_queue();
    test_many_threads();
    test_close_with_transfers_in_flight();
    test_self();
    return 0;
}
