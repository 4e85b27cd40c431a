/* Why a device refused to register memory, and what to do about it. The kernel says ENOMEM for half
 * a dozen limits, so the message shows each of them beside what is used of it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "providers/verbs/verbs.h"

/* The first line of a small file as a word; "unknown" where it cannot be read. */
static void read_word(const char *path, char *out, size_t capacity)
{
    FILE *file = fopen(path, "re");
    if (!file || !fgets(out, (int)capacity, file))
        snprintf(out, capacity, "unknown");
    if (file)
        fclose(file);
    out[strcspn(out, "\n")] = 0;
}

/* VmLck counts what was locked, VmPin what drivers pinned; which of them a registration counts in
 * depends on the kernel. */
static unsigned long long locked_bytes(void)
{
    char line[128];
    unsigned long long value, kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "VmLck: %llu", &value) == 1 || sscanf(line, "VmPin: %llu", &value) == 1)
            kilobytes += value;
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

static unsigned long count_maps(void)
{
    char part[4096];
    unsigned long lines = 0;
    size_t got;
    FILE *file = fopen("/proc/self/maps", "re");
    while (file && (got = fread(part, 1, sizeof(part), file)) > 0)
        for (size_t i = 0; i < got; i++)
            lines += part[i] == '\n';
    if (file)
        fclose(file);
    return lines;
}

/* Kilobytes of the pages at an address; 0: unknown. */
static unsigned long page_kilobytes(uint64_t address)
{
    char line[256];
    unsigned long long start, end;
    unsigned long size, found = 0;
    bool inside = false;
    FILE *file = fopen("/proc/self/smaps", "re");
    while (file && !found && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%llx-%llx ", &start, &end) == 2)
            inside = start <= address && address < end;
        else if (inside && sscanf(line, "KernelPageSize: %lu", &size) == 1)
            found = size;
    }
    if (file)
        fclose(file);
    return found;
}

static bool huge(uint64_t address, unsigned long *kilobytes)
{
    *kilobytes = page_kilobytes(address);
    return *kilobytes * 1024 > (unsigned long)sysconf(_SC_PAGESIZE);
}

static const char *container_hint(void)
{
    if (access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0 ||
        getenv("KUBERNETES_SERVICE_HOST"))
        return "; in a container: --ulimit memlock=-1, or IPC_LOCK";
    return "";
}

static void lock_limit(char *out, size_t capacity)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit))
        snprintf(out, capacity, "unknown");
    else if (limit.rlim_cur == RLIM_INFINITY)
        snprintf(out, capacity, "unlimited");
    else
        snprintf(out, capacity, "%llu bytes", (unsigned long long)limit.rlim_cur);
}

static int no_memory(struct tn_verbs_rail *rail, const struct tn_verbs_memory *memory, int error)
{
    char limit[48], maps[32];
    lock_limit(limit, sizeof(limit));
    read_word("/proc/sys/vm/max_map_count", maps, sizeof(maps));
    return tn_fail_as(
        TN_NOMEM, error,
        "%s cannot register %llu bytes: %s. RLIMIT_MEMLOCK is %s (ulimit -l, systemd: "
        "LimitMEMLOCK), %llu bytes are locked; this engine holds %llu registrations (the device "
        "allows %u); %lu of vm.max_map_count %s maps%s%s: raise the one that is too small",
        rail->facts.device, (unsigned long long)memory->length, strerror(error), limit,
        locked_bytes(), (unsigned long long)atomic_load(&rail->verbs->registrations),
        rail->facts.max_regions, count_maps(), maps, container_hint(),
        memory->device ? "; GPU memory must fit into the BAR1 window (nvidia-smi -q -d MEMORY)"
                       : "");
}

static void hint(const struct tn_verbs_memory *memory, int error, char *out, size_t capacity)
{
    unsigned long kilobytes;
    const char *text = "";
    if (memory->device)
        text =
            error == EFAULT ? " (device memory, which needs dma-buf or a peer-memory module)" : "";
    else if (error == EFAULT)
        text = " (not mapped, or read-only but to be written?)";
    else if (error == EPERM || error == EACCES)
        text = " (a container or a security module forbids it: CAP_IPC_LOCK, the device cgroup)";
    else if (error == EINVAL && huge(memory->address, &kilobytes)) {
        snprintf(out, capacity,
                 " (it lies on huge pages of %lu kB: set RDMAV_HUGEPAGES_SAFE=1 before the process "
                 "starts)",
                 kilobytes);
        return;
    } else if (error == EINVAL) {
        text = " (more than the device registers at once, or an access mode that it lacks?)";
    }
    snprintf(out, capacity, "%s", text);
}

int tn_verbs_refused(struct tn_verbs_rail *rail, const struct tn_verbs_memory *memory, int error)
{
    char why[160];
    if (error == ENOMEM || error == EAGAIN)
        return no_memory(rail, memory, error);
    hint(memory, error, why, sizeof(why));
    return tn_fail_as(TN_SYSTEM, error, "%s cannot register %llu bytes at %#llx%s: %s",
                      rail->facts.device, (unsigned long long)memory->length,
                      (unsigned long long)memory->address, why, strerror(error));
}
