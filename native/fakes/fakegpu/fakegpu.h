/* A software double of a GPU driver; fakecuda and fakehip put their names and layouts over it.
 * README.md beside this folder tells what it can do and lists its knobs. What lies in which file:
 *
 *   knobs.c    settings, faults, counters; which functions a version has; the beginning of a call
 *   devices.c  devices, which of them are visible, contexts
 *   physical.c physical memory and handles of it
 *   memory.c   addresses and mappings, memory that is its own mapping
 *   host.c     host memory that the driver knows
 *   pointer.c  what an address is
 *   share.c    descriptors and handles that other processes open
 *   streams.c  streams as threads, events, copies
 *
 * "Device" memory is a memfd. At the address that the program gets it is mapped without any right,
 * so that a CPU that touches it dies; the threads that copy have a mapping of their own.
 *
 * Locks: fake_lock guards everything. Functions return the numbers that CUDA and HIP share.
 */
#ifndef FAKEGPU_H
#define FAKEGPU_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/cuda.h"

enum { FAKE_DEVICES = 8, FAKE_PAGE = 4096 };

/* Of a thread, in the place that every thread has from its beginning: what is made later for a
 * library that was opened is freed where ThreadSanitizer does not see whose it was. */
#define FAKE_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

/* ---- for tests; see README.md */
long fakegpu_ctl(const char *name, long value); /* the old value; ends the program when there is
                                                   no such knob */
long fakegpu_get(const char *name);
void fakegpu_set(const char *name, const char *text);
/* After `after` calls of the function, `count` (-1: all) return `code`. */
void fakegpu_fail(const char *function, long after, long count, long code);
void fakegpu_reset(void); /* knobs and counters of calls as at the beginning; what exists stays */
/* The bytes behind device memory, mapped for the CPU once more; NULL: not all of it is mapped.
 * munmap releases it. For a double of a NIC (peer memory), and for a test that looks. */
int fakegpu_owns(uint64_t address); /* 1: an address of "device" memory, or reserved for it */
void *fakegpu_peek(uint64_t address, size_t bytes);

/* ---- knobs.c */
struct fake_knobs {
    long devices, version, stub, granularity, memory, visible, delay_us, hold;
    long vmm, share_fd, rdma, rdma_vmm, dmabuf, pcie_flag, coherent, peers, legacy_ipc;
    long flush_options, writes_ordering, integrated, large_bar, need_context;
    /* counters */
    long physical, handles, reservations, mappings, pinned, managed, streams, events, contexts;
    long ipc_opened, copies, copied_bytes, flushes, sync_memops, exports, imports, dmabufs;
    long peer_links, illegal, callbacks;
};
extern struct fake_knobs fake;
extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed;

/* What the front (fakecuda, fakehip) is: its name for messages, version, visibility variables. */
struct fake_front {
    const char *name;
    long version;
    const char *visible[3];
    bool starts_by_itself;
};
extern const struct fake_front fake_front;

/* A function under its name in the library: hidden from dlsym where the version lacks it, or the
 * knob `hide` names it. */
struct fake_symbol {
    const char *name;
    long since, until; /* versions; until 0: still there */
    void *address;
    struct fake_symbol *next;
};
void fake_symbol_add(struct fake_symbol *symbol);
void *fake_symbol_shown(const struct fake_symbol *symbol);
const struct fake_symbol *fake_symbol_find(const char *name);

/* The beginning of a call: counts it, and 0 or the error with which it has to end at once. `always`
 * marks what works before init. */
int fake_begin(const char *name, bool always);
extern FAKE_LOCAL bool fake_in_callback;

/* FAKE(since, until, function, arguments) { body }: exported under its name, but see above. The
 * body ends at once where fake_begin says so. */
#define FAKE_FUNCTION(result, since, until, function, ...)                           \
    static result impl_##function(__VA_ARGS__);                                      \
    static struct fake_symbol symbol_##function = {#function, since, until,          \
                                                   (void *)impl_##function, NULL};   \
    __attribute__((constructor)) static void add_##function(void)                    \
    {                                                                                \
        fake_symbol_add(&symbol_##function);                                         \
    }                                                                                \
    __attribute__((used)) static __typeof__(impl_##function) *find_##function(void)  \
    {                                                                                \
        return (__typeof__(impl_##function) *)fake_symbol_shown(&symbol_##function); \
    }                                                                                \
    result function(__VA_ARGS__) __attribute__((ifunc("find_" #function)));          \
    static result impl_##function(__VA_ARGS__)

/* ---- devices.c */
struct fake_device {
    char name[64], pci[32];
    CUuuid uuid;
    int primary; /* references to its primary context */
    int error;   /* sticky: what an asynchronous operation met */
    uint64_t used;
    unsigned peers; /* devices whose memory it may reach */
    struct fake_stream *main_stream;
};
extern struct fake_device fake_devices[FAKE_DEVICES];
void fake_devices_reset(void);
int fake_init(void);
bool fake_is_initialized(void);
int fake_device_count(int *count);
struct fake_device *fake_device(int ordinal); /* as the process numbers them; NULL: none */
int fake_device_number(const struct fake_device *device);
/* The current device of this thread, -1: none. HIP: 0 at first. */
int fake_current(void);
void fake_make_current(int ordinal);
void *fake_context(int ordinal); /* what stands for its primary context */
int fake_context_ordinal(void *context);
int fake_enable_peer(int peer); /* for the current device */

/* ---- physical.c, memory.c, host.c */
static inline uint64_t fake_round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

struct fake_physical {
    uint64_t id, bytes;
    int fd, device; /* -1: host */
    char *alias;    /* mapped for the double's own threads */
    unsigned refs;  /* handles, mappings, and operations that use it */
    bool direct_rdma, shareable;
    bool counted; /* as memory of its device, where it was made */
};

struct fake_properties {
    int location_type, device, handle_types, type;
    bool direct_rdma;
};

enum fake_kind { FAKE_VIRTUAL, FAKE_LEGACY, FAKE_IPC, FAKE_PINNED, FAKE_MANAGED };
struct fake_mapping {
    struct fake_mapping *next;
    uint64_t address, bytes, asked, buffer;
    struct fake_physical *physical; /* NULL: plain host memory */
    enum fake_kind kind;
    int device, opened; /* FAKE_IPC: how often */
    uint8_t access[FAKE_DEVICES];
    bool sync_memops, registered;
};

int fake_granularity(const struct fake_properties *properties, size_t *bytes);
int fake_memory_create(const struct fake_properties *properties, size_t bytes, uint64_t *handle);
int fake_memory_release(uint64_t handle);
int fake_memory_retain(uint64_t address, uint64_t *handle);
int fake_memory_properties(uint64_t handle, struct fake_properties *out);
int fake_reserve(size_t bytes, size_t alignment, uint64_t *address);
int fake_unreserve(uint64_t address, size_t bytes);
int fake_map(uint64_t address, size_t bytes, size_t offset, uint64_t handle);
int fake_unmap(uint64_t address, size_t bytes);
int fake_set_access(uint64_t address, size_t bytes, int device, int flags);
int fake_get_access(uint64_t address, int device, int *flags);
int fake_alloc(int device, size_t bytes, uint64_t *address);
int fake_free(uint64_t address);
int fake_host_alloc(enum fake_kind kind, size_t bytes, uint64_t *address);
int fake_host_free(uint64_t address, enum fake_kind kind);
int fake_host_register(uint64_t address, size_t bytes);
int fake_host_unregister(uint64_t address);
int fake_range(uint64_t address, uint64_t *base, size_t *bytes);
/* The lock is held. */
struct fake_mapping *fake_find(uint64_t address);
struct fake_mapping *fake_find_id(enum fake_kind kind, uint64_t id);
bool fake_is_reserved(uint64_t address);
struct fake_physical *fake_handle_get(uint64_t handle);
uint64_t fake_handle_add(struct fake_physical *physical); /* takes over a reference */
bool fake_fits(int device, uint64_t bytes);
struct fake_physical *fake_physical_make(size_t bytes, int device);
struct fake_physical *fake_physical_open(int fd, uint64_t id, uint64_t bytes, int device);
void fake_physical_drop(struct fake_physical *physical);
int fake_place(struct fake_physical *physical, enum fake_kind kind, uint64_t bytes, int device,
               uint64_t *address); /* reserves, maps, takes over the reference */
struct fake_mapping *fake_mapping_add(struct fake_physical *physical, enum fake_kind kind,
                                      uint64_t address, uint64_t bytes);
bool fake_overlaps(uint64_t address, uint64_t bytes);
void fake_remove(struct fake_mapping *mapping);

/* ---- pointer.c */
int fake_ordinal(int number); /* of a device, as the process numbers them */
bool fake_tell(uint64_t address, int which, void *value);
/* Zeros for addresses of nobody; their device is -2. */
void fake_tell_all(unsigned count, const int *which, void **values, uint64_t address);
int fake_set_pointer(uint64_t address, int which, const void *value);

/* ---- share.c */
int fake_export(uint64_t handle, int *fd);
int fake_import(int fd, uint64_t *handle);
int fake_dmabuf(uint64_t address, size_t bytes, bool whole, int *fd, uint64_t *offset);
int fake_ipc_export(uint64_t address, CUipcMemHandle *out);
int fake_ipc_open(CUipcMemHandle handle, uint64_t *address);
int fake_ipc_close(uint64_t address);

/* ---- streams.c */
struct fake_stream;
struct fake_event;
int fake_stream_open(void **out);
int fake_stream_close(void *stream);
int fake_stream_sync(void *stream, bool ask);
int fake_device_sync(int device);
int fake_event_open(void **out);
int fake_event_close(void *event);
int fake_event_record(void *event, void *stream);
int fake_event_sync(void *event, bool ask);
int fake_stream_wait(void *stream, void *event);
int fake_stream_wait_word(void *stream, uint64_t address, uint32_t value); /* at least that */
int fake_copy(void *stream, uint64_t to, uint64_t from, size_t bytes, bool now);
int fake_fill(void *stream, uint64_t to, int value, size_t bytes, bool now);
int fake_then(void *stream, void (*call)(void *), void *context);
void fake_settle(void); /* waits until no stream has anything to do; the lock is held */

#endif
