/* Mapping a peer's memory: what its owner can see of it, and what becomes of it when one side goes.
 * The owner is another process. */
#include <string.h>
#include <unistd.h>

#include "providers/shm/map.h"
#include "tests/check.h"
#include "tests/shm_pair.h"

#define BOTH (TN_READ | TN_WRITE)
#define AREA 65536

/* In the owner's process: whether any of the region's bytes are held. */
static void expect_held(struct fake_host *owner, struct tn_region *region, uint64_t held)
{
    uint32_t number = tn_segment_number(region->segment);
    uint64_t offset = region->remote.segment_offset, end = offset + region->remote.length;
    CHECK(tn_regions_held(owner->host.regions, number, offset, region->remote.length) ==
          (held != 0));
    CHECK(!tn_regions_held(owner->host.regions, number, 0, offset));
    CHECK(!tn_regions_held(owner->host.regions, number, end, UINT64_MAX - end));
    CHECK(!tn_regions_held(owner->host.regions, number + 1, offset, region->remote.length));
}

static struct shm_pair *open_pair(bool no_pid)
{
    static struct shm_options options;
    options = (struct shm_options){.own = expect_held, .no_pid = no_pid};
    return shm_pair_open(&options);
}

static void expect(struct shm_pair *pair, bool held)
{
    struct shm_request request = {.command = SHM_OWN, .number = held};
    CHECK(shm_tell(pair, request, NULL) == TN_OK);
}

static void end_region(struct shm_pair *pair)
{
    struct shm_request request = {.command = SHM_CLOSE};
    CHECK(shm_tell(pair, request, NULL) == TN_OK);
}

static int map(struct shm_pair *pair, const struct tn_remote *remote, uint64_t offset,
               uint64_t length, struct tn_map **out)
{
    const uint64_t extent[2] = {offset, length};
    return tn_shm_map_begin(pair->connection, NULL, remote, extent, out);
}

static void check_pattern(const void *bytes, uint8_t seed, uint64_t offset, uint64_t length)
{
    for (uint64_t i = 0; i < length; i++)
        CHECK(((const uint8_t *)bytes)[i] == shm_pattern(seed, offset + i));
}

static void test_the_owner_sees_it(bool no_pid)
{
    struct shm_pair *pair = open_pair(no_pid);
    struct tn_remote remote = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 3);
    struct tn_map *first, *second;
    expect(pair, false);
    CHECK(map(pair, &remote, 0, AREA, &first) == TN_OK && first->state == TN_OK);
    CHECK(map(pair, &remote, 5001, 7, &second) == TN_OK && second->state == TN_OK);
    check_pattern(tn_map_shared(first), 3, 0, AREA);
    check_pattern(tn_map_copy(second), 3, 5001, 7);
    CHECK(!tn_map_stale(first) && !tn_map_stale(second));
    expect(pair, true);
    tn_map_close(first);
    expect(pair, true);
    end_region(pair);
    CHECK(tn_map_stale(second));
    expect(pair, true);
    tn_map_close(second);
    expect(pair, false);
    shm_pair_close(pair);
}

static void test_a_copy_is_private(void)
{
    struct shm_pair *pair = open_pair(false);
    struct tn_remote remote = shm_make(pair, SHM_SEGMENT, TN_READ, AREA, 3);
    struct shm_request verify = {.command = SHM_VERIFY, .length = AREA, .seed = 3};
    struct tn_map *made;
    CHECK(map(pair, &remote, 0, AREA, &made) == TN_OK);
    memset(tn_map_copy(made), 0xee, AREA);
    CHECK(shm_tell(pair, verify, NULL) == TN_OK);
    check_pattern(tn_map_shared(made), 3, 0, AREA);
    tn_map_close(made);
    shm_pair_close(pair);
}

/* The link goes, by us or by the owner's death; the mapping stays. */
static void test_it_outlives(bool no_pid, bool killed)
{
    struct shm_pair *pair = open_pair(no_pid);
    struct tn_remote remote = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 9);
    struct tn_map *made;
    CHECK(map(pair, &remote, 100, 5000, &made) == TN_OK);
    bool known = pair->connection->watch->pidfd >= 0; /* valgrind and qemu have no pidfd_open */
    if (killed)
        shm_kill(pair);
    tn_shm_link_ops.close(pair->connection, TN_CLOSED, "the test closes it");
    tn_shm_link_ops.free(pair->connection);
    pair->connection = NULL;
    if (!killed)
        expect(pair, true);
    /* Without a pidfd the connection was all that told of the owner. */
    CHECK(tn_map_stale(made) == (killed || !known));
    check_pattern(tn_map_shared(made), 9, 100, 5000);
    if (killed) {
        tn_map_close(made);
    } else {
        end_region(pair);
        expect(pair, true);
        CHECK(tn_map_stale(made));
        tn_map_close(made);
        expect(pair, false);
    }
    shm_pair_close(pair);
}

static void test_refusals(void)
{
    struct shm_pair *pair = open_pair(false);
    struct tn_map *made;
    struct tn_remote private = shm_make(pair, SHM_PRIVATE, BOTH, AREA, 1);
    CHECK(map(pair, &private, 0, AREA, &made) == TN_UNAVAILABLE);
    CHECK(strstr(tn_last_error(), "not pool memory"));
    CHECK(map(pair, &private, 0, 0, &made) == TN_OK && made->state == TN_OK);
    CHECK(!tn_map_shared(made) && !tn_map_copy(made) && !tn_map_stale(made));
    tn_map_close(made);
    shm_pair_close(pair);
}

/* Handles are data from outside. */
static void test_wrong_handles(void)
{
    struct shm_pair *pair = open_pair(false);
    struct tn_remote good = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1), bad;
    struct tn_map *made;
    CHECK(map(pair, &good, AREA, 1, &made) == TN_REMOTE_ACCESS);
    CHECK(map(pair, &good, UINT64_MAX, 2, &made) == TN_REMOTE_ACCESS);
    bad = good, bad.access = TN_WRITE;
    CHECK(map(pair, &bad, 0, 1, &made) == TN_REMOTE_ACCESS);
    bad = good, bad.number = UINT64_MAX;
    CHECK(map(pair, &bad, 0, 1, &made) == TN_REMOTE_ACCESS);
    bad = good, bad.generation += 1;
    CHECK(map(pair, &bad, 0, 1, &made) == TN_STALE);
    bad = good, bad.segment_offset = UINT64_MAX - 10;
    CHECK(map(pair, &bad, 0, 1, &made) == TN_OK && made->state == TN_REMOTE_ACCESS);
    CHECK(!tn_map_shared(made));
    tn_map_close(made);
    bad = good, bad.segment = 1234567;
    CHECK(map(pair, &bad, 0, 1, &made) == TN_OK && made->state == TN_UNAVAILABLE);
    tn_map_close(made);
    end_region(pair);
    CHECK(map(pair, &good, 0, 1, &made) == TN_STALE);
    expect(pair, false);
    shm_pair_close(pair);
}

/* Given up before the segment has come, or with the link. */
static void test_given_up(void)
{
    struct shm_pair *pair = open_pair(false);
    struct tn_remote remote = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1);
    struct tn_map *first, *second;
    pair->hold = true;
    CHECK(map(pair, &remote, 0, AREA, &first) == TN_OK && first->state == TN_PENDING);
    CHECK(map(pair, &remote, 0, AREA, &second) == TN_OK && second->state == TN_PENDING);
    expect(pair, true);
    tn_shm_map_forgo(first);
    CHECK(first->state == TN_CANCELLED);
    tn_map_close(first);
    tn_shm_link_ops.close(pair->connection, TN_PEER_LOST, "the test loses it");
    CHECK(second->state == TN_PEER_LOST && strstr(second->text, "the test loses it"));
    tn_map_close(second);
    expect(pair, false);
    CHECK(map(pair, &remote, 0, AREA, &first) == TN_PEER_LOST);
    expect(pair, false);
    shm_pair_close(pair);
}

static void test_no_more_than_there_is_room_for(void)
{
    static struct tn_hazard_page page;
    static struct tn_hold *holds[TN_HAZARD_HOLDS];
    for (int i = 0; i < TN_HAZARD_HOLDS; i++)
        CHECK((holds[i] = tn_hazard_hold(&page, 1, (uint64_t)i, 1)));
    CHECK(!tn_hazard_hold(&page, 1, 0, 1));
    tn_hazard_let_go(holds[77]);
    CHECK(tn_hazard_hold(&page, 1, 0, 1) == holds[77]);
    CHECK(page.holds_used == TN_HAZARD_HOLDS);
}

int main(void)
{
    for (int no_pid = 0; no_pid <= 1; no_pid++) {
        test_the_owner_sees_it(no_pid);
        test_it_outlives(no_pid, false);
        test_it_outlives(no_pid, true);
    }
    test_a_copy_is_private();
    test_refusals();
    test_wrong_handles();
    test_given_up();
    test_no_more_than_there_is_room_for();
    return 0;
}
