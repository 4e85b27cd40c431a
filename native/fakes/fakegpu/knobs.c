/* Settings, faults and counters by name, from $FAKEGPU or a test. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fakes/fakegpu/fakegpu.h"

struct fake_knobs fake;
pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;
FAKE_LOCAL bool fake_in_callback;

/* clang-format off */
#define K(field) {#field, offsetof(struct fake_knobs, field)}
static const struct { const char *name; size_t at; } knobs[] = {
    K(devices), K(version), K(stub), K(granularity), K(memory), K(visible), K(delay_us), K(hold),
    K(vmm), K(share_fd), K(rdma), K(rdma_vmm), K(dmabuf), K(pcie_flag), K(coherent), K(peers), K(legacy_ipc),
    K(flush_options), K(writes_ordering), K(integrated), K(large_bar), K(need_context),
    K(physical), K(handles), K(reservations), K(mappings), K(pinned), K(managed), K(streams), K(events), K(contexts),
    K(ipc_opened), K(copies), K(copied_bytes), K(flushes), K(sync_memops), K(exports), K(imports), K(dmabufs),
    K(peer_links), K(illegal), K(callbacks),
};
/* clang-format on */

/* What is known of a function by name. */
struct tally {
    char name[64];
    long calls, fail_after, fail_count, fail_code;
    bool hidden;
};
static struct tally tallies[256];
static pid_t owner;
static struct fake_symbol *symbols;

static void refuse(const char *name, const char *why)
{
    fprintf(stderr, "%s: %s: %s\n", fake_front.name, name, why);
    abort(); /* a test that sets nothing would test nothing */
}

static long *at_knob(const char *name)
{
    for (size_t i = 0; i < sizeof(knobs) / sizeof(*knobs); i++)
        if (strcmp(knobs[i].name, name) == 0)
            return (long *)(void *)((char *)&fake + knobs[i].at);
    return NULL;
}

static struct tally *tally(const char *name)
{
    size_t i = 0;
    while (i < sizeof(tallies) / sizeof(*tallies) && tallies[i].name[0] &&
           strcmp(tallies[i].name, name) != 0)
        i++;
    if (i == sizeof(tallies) / sizeof(*tallies))
        refuse(name, "more functions than expected");
    if (!tallies[i].name[0])
        snprintf(tallies[i].name, sizeof(tallies[i].name), "%s", name);
    return &tallies[i];
}

/* ---- symbols */
void fake_symbol_add(struct fake_symbol *symbol)
{
    symbol->next = symbols;
    symbols = symbol;
}

const struct fake_symbol *fake_symbol_find(const char *name)
{
    const struct fake_symbol *symbol = symbols;
    while (symbol && strcmp(symbol->name, name) != 0)
        symbol = symbol->next;
    return symbol;
}

static void set_text(const char *name, const char *text);

/* The lock is held. Knobs as at the beginning: $FAKEGPU holds words "name=value". */
static void reset(void)
{
    struct fake_knobs kept = fake;
    fake = (struct fake_knobs){
        .devices = 2,
        .version = fake_front.version,
        .granularity = 2 << 20,
        .memory = 1L << 36,
        .vmm = 1,
        .share_fd = 1,
        .rdma = 1,
        .rdma_vmm = 1,
        .dmabuf = 1,
        .pcie_flag = 1,
        .peers = 1,
        .legacy_ipc = 1,
        .flush_options = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST,
        .writes_ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE,
        .large_bar = 1,
    };
    fake_devices_reset();
    /* What exists goes on to be counted. */
    memcpy((char *)&fake + offsetof(struct fake_knobs, physical), &kept.physical,
           sizeof(fake) - offsetof(struct fake_knobs, physical));
    fake.copies = fake.copied_bytes = fake.flushes = fake.sync_memops = fake.exports = 0;
    fake.imports = fake.dmabufs = fake.illegal = fake.callbacks = 0;
    memset(tallies, 0, sizeof(tallies));
    const char *settings = getenv("FAKEGPU");
    char *words = strdup(settings ? settings : ""), *rest = words, *word;
    while ((word = strtok_r(rest, " \n", &rest))) {
        char *equals = strchr(word, '=');
        if (!equals)
            refuse(word, "name=value is needed");
        *equals = 0;
        set_text(word, equals + 1);
    }
    free(words);
    pthread_cond_broadcast(&fake_changed);
}

/* Takes the lock, and sets the double up at the first time. A forked child keeps what its parent
 * had set, for it can do nothing with it. */
static void enter(void)
{
    pthread_mutex_lock(&fake_lock);
    if (!owner) {
        owner = getpid();
        reset();
    }
}

void *fake_symbol_shown(const struct fake_symbol *symbol)
{
    enter();
    bool there = fake.version >= symbol->since &&
                 (!symbol->until || fake.version < symbol->until) && !tally(symbol->name)->hidden;
    pthread_mutex_unlock(&fake_lock);
    return there ? symbol->address : NULL;
}

/* ---- calls */
static int count_call(const char *name)
{
    struct tally *mine = tally(name);
    mine->calls++;
    if (!mine->fail_code || mine->fail_after-- > 0)
        return 0;
    mine->fail_after = 0;
    if (mine->fail_count == 0)
        return 0;
    if (mine->fail_count > 0)
        mine->fail_count--;
    return (int)mine->fail_code;
}

int fake_begin(const char *name, bool always)
{
    if (owner && owner != getpid())
        return always ? 0 : CUDA_ERROR_NOT_INITIALIZED;
    enter();
    int error = fake.stub ? CUDA_ERROR_STUB_LIBRARY : count_call(name);
    bool started = fake_is_initialized();
    pthread_mutex_unlock(&fake_lock);
    if (error || always)
        return error;
    if (fake_in_callback)
        return CUDA_ERROR_NOT_PERMITTED;
    if (!started && fake_front.starts_by_itself)
        return fake_init();
    return started ? 0 : CUDA_ERROR_NOT_INITIALIZED;
}

/* ---- for tests */
void fakegpu_fail(const char *function, long after, long count, long code)
{
    enter();
    struct tally *mine = tally(function);
    mine->fail_after = after;
    mine->fail_count = count;
    mine->fail_code = code;
    pthread_mutex_unlock(&fake_lock);
}

static long *known(const char *name)
{
    if (strncmp(name, "calls.", 6) == 0)
        return &tally(name + 6)->calls;
    long *knob = at_knob(name);
    if (!knob)
        refuse(name, "no such knob");
    return knob;
}

long fakegpu_ctl(const char *name, long value)
{
    enter();
    long *knob = known(name), old = *knob;
    *knob = value;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    return old;
}

long fakegpu_get(const char *name)
{
    enter();
    long value = *known(name);
    pthread_mutex_unlock(&fake_lock);
    return value;
}

/* "cuMemCreate:2:1:999" */
static void set_fault(const char *text)
{
    char name[64];
    long after, count, code;
    if (sscanf(text, "%63[^:]:%ld:%ld:%ld", name, &after, &count, &code) != 4)
        refuse(text, "function:after:count:code is needed");
    struct tally *mine = tally(name);
    mine->fail_after = after;
    mine->fail_count = count;
    mine->fail_code = code;
}

static void set_text(const char *name, const char *text)
{
    char *end;
    long value = strtol(text, &end, 0);
    int device = 0;
    if (strcmp(name, "fail") == 0)
        set_fault(text);
    else if (strcmp(name, "hide") == 0)
        tally(text)->hidden = true;
    else if (strcmp(name, "show") == 0)
        tally(text)->hidden = false;
    else if (sscanf(name, "pci.%d", &device) == 1 && device >= 0 && device < FAKE_DEVICES)
        snprintf(fake_devices[device].pci, sizeof(fake_devices[device].pci), "%s", text);
    else if (sscanf(name, "name.%d", &device) == 1 && device >= 0 && device < FAKE_DEVICES)
        snprintf(fake_devices[device].name, sizeof(fake_devices[device].name), "%s", text);
    else if (*end || !*text)
        refuse(name, "a number is needed");
    else
        *known(name) = value;
}

void fakegpu_set(const char *name, const char *text)
{
    enter();
    set_text(name, text);
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

void fakegpu_reset(void)
{
    enter();
    reset();
    pthread_mutex_unlock(&fake_lock);
}
