/* Control groups, versions 1 and 2: see cgroup-v2.rst and cgroup-v1/memory.rst in Linux'
 * Documentation/admin-guide. */
#include "memory/headroom.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 1024

struct version {
    const char *mounts[2]; /* the second is where systemd puts version 2 beside version 1 */
    const char *limit, *usage;
    const char *caches[2]; /* in memory.stat; shared memory is not among these */
};

static const struct version versions[2] = {
    {.mounts = {"/sys/fs/cgroup/memory", NULL},
     .limit = "memory.limit_in_bytes",
     .usage = "memory.usage_in_bytes",
     .caches = {"total_inactive_file", "total_active_file"}},
    {.mounts = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"},
     .limit = "memory.max",
     .usage = "memory.current",
     .caches = {"inactive_file", "active_file"}},
};

static FILE *open_in(const char *directory, const char *name)
{
    char path[PATH_BYTES + 64];
    int length = snprintf(path, sizeof(path), "%s/%s", directory, name);
    return length > 0 && (size_t)length < sizeof(path) ? fopen(path, "re") : NULL;
}

/* False if there is no such file, or if it holds a word ("max"). */
static bool read_number(const char *directory, const char *name, uint64_t *number)
{
    FILE *file = open_in(directory, name);
    if (!file)
        return false;
    bool found = fscanf(file, "%" SCNu64, number) == 1;
    fclose(file);
    return found;
}

/* The sum of the numbers that stand behind two names, in a file of "name number" lines. */
static uint64_t sum_of(FILE *file, const char *first, const char *second)
{
    char line[256], name[128];
    uint64_t number, sum = 0;
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "%127s %" SCNu64, name, &number) == 2 &&
            (!strcmp(name, first) || !strcmp(name, second)))
            sum += number;
    if (file)
        fclose(file);
    return sum;
}

static uint64_t left_in_group(const struct version *version, const char *directory)
{
    uint64_t limit, usage;
    if (!read_number(directory, version->limit, &limit) ||
        !read_number(directory, version->usage, &usage))
        return UINT64_MAX;
    uint64_t cache =
        sum_of(open_in(directory, "memory.stat"), version->caches[0], version->caches[1]);
    usage = usage > cache ? usage - cache : 0;
    return limit > usage ? limit - usage : 0;
}

/* The group and all above it, up to the mount. */
static uint64_t left_up_to(const struct version *version, const char *mount, const char *group)
{
    char directory[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    int length = snprintf(directory, sizeof(directory), "%s%s", mount, group);
    /* In a container without a cgroup namespace the path is the host's, the mount our own. */
    if (length <= 0 || (size_t)length >= sizeof(directory) || access(directory, F_OK) != 0)
        snprintf(directory, sizeof(directory), "%s", mount);
    for (;;) {
        uint64_t left = left_in_group(version, directory);
        least = left < least ? left : least;
        char *slash = strrchr(directory, '/');
        if (!slash || (size_t)(slash - directory) < strlen(mount))
            return least;
        *slash = 0;
    }
}

/* A line of /proc/self/cgroup: "0::/path" for version 2, "4:memory:/path" for version 1. */
static uint64_t left_by_line(const char *line)
{
    const char *controllers = strchr(line, ':');
    const char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return UINT64_MAX;
    bool second = group == controllers + 1;
    if (!second && !strstr(controllers, "memory"))
        return UINT64_MAX;
    const struct version *version = &versions[second];
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 2 && version->mounts[i]; i++) {
        uint64_t left = left_up_to(version, version->mounts[i], group + 1);
        least = left < least ? left : least;
    }
    return least;
}

static uint64_t left_on_machine(void)
{
    FILE *file = open_in("/proc", "meminfo");
    uint64_t kib = sum_of(file, "MemAvailable:", "SwapFree:");
    return kib ? kib << 10 : UINT64_MAX;
}

uint64_t tn_memory_headroom(void)
{
    uint64_t least = left_on_machine();
    char line[PATH_BYTES];
    FILE *file = open_in("/proc/self", "cgroup");
    while (file && fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = 0;
        uint64_t left = left_by_line(line);
        least = left < least ? left : least;
    }
    if (file)
        fclose(file);
    return least;
}
