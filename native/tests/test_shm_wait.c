/* Segments that come late, never, or wrong; and transfers within one engine. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/shm_pair.h"

#define BOTH (TN_READ | TN_WRITE)
#define AREA 8192

static uint8_t local[AREA];

static struct tn_transfer *begin(struct shm_pair *pair, const struct tn_remote *remote)
{
    struct tn_range range = {.local_address = (uintptr_t)local, .length = AREA, .rows = 1};
    memset(local, 0, sizeof(local));
    return shm_begin(pair, TN_OP_READ, remote, 1, &range, 1);
}

/* What the stream does when the answer arrives. */
static void deliver(struct shm_pair *pair, uint32_t number, int fd)
{
    tn_shm_link_ops.segment(pair->connection, number, fd);
}

static int fetch(struct shm_pair *pair, uint32_t number)
{
    int before = pair->asked;
    pair->hold = false;
    pair->fake.host.want_segment(&pair->fake.host, NULL, number); /* delivers too */
    pair->hold = true;
    return pair->asked - before;
}

static void test_asks_once_and_waits(void)
{
    struct shm_options options = {0};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remote = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1);
    pair->hold = true;
    struct tn_transfer *first = begin(pair, &remote), *second = begin(pair, &remote);
    CHECK(pair->asked == 1 && pair->held == remote.segment);
    CHECK(fake_status(first) == TN_PENDING && !fake_quiet(second));
    CHECK(fetch(pair, remote.segment) == 1);
    CHECK(pair->worked == 2); /* handed to whoever copies, whatever their size */
    CHECK(shm_end(pair, first) == TN_OK && shm_end(pair, second) == TN_OK);
    CHECK(!strcmp(pair->why, "mapped") && local[9] == shm_pattern(1, 9));
    shm_pair_close(pair);
}

static void test_waits_for_all_of_its_segments(void)
{
    struct shm_options options = {0};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remotes[2] = {shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1),
                                   shm_make(pair, SHM_SEGMENT, TN_READ, AREA, 2)};
    struct tn_range ranges[2] = {
        {.local_address = (uintptr_t)local, .length = 9, .rows = 1, .remote = 1},
        {.local_address = (uintptr_t)local + 9, .length = 9, .rows = 1, .remote = 0}};
    pair->hold = true;
    struct tn_transfer *transfer = shm_begin(pair, TN_OP_READ, remotes, 2, ranges, 2);
    CHECK(pair->asked == 2);
    fetch(pair, remotes[1].segment);
    CHECK(pair->worked == 0);
    fetch(pair, remotes[0].segment);
    CHECK(pair->worked == 1 && shm_end(pair, transfer) == TN_OK && !strcmp(pair->why, "mapped"));
    CHECK(local[8] == shm_pattern(2, 8) && local[9] == shm_pattern(1, 0));
    shm_pair_close(pair);
}

static void test_cancelled_while_it_waits(void)
{
    struct shm_options options = {0};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remote = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1);
    pair->hold = true;
    struct tn_transfer *first = begin(pair, &remote), *second = begin(pair, &remote);
    tn_transfer_fail(first, TN_CANCELLED, 0, 0, "cancelled by the test");
    tn_shm_link_ops.cancel(pair->connection, first);
    tn_shm_link_ops.cancel(pair->connection, first);
    CHECK(fake_quiet(first) && fake_status(first) == TN_CANCELLED);
    tn_transfer_fail(second, TN_DEADLINE, 0, 0, "too late"); /* and nobody tells the link */
    fetch(pair, remote.segment);
    CHECK(local[9] == 0);
    CHECK(shm_end(pair, first) == TN_CANCELLED && shm_end(pair, second) == TN_DEADLINE);
    shm_pair_close(pair);
}

static void test_link_closes_while_they_wait(void)
{
    struct shm_options options = {.inline_bytes = 1};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remote = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1);
    CHECK(shm_move(pair, TN_OP_READ, &remote, 0, local, 8) == TN_OK);
    struct tn_remote other = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1);
    pair->hold = true;
    struct tn_transfer *waits = begin(pair, &other), *works = begin(pair, &remote);
    tn_shm_link_ops.close(pair->connection, TN_PEER_LOST, "gone");
    CHECK(fake_quiet(waits) && fake_quiet(works));
    struct tn_transfer *late = begin(pair, &remote);
    CHECK(fake_quiet(late));
    CHECK(shm_end(pair, waits) == TN_PEER_LOST && !strcmp(pair->why, "gone"));
    CHECK(shm_end(pair, works) == TN_PEER_LOST && shm_end(pair, late) == TN_PEER_LOST);
    shm_pair_close(pair);
}

/* With process_vm it is carried all the same; without, the next one is not accepted. */
static void test_refused(bool no_pid, int fd)
{
    struct shm_options options = {.no_pid = no_pid};
    struct shm_pair *pair = shm_pair_open(&options);
    bool process_vm = tn_shm_connection_process_vm(pair->connection, pair->why, sizeof(pair->why));
    struct tn_remote remote = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1);
    pair->hold = true;
    struct tn_transfer *transfer = begin(pair, &remote);
    deliver(pair, remote.segment, fd);
    int status = shm_end(pair, transfer);
    if (process_vm) {
        CHECK(status == TN_OK && !strcmp(pair->why, "process_vm"));
        CHECK(local[9] == shm_pattern(1, 9));
    } else {
        const char *reason = fd < 0 ? "does not give" : "not sealed";
        CHECK_TEXT(status == TN_NO_PATH && strstr(pair->why, reason), pair->why);
        CHECK_TEXT(!begin(pair, &remote) && strstr(pair->why, reason), pair->why);
    }
    CHECK(pair->asked == 1);
    shm_pair_close(pair);
}

/* The owner closed the region while the segment was on its way. */
static void test_refused_because_closed(void)
{
    struct shm_options options = {.no_pid = true};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remote = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1);
    pair->hold = true;
    struct tn_transfer *transfer = begin(pair, &remote);
    struct shm_request end = {.command = SHM_CLOSE};
    CHECK(shm_tell(pair, end, NULL) == TN_OK);
    deliver(pair, remote.segment, -1);
    CHECK(shm_end(pair, transfer) == TN_STALE);
    shm_pair_close(pair);
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void test_unasked_and_dropped(void)
{
    struct shm_options options = {0};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remote = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1);
    int fd = dup(0);
    CHECK(!tn_shm_link_ops.segment(pair->connection, 12345, fd)); /* another link's, perhaps */
    CHECK(is_open(fd) && close(fd) == 0);
    deliver(pair, 12345, -1);
    CHECK(shm_move(pair, TN_OP_READ, &remote, 0, local, 8) == TN_OK && pair->asked == 1);
    fetch(pair, remote.segment); /* a second one for what is mapped already: dropped */
    CHECK(shm_move(pair, TN_OP_READ, &remote, 0, local, 8) == TN_OK && pair->asked == 2);
    pair->hold = false;
    struct tn_shm_segment *used = tn_shm_segment_hold(pair->connection, remote.segment);
    deliver(pair, remote.segment, -1); /* its owner has closed it: unmapped, once nobody uses it */
    CHECK(used && used->mapping.address[remote.segment_offset + 9] == shm_pattern(1, 9));
    tn_shm_segment_release(used);
    CHECK(shm_move(pair, TN_OP_READ, &remote, 0, local, 8) == TN_OK && pair->asked == 3);
    shm_pair_close(pair);
}

/* ---- one engine on both ends --------------------------------------------------------------- */
static int move_self(struct fake_host *fake, uint32_t op, const struct tn_remote *remote,
                     uint64_t offset, void *at, uint64_t length)
{
    struct tn_range range = {
        .local_address = (uintptr_t)at, .remote_offset = offset, .length = length, .rows = 1};
    struct tn_transfer *transfer = fake_transfer(fake, op, remote, 1, &range, 1, NULL);
    char why[TN_TEXT_BYTES];
    transfer->bytes = length;
    transfer->link = &fake->host;
    CHECK(tn_self_link_ops.accepts(&fake->host, transfer, why, sizeof(why)) == TN_OK);
    tn_self_link_ops.start(&fake->host, transfer);
    CHECK(fake_quiet(transfer) && !strcmp(transfer->path, "self"));
    int status = fake_status(transfer);
    tn_transfer_unreference(transfer);
    return status;
}

static void test_self(void)
{
    struct fake_options options = {.chunk_bytes = 100};
    static struct fake_host fake;
    static uint8_t memory[AREA], expected[AREA];
    struct tn_region *region;
    fake_host_open(&fake, &options);
    CHECK(tn_regions_add(fake.host.regions, memory, AREA, BOTH, NULL, &region) == TN_OK);
    struct tn_remote remote = region->remote, bad = remote;
    for (uint64_t i = 0; i < AREA; i++)
        memory[i] = expected[i] = shm_pattern(1, i);
    CHECK(move_self(&fake, TN_OP_READ, &remote, 5, local, 5000) == TN_OK);
    CHECK(!memcmp(local, memory + 5, 5000));
    memset(local, 9, 100);
    CHECK(move_self(&fake, TN_OP_WRITE, &remote, 7, local, 100) == TN_OK);
    memcpy(expected + 7, local, 100);
    CHECK(!memcmp(memory, expected, AREA));
    /* Onto itself, shifted up and down, over many chunks. */
    CHECK(move_self(&fake, TN_OP_WRITE, &remote, 50, memory, 4000) == TN_OK);
    memmove(expected + 50, expected, 4000);
    CHECK(!memcmp(memory, expected, AREA));
    CHECK(move_self(&fake, TN_OP_READ, &remote, 3000, memory + 2990, 4000) == TN_OK);
    memmove(expected + 2990, expected + 3000, 4000);
    CHECK(!memcmp(memory, expected, AREA));
    bad.key[0] ^= 1;
    CHECK(move_self(&fake, TN_OP_READ, &bad, 0, local, 8) == TN_REMOTE_ACCESS);
    CHECK(move_self(&fake, TN_OP_READ, &remote, AREA - 7, local, 8) == TN_REMOTE_ACCESS);
    tn_regions_revoke(region);
    CHECK(move_self(&fake, TN_OP_READ, &remote, 0, local, 8) == TN_STALE);
    CHECK(atomic_load(&region->users) == 0);
    fake_host_close(&fake);
}

int main(void)
{
    test_asks_once_and_waits();
    test_waits_for_all_of_its_segments();
    test_cancelled_while_it_waits();
    test_link_closes_while_they_wait();
    for (int no_pid = 0; no_pid <= 1; no_pid++) {
        test_refused(no_pid, -1);
        test_refused(no_pid, dup(STDIN_FILENO));
    }
    test_refused_because_closed();
    test_unasked_and_dropped();
    test_self();
    return 0;
}
