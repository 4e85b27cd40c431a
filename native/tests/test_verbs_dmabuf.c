/* Device memory, played by a memfd: which arguments its registration gets, and the ladder when it
 * is refused. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sys.h"
#include "providers/provider.h"
#include "tests/verbs_pair.h"

#define BASE UINT64_C(0x7f0000200000) /* of an allocation in "device memory": no CPU address */
#define OFFSET (4096u * 3 + 512)

static uint8_t *device;
static int device_fd;

static struct tn_region_options sub_allocation(uint64_t length)
{
    return (struct tn_region_options){.address = (void *)(uintptr_t)(BASE + OFFSET),
                                      .length = length,
                                      .access = TN_READ | TN_WRITE,
                                      .memory = TN_MEMORY_DEVICE,
                                      .dmabuf_fd = device_fd,
                                      .dmabuf_offset = OFFSET};
}

static void close_region(struct tn_region *region)
{
    CHECK(tn_region_close(region, SECOND) == TN_OK);
    tn_region_release(region);
}

/* B12: the offset within the exported range, and the address as iova; a part of it for each span.
 */
static void test_arguments(void)
{
    for (uint64_t span = 0; span <= MIB; span += MIB) {
        struct end a, b;
        verbs_pair_open(&a, &b, 4 * MIB);
        CHECK(tn_verbs_split_regions(b.verbs, span, 1) == TN_OK);
        struct tn_region_options options = sub_allocation(2 * MIB);
        struct tn_region *region;
        CHECK_TEXT(tn_region_open_with(b.engine, &options, &region) == TN_OK, tn_last_error());
        uint64_t last = span; /* where the last of two spans begins */
        CHECK(double_get("dmabuf_offset") == (long)(OFFSET + last));
        CHECK(double_get("dmabuf_iova") == (long)(BASE + OFFSET + last));
        CHECK(double_get("dmabuf_length") == (long)(2 * MIB - last));
        CHECK(double_get("dmabuf_fd") == device_fd);
        end_fill(a.memory, 3000, 1);
        end_finish(verbs_pair_move(&a, TN_OP_WRITE, a.region, 0, region, MIB - 1500, 3000), TN_OK,
                   "rc");
        CHECK(memcmp(a.memory, device + OFFSET + MIB - 1500, 3000) == 0);
        end_finish(verbs_pair_move(&a, TN_OP_READ, a.region, 8192, region, MIB - 1500, 3000), TN_OK,
                   "rc");
        CHECK(memcmp(a.memory, a.memory + 8192, 3000) == 0);
        close_region(region);
        verbs_pair_close(&a, &b);
    }
}

/* B15: each refusal with its reason, and both rungs of the ladder; B14: no abort. */
static void test_every_refusal(void)
{
    static const struct {
        int error;
        const char *text;
    } cases[] = {{EOPNOTSUPP, "the kernel (5.12 or newer) or the NIC's driver"},
                 {EINVAL, "cannot export it to this NIC"},
                 {EPERM, "not permitted"},
                 {EFAULT, "gives no addresses"},
                 {ENOMEM, "BAR1 space"},
                 {EBADF, "no dma-buf"}};
    struct end a, b;
    struct tn_region *region;
    verbs_pair_open(&a, &b, 4 * MIB);
    tn_engine_host(b.engine)->gpu_direct = TN_GPU_DIRECT_REQUIRE;
    struct tn_region_options options = sub_allocation(MIB);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        double_set("dmabuf_errno", cases[i].error);
        double_set("reg_errno", EFAULT);
        CHECK(tn_region_open_with(b.engine, &options, &region) == TN_SYSTEM);
        CHECK(tn_last_errno() == EFAULT);
        CHECK_TEXT(strstr(tn_last_error(), cases[i].text), tn_last_error());
        CHECK_TEXT(strstr(tn_last_error(), "through peer memory (nvidia-peermem") &&
                       strstr(tn_last_error(), "Bad address"),
                   tn_last_error());
        /* The next rung holds: a module that understands the address. */
        double_set("reg_errno", 0);
        CHECK(tn_region_open_with(b.engine, &options, &region) == TN_OK);
        close_region(region);
    }
    /* B16 */
    double_set("reg_errno", ENOMEM);
    CHECK(tn_region_open_with(b.engine, &options, &region) == TN_NOMEM);
    CHECK_TEXT(strstr(tn_last_error(), "BAR1"), tn_last_error());
    options.dmabuf_fd = -1;
    CHECK(tn_region_open_with(b.engine, &options, &region) == TN_NOMEM);
    CHECK_TEXT(strstr(tn_last_error(), "a GPU's own memory only"), tn_last_error());
    double_set("reg_errno", 0);
    double_set("dmabuf_errno", 0);
    verbs_pair_close(&a, &b);
}

/* No CPU touches it: neither this engine's for a peer, nor a peer's. */
static void test_only_rdma_reaches_it(void)
{
    struct end a, b;
    struct tn_region *region;
    verbs_pair_open(&a, &b, 4 * MIB);
    struct tn_region_options options = sub_allocation(MIB);
    CHECK(tn_region_open_with(b.engine, &options, &region) == TN_OK);
    struct tn_remote remote;
    tn_region_describe(region, &remote);
    CHECK(remote.memory == TN_MEMORY_DEVICE);
    struct tn_range range = end_range(&a, 0, 0, 64);
    struct tn_batch batch = {.op = TN_OP_READ,
                             .providers = 1u << TN_PROVIDER_TCP,
                             .remotes = &remote,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .deadline_ns = TN_NO_DEADLINE};
    struct tn_transfer *transfer;
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_OK);
    struct tn_result result = end_result(transfer);
    CHECK_TEXT(result.status == TN_NO_PATH && strstr(result.text, "cannot reach device memory"),
               result.text);
    remote.memory = TN_MEMORY_HOST; /* a peer that says otherwise */
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_OK);
    end_finish(transfer, TN_REMOTE_ACCESS, "tcp");
    close_region(region);
    verbs_pair_close(&a, &b);
}

/* D13: a payload that travels inside its work request would be read by the CPU. */
static void test_never_inline(void)
{
    struct end a, b;
    struct tn_region *region;
    verbs_pair_open(&a, &b, 4 * MIB);
    struct tn_region_options options = sub_allocation(MIB);
    CHECK(tn_region_open_with(a.engine, &options, &region) == TN_OK);
    memset(device + OFFSET, 0x5c, 64);
    long before = double_get("inlined");
    for (uint64_t length = 1; length <= 64; length *= 2)
        end_finish(verbs_pair_move(&a, TN_OP_WRITE, region, 0, b.region, 0, length), TN_OK, "rc");
    CHECK(double_get("inlined") == before && b.memory[0] == 0x5c && b.memory[63] == 0x5c);
    close_region(region);
    verbs_pair_close(&a, &b);
}

int main(void)
{
    if (!double_open())
        return 77;
    device_fd = tn_sys_memfd("device memory");
    CHECK(device_fd >= 0 && ftruncate(device_fd, 4 * MIB) == 0);
    device = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, device_fd, 0);
    CHECK(device != MAP_FAILED);
    double_set("dmabuf_errno", 0);
    test_arguments();
    test_every_refusal();
    test_only_rdma_reaches_it();
    test_never_inline();
    return 0;
}
