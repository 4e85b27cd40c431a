#include "tests/verbs_pair.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>

static char library[4096];
static long (*control)(const char *name, long value);
static long (*get)(const char *name);
static void (*set_text)(const char *name, const char *text);
static int (*access_of)(uint32_t key);

const char *double_open(void)
{
    const char *folder = getenv("TN_FAKES");
    snprintf(library, sizeof(library), "%s/fakeverbs.so", folder ? folder : ".");
    void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!loaded) {
        printf("skipped: %s\n", dlerror());
        return NULL;
    }
    *(void **)&control = dlsym(loaded, "fakeverbs_ctl");
    *(void **)&access_of = dlsym(loaded, "fakeverbs_mr_access");
    *(void **)&get = dlsym(loaded, "fakeverbs_get");
    *(void **)&set_text = dlsym(loaded, "fakeverbs_set");
    CHECK(control && get && access_of);
    return library;
}

long double_set(const char *name, long value)
{
    return control(name, value);
}

long double_get(const char *name)
{
    return get(name);
}

void double_text(const char *name, const char *text)
{
    set_text(name, text);
}

long double_access(uint32_t key)
{
    return access_of(key);
}

void verbs_pair_meet(struct end *a, struct end *b, size_t bytes, struct end_shape shape)
{
    end_open_shaped(a, library, "fake0", 1, bytes, shape);
    end_open_shaped(b, library, "fake0", 2, bytes, shape);
    end_greet(a);
    end_greet(b);
    a->theirs = b->ours;
    b->theirs = a->ours;
}

void verbs_pair_up(struct end *a, struct end *b)
{
    int fds[2];
    end_sockets(fds);
    end_up(a, fds[0]);
    end_up(b, fds[1]);
}

void verbs_pair_open_shaped(struct end *a, struct end *b, size_t bytes, struct end_shape shape)
{
    verbs_pair_meet(a, b, bytes, shape);
    end_accept(a);
    end_accept(b);
    verbs_pair_up(a, b);
}

void verbs_pair_open(struct end *a, struct end *b, size_t bytes)
{
    verbs_pair_open_shaped(a, b, bytes, (struct end_shape){0});
}

void verbs_pair_close(struct end *a, struct end *b)
{
    static const char *const counters[] = {"qps", "mrs", "pds", "cqs"};
    end_close(a);
    end_close(b);
    for (size_t i = 0; i < sizeof(counters) / sizeof(*counters); i++)
        CHECK_TEXT(double_get(counters[i]) == 0, counters[i]);
}

struct tn_transfer *verbs_pair_move(struct end *end, uint32_t op, struct tn_region *local,
                                    uint64_t local_offset, struct tn_region *remote,
                                    uint64_t remote_offset, uint64_t length)
{
    static uint32_t keys[TN_MAX_KEYS];
    struct tn_remote here, there;
    tn_region_describe(local, &here);
    tn_region_describe(remote, &there);
    struct tn_range range = {.local_address = here.address + local_offset,
                             .local_region = local,
                             .remote_offset = remote_offset,
                             .length = length,
                             .rows = 1};
    struct tn_batch batch = {.op = op,
                             .providers = UINT32_MAX,
                             .remotes = &there,
                             .ranges = &range,
                             .keys = keys,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .n_keys = tn_region_keys(remote, keys, TN_MAX_KEYS),
                             .deadline_ns = tn_now() + 20 * SECOND};
    struct tn_transfer *transfer;
    CHECK_TEXT(tn_submit(end->peer, &batch, &transfer) == TN_OK, tn_last_error());
    return transfer;
}

unsigned long open_descriptors(void)
{
    unsigned long found = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder);
    while (readdir(folder))
        found++;
    closedir(folder);
    return found;
}

unsigned long mapped_ranges(void)
{
    unsigned long lines = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    CHECK(file);
    for (int c; (c = getc(file)) != EOF;)
        lines += c == '\n';
    fclose(file);
    return lines;
}
