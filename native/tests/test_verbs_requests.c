/* How pieces become work requests, over the double of libibverbs: inline payloads. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sys.h"
#include "tests/verbs_pair.h"

#define INLINE 64u /* what the ends ask for */

static long inlined_by(struct end *a, uint32_t op, struct tn_region *local,
                       struct tn_region *remote, uint64_t length)
{
    long before = double_get("inlined");
    end_finish(verbs_pair_move(a, op, local, 0, remote, 4096, length), TN_OK, "rc");
    return double_get("inlined") - before;
}

/* A small write carries its bytes in the work request; reads, and larger writes, do not. */
static void test_small_writes_travel_inline(void)
{
    struct end a, b;
    verbs_pair_open(&a, &b, MIB);
    for (unsigned seed = 1; seed < 4; seed++) {
        end_fill(a.memory, 2 * INLINE, seed);
        CHECK(inlined_by(&a, TN_OP_WRITE, a.region, b.region, 8) == 1);
        CHECK(inlined_by(&a, TN_OP_WRITE, a.region, b.region, INLINE) == 1);
        CHECK(memcmp(a.memory, b.memory + 4096, INLINE) == 0);
        CHECK(inlined_by(&a, TN_OP_WRITE, a.region, b.region, INLINE + 1) == 0);
        CHECK(inlined_by(&a, TN_OP_READ, a.region, b.region, 8) == 0);
    }
    verbs_pair_close(&a, &b);
}

/* A lost path: what was inline is moved again, from the memory it came from. */
static void test_inline_is_moved_again(void)
{
    struct end a, b;
    verbs_pair_open(&a, &b, MIB);
    CHECK(inlined_by(&a, TN_OP_WRITE, a.region, b.region, 8) == 1);
    end_fill(a.memory, 8, 9);
    double_set("fail_status", 12); /* IBV_WC_RETRY_EXC_ERR */
    double_set("fail_after", 0);
    CHECK(inlined_by(&a, TN_OP_WRITE, a.region, b.region, 8) == 2);
    CHECK(memcmp(a.memory, b.memory + 4096, 8) == 0);
    double_set("fail_after", -1);
    verbs_pair_close(&a, &b);
}

/* D13: no CPU touches device memory, so its bytes are the device's to fetch. */
static void test_device_memory_is_not_inline(void)
{
    struct end a, b;
    int fd = tn_sys_memfd("device");
    CHECK(fd >= 0 && ftruncate(fd, MIB) == 0);
    uint8_t *bytes = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(bytes != MAP_FAILED);
    double_set("dmabuf_errno", 0);
    verbs_pair_open(&a, &b, MIB);
    /* No CPU address: copying from it would end this program. */
    struct tn_region_options options = {.address = (void *)(uintptr_t)0x7f0000200000,
                                        .length = MIB,
                                        .access = TN_READ | TN_WRITE,
                                        .memory = TN_MEMORY_DEVICE,
                                        .dmabuf_fd = fd};
    struct tn_region *device;
    CHECK_TEXT(tn_region_open_with(a.engine, &options, &device) == TN_OK, tn_last_error());
    end_fill(bytes, 8, 3);
    CHECK(inlined_by(&a, TN_OP_WRITE, device, b.region, 8) == 0);
    CHECK(memcmp(bytes, b.memory + 4096, 8) == 0);
    CHECK(tn_region_close(device, SECOND) == TN_OK);
    tn_region_release(device);
    verbs_pair_close(&a, &b);
    munmap(bytes, MIB);
    close(fd);
}

int main(void)
{
    if (!double_open())
        return 77;
    test_small_writes_travel_inline();
    test_inline_is_moved_again();
    test_device_memory_is_not_inline();
    return 0;
}
