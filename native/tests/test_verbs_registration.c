/* Registering memory with the double: flags, refusals and what is said of them, lifetimes. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "providers/verbs/verbs.h"
#include "tests/verbs_pair.h"

#define PAGE 4096u
#define RELAXED (1 << 20) /* IBV_ACCESS_RELAXED_ORDERING */
enum { LOCAL_WRITE = 1, REMOTE_WRITE = 2, REMOTE_READ = 4, REMOTE_ATOMIC = 8 };

static struct tn_region *open_region(struct end *end, void *address, uint64_t length,
                                     uint32_t access)
{
    struct tn_region *region;
    CHECK_TEXT(tn_region_open(end->engine, address, length, access, NULL, &region) == TN_OK,
               tn_last_error());
    return region;
}

static void close_region(struct tn_region *region)
{
    CHECK(tn_region_close(region, SECOND) == TN_OK);
    tn_region_release(region);
}

static uint32_t key_of(struct tn_region *region, int rail)
{
    struct tn_remote remote;
    tn_region_describe(region, &remote);
    return remote.rkeys[rail];
}

static long flags_of(struct tn_region *region)
{
    return double_access(key_of(region, 0));
}

static void refused(struct end *end, uint64_t length, int status, const char *const *parts)
{
    struct tn_region *region;
    long mrs = double_get("mrs");
    CHECK(tn_region_open(end->engine, end->memory, length, TN_READ, NULL, &region) == status);
    for (; *parts; parts++)
        CHECK_TEXT(strstr(tn_last_error(), *parts), tn_last_error());
    CHECK(double_get("mrs") == mrs);
}

/* Peers get what was offered, atomic operations where they may do both and the device can; memory
 * for own use only is nobody's by any key. */
static void test_access_flags(void)
{
    static const long wanted[] = {LOCAL_WRITE, LOCAL_WRITE | REMOTE_READ,
                                  LOCAL_WRITE | REMOTE_WRITE,
                                  LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE};
    for (long atomics = 0; atomics < 2; atomics++) {
        struct end a, b;
        double_set("atomic_cap", atomics);
        verbs_pair_open(&a, &b, 4 * MIB);
        for (uint32_t access = 0; access < 4; access++) {
            struct tn_region *region = open_region(&a, a.memory, PAGE, access);
            long more = access == 3 && atomics ? REMOTE_ATOMIC : 0;
            CHECK((flags_of(region) & 0xffff) == (wanted[access] | more));
            end_finish(verbs_pair_move(&a, TN_OP_READ, region, 0, b.region, 0, PAGE), TN_OK, "rc");
            close_region(region);
        }
        verbs_pair_close(&a, &b);
    }
}

/* J5: a kernel that refuses the flag is asked once. J4: where order matters it is never asked. */
static void test_relaxed_ordering(void)
{
    static const int errors[] = {0, EINVAL, EOPNOTSUPP};
    for (size_t i = 0; i < 3; i++) {
        struct end a, b;
        double_set("relaxed_errno", errors[i]);
        verbs_pair_open(&a, &b, 4 * MIB);
        CHECK((flags_of(a.region) & RELAXED) == (errors[i] ? 0 : RELAXED));
        end_finish(verbs_pair_move(&a, TN_OP_WRITE, a.region, 0, b.region, 0, PAGE), TN_OK, "rc");
        long ring = double_access(a.link->ring_mrs[0]->rkey);
        CHECK(ring == (LOCAL_WRITE | REMOTE_WRITE));
        double_set("relaxed_errno", 0);
        struct tn_region *region = open_region(&a, a.memory, PAGE, TN_READ);
        CHECK((flags_of(region) & RELAXED) == (errors[i] ? 0 : RELAXED));
        close_region(region);
        verbs_pair_close(&a, &b);
    }
}

/* B2, B3, B4, B23: out of memory has many reasons, and all of them are shown. */
static void test_out_of_memory_is_explained(void)
{
    struct end a, b;
    struct rlimit before, small = {.rlim_cur = 65536};
    char limit[64];
    verbs_pair_open(&a, &b, 4 * MIB);
    CHECK(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
    small.rlim_max = before.rlim_max;
    bool limited = before.rlim_max >= 65536 && setrlimit(RLIMIT_MEMLOCK, &small) == 0;
    snprintf(limit, sizeof(limit), "RLIMIT_MEMLOCK is %s", limited ? "65536 bytes" : "");
    const char *parts[] = {"fake0 cannot register 4096 bytes: Cannot allocate memory",
                           limit,
                           "bytes are locked",
                           "this engine holds",
                           "of vm.max_map_count",
                           "raise the one that is too small",
                           NULL};
    double_set("reg_errno", ENOMEM);
    refused(&a, PAGE, TN_NOMEM, parts);
    CHECK(tn_last_errno() == ENOMEM);
    double_set("reg_errno", 0);
    long most = double_set("max_mr", double_get("mrs"));
    refused(&a, PAGE, TN_NOMEM, parts);
    double_set("max_mr", most);
    setrlimit(RLIMIT_MEMLOCK, &before);
    verbs_pair_close(&a, &b);
}

static void test_other_refusals_are_explained(void)
{
    struct end a, b;
    verbs_pair_open(&a, &b, 4 * MIB);
    static const struct {
        int error;
        const char *parts[3];
    } cases[] = {{EFAULT, {"not mapped, or read-only", "Bad address"}},
                 {EPERM, {"CAP_IPC_LOCK", "Operation not permitted"}},
                 {EINVAL, {"more than the device registers at once", "Invalid argument"}},
                 {EIO, {"fake0 cannot register 4096 bytes", "Input/output error"}}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        double_set("reg_errno", cases[i].error);
        refused(&a, PAGE, TN_SYSTEM, cases[i].parts);
        CHECK(tn_last_errno() == cases[i].error);
    }
    /* B6 */
    void *huge = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (huge != MAP_FAILED) {
        struct tn_region *region;
        double_set("reg_errno", EINVAL);
        CHECK(tn_region_open(a.engine, huge, PAGE, TN_READ, NULL, &region) == TN_SYSTEM);
        CHECK_TEXT(strstr(tn_last_error(), "RDMAV_HUGEPAGES_SAFE"), tn_last_error());
        munmap(huge, 2 * MIB);
    }
    double_set("reg_errno", 0);
    verbs_pair_close(&a, &b);
}

/* B7: a rail that cannot register a region is visible, and the others carry it. */
static void test_a_rail_that_fails(void)
{
    struct end a, b;
    char text[2048];
    double_set("devices", 2);
    double_set("fake1.reg_errno", ENOMEM);
    verbs_pair_open(&a, &b, 4 * MIB);
    struct tn_verbs_rail_options options = {.device = "fake1",
                                            .piece_bytes = MIB,
                                            .window_bytes = MIB,
                                            .port = 1,
                                            .gid_index = 1,
                                            .send_depth = 16,
                                            .notify_slots = END_DEPTH};
    struct tn_verbs_rail *rail;
    CHECK_TEXT(tn_verbs_rail_open(a.verbs, &options, &rail) == TN_OK, tn_last_error());
    struct tn_region *region = open_region(&a, a.memory, MIB, TN_READ);
    CHECK(tn_region_missing(region) == 1 && key_of(region, 0) && !key_of(region, 1));
    tn_region_explain(region, text, sizeof(text));
    CHECK_TEXT(strstr(text, "fake0:1: 1 registration\nfake1:1: not registered: fake1 cannot"),
               text);
    end_finish(verbs_pair_move(&b, TN_OP_READ, b.region, 0, region, 0, MIB), TN_OK, "rc");
    tn_region_explain(a.region, text, sizeof(text));
    CHECK_TEXT(strstr(text, "fake1:1: not registered: opened before the device was"), text);
    close_region(region);
    double_set("fake0.reg_errno", ENOMEM);
    const char *parts[] = {"fake0 cannot register", NULL};
    refused(&a, PAGE, TN_NOMEM, parts);
    double_set("reg_errno", 0);
    region = open_region(&a, a.memory, MIB, TN_READ);
    CHECK(tn_region_missing(region) == 0 && key_of(region, 1));
    close_region(region);
    double_set("devices", 1);
    verbs_pair_close(&a, &b);
}

/* B21, and what a key is: regions in one page, or of the very same bytes, share nothing that
 * closing one of them could take from the other or leave to its peers. */
static void test_regions_do_not_disturb_each_other(void)
{
    struct end a, b;
    verbs_pair_open(&a, &b, 4 * MIB);
    struct tn_region *left = open_region(&b, b.memory, 100, 3);
    struct tn_region *right = open_region(&b, b.memory + 100, 100, 3);
    struct tn_region *twin = open_region(&b, b.memory + 100, 100, 3);
    uint32_t old = key_of(twin, 0);
    CHECK(old != key_of(right, 0));
    close_region(left);
    close_region(twin);
    CHECK(double_access(old) == -1);
    end_fill(a.memory, 100, 9);
    end_finish(verbs_pair_move(&a, TN_OP_WRITE, a.region, 0, right, 0, 100), TN_OK, "rc");
    CHECK(memcmp(a.memory, b.memory + 100, 100) == 0);
    close_region(right);
    verbs_pair_close(&a, &b);
}

/* C3, C5: other memory of another size at the same address has its own registration. */
static void test_an_address_that_is_used_again(void)
{
    struct end a, b;
    verbs_pair_open(&a, &b, 4 * MIB);
    uint8_t *at = NULL;
    uint32_t before = 0;
    for (uint64_t pages = 8; pages; pages -= 4) {
        at = mmap(at, 8 * PAGE, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
        CHECK(at != MAP_FAILED);
        struct tn_region *region = open_region(&b, at, pages * PAGE, 3);
        CHECK(key_of(region, 0) != before && double_access(before) == -1);
        before = key_of(region, 0);
        end_fill(a.memory, pages * PAGE, (unsigned)pages);
        end_finish(verbs_pair_move(&a, TN_OP_WRITE, a.region, 0, region, 0, pages * PAGE), TN_OK,
                   "rc");
        CHECK(memcmp(a.memory, at, pages * PAGE) == 0);
        close_region(region);
        munmap(at, 8 * PAGE);
    }
    verbs_pair_close(&a, &b);
}

/* B4, B24: nothing is left of 10,000 registrations. */
static void test_ten_thousand_cycles(void)
{
    struct end a, b;
    int cycles = getenv("TN_SLOW") ? 1000 : 10000;
    verbs_pair_open(&a, &b, 4 * MIB);
    close_region(open_region(&a, a.memory, MIB, 3));
    long mrs = double_get("mrs"), ever = double_get("registrations");
    unsigned long descriptors = open_descriptors(), maps = mapped_ranges();
    for (int i = 0; i < cycles; i++)
        close_region(open_region(&a, a.memory + i % 100 * 100, 1000 + (uint64_t)i, 3));
    CHECK(double_get("registrations") == ever + cycles && double_get("mrs") == mrs);
    CHECK(open_descriptors() == descriptors);
    CHECK(mapped_ranges() <= maps + 2); /* the allocator may have grown */
    verbs_pair_close(&a, &b);
}

int main(void)
{
    if (!double_open())
        return 77;
    test_access_flags();
    test_relaxed_ordering();
    test_out_of_memory_is_explained();
    test_other_refusals_are_explained();
    test_a_rail_that_fails();
    test_regions_do_not_disturb_each_other();
    test_an_address_that_is_used_again();
    test_ten_thousand_cycles();
    return 0;
}
