/* Everything that can be set, by name: "knob" for all devices and ports, "fake0.knob" for those of
 * one device, "fake0:1.knob" for one port. */
#include <arpa/inet.h>
#include <stddef.h>
#include <stdio.h>

#include "fakes/fakeverbs/fakeverbs.h"

enum kind { OF_DEVICE, COUNTER, OF_PORT };

struct knob {
    const char *name;
    size_t at;
    enum kind kind;
};

/* clang-format off */
#define D(field) {#field, offsetof(struct fake_device, field), OF_DEVICE}
#define C(field) {#field, offsetof(struct fake_device, field), COUNTER}
#define P(field) {#field, offsetof(struct fake_port, field), OF_PORT}
static const struct knob knobs[] = {
    D(ports), D(kind), D(max_mr_size), D(max_qp), D(max_qp_wr), D(max_sge), D(max_sge_rd), D(max_cqe), D(max_mr),
    D(max_pd), D(max_inline), D(max_qp_rd_atom), D(max_qp_init_rd_atom), D(atomic_cap), D(odp_caps),
    D(vendor_id), D(vendor_part_id),
    D(send_limit), D(full_style), D(post_fail_after), D(post_fail_count), D(post_errno), D(sink), D(fail_after), D(fail_count), D(hide_receives),
    D(fail_status), D(fail_late), D(retry_us), D(rnr_us), D(keep_on_destroy), D(reg_errno),
    D(reg_above), D(relaxed_errno), D(dmabuf_errno), D(peer_memory), D(modify_errno), D(modify_stage),
    D(create_errno), D(open_errno), D(query_errno), D(lost_events), D(duplicate_events), D(flush),
    D(fatal),
    C(contexts), C(qps), C(mrs), C(pds), C(cqs), C(requests), C(posts), C(doorbells), C(signalled),
    C(inlined), C(receives), C(registrations), C(unacked),
    D(dmabuf_offset), D(dmabuf_length), D(dmabuf_iova), D(dmabuf_fd), D(dmabuf_access),
    P(state), P(link_layer), P(active_mtu), P(max_mtu), P(lid), P(fabric), P(gids), P(pkeys),
    P(max_msg_sz), P(active_width), P(active_speed), P(delay_us), P(hold), P(raise),
};
/* clang-format on */

/* What a name means. */
struct target {
    int device, port; /* -1: all */
    char knob[64];
    const struct knob *found; /* NULL: a name with text behind it */
};

long fake_listed = 1, fake_fork_status = IBV_FORK_UNNEEDED, fake_fork_inits;
_Atomic int fake_waiting;

static void refuse(const char *name, const char *why)
{
    fprintf(stderr, "fakeverbs: %s: %s\n", name, why);
    abort(); /* a test that sets nothing would test nothing */
}

static int device_by_name(const char *name)
{
    for (int i = 0; i < FAKE_DEVICES; i++)
        if (strcmp(fake_devices[i].base.name, name) == 0)
            return i;
    char *end;
    long number = strncmp(name, "fake", 4) ? -1 : strtol(name + 4, &end, 10);
    return number >= 0 && number < FAKE_DEVICES && !*end ? (int)number : -1;
}

static struct target parse(const char *name)
{
    struct target target = {.device = -1, .port = -1};
    char before[64] = "";
    const char *dot = strchr(name, '.');
    if (dot && (size_t)(dot - name) < sizeof(before)) {
        memcpy(before, name, (size_t)(dot - name));
        char *colon = strchr(before, ':');
        if (colon) {
            target.port = atoi(colon + 1) - 1;
            *colon = 0;
        }
        target.device = device_by_name(before);
        if (target.device < 0 || target.port >= FAKE_PORTS || (colon && target.port < 0))
            refuse(name, "no such device or port");
        name = dot + 1;
    }
    snprintf(target.knob, sizeof(target.knob), "%s", name);
    for (size_t i = 0; i < sizeof(knobs) / sizeof(*knobs); i++)
        if (strcmp(knobs[i].name, name) == 0)
            target.found = &knobs[i];
    return target;
}

static void stop_all(struct fake_device *device)
{
    for (unsigned i = 0; i < FAKE_QPS; i++)
        if (fake_qps[i] && fake_device_of(fake_qps[i]->base.context) == device)
            fake_qp_stop(fake_qps[i]);
}

/* An event of queue pairs comes to each on the port; they stop, as after any of those. */
static void raise_event(struct fake_device *device, int port, enum ibv_event_type type)
{
    if (type < IBV_EVENT_QP_FATAL || type > IBV_EVENT_QP_ACCESS_ERR) {
        fake_event_port(device, port + 1, type);
        return;
    }
    for (unsigned i = 0; i < FAKE_QPS; i++) {
        struct fake_qp *qp = fake_qps[i];
        if (!qp || fake_device_of(qp->base.context) != device || qp->attr.port_num != port + 1)
            continue;
        fake_event_qp(qp, type);
        fake_qp_stop(qp);
    }
}

/* Whatever follows from a new value. */
static void react(struct fake_device *device, int port, const char *knob, long old, long value)
{
    if (strcmp(knob, "state") == 0 && old != value)
        fake_event_port(device, port + 1,
                        value == IBV_PORT_ACTIVE ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
    if (strcmp(knob, "raise") == 0)
        raise_event(device, port, (enum ibv_event_type)value);
    if (strcmp(knob, "fatal") == 0 && value)
        fake_event_port(device, 0, IBV_EVENT_DEVICE_FATAL);
    if (value && (strcmp(knob, "flush") == 0 || strcmp(knob, "fatal") == 0))
        stop_all(device);
}

static long change(const struct target *target, long value, bool set)
{
    long result = 0;
    bool first = true;
    for (int d = 0; d < FAKE_DEVICES; d++) {
        struct fake_device *device = &fake_devices[d];
        for (int p = 0; p < (target->found->kind == OF_PORT ? FAKE_PORTS : 1); p++) {
            if ((target->device >= 0 && target->device != d) ||
                (target->port >= 0 && target->port != p))
                continue;
            char *base = target->found->kind == OF_PORT ? (char *)&device->port[p] : (char *)device;
            long *at = (long *)(void *)(base + target->found->at), old = *at;
            if (first || target->found->kind == COUNTER)
                result += old;
            if (set) {
                /* A counter's new sum is the first device's. */
                *at = first || target->found->kind != COUNTER ? value : 0;
                react(device, p, target->knob, old, value);
            }
            first = false;
        }
    }
    return result;
}

/* Of the library, not of a device; NULL: it is none. */
static long *of_library(const char *name)
{
    static const struct {
        const char *name;
        long *at;
    } all[] = {{"devices", &fake_listed},
               {"fork_status", &fake_fork_status},
               {"fork_inits", &fake_fork_inits}};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (strcmp(name, all[i].name) == 0)
            return all[i].at;
    return NULL;
}

static long at_knob(const char *name, long value, bool set)
{
    long *whole = of_library(name), old = whole ? *whole : 0;
    struct target target = parse(name);
    if (whole)
        *whole = set ? value : old;
    else if (target.found)
        old = change(&target, value, set);
    else
        refuse(name, "no such knob");
    if (set)
        fake_publish();
    return old;
}

long fakeverbs_ctl(const char *name, long value)
{
    fake_enter();
    long old = at_knob(name, value, true);
    fake_leave();
    fake_fabric_wake(fake_self);
    return old;
}

long fakeverbs_get(const char *name)
{
    fake_enter();
    long value = at_knob(name, 0, false);
    fake_leave();
    return value;
}

/* ---- what is not a number */
static void set_gid(const struct target *target, int index, const char *text)
{
    union ibv_gid gid = {.raw = {0}};
    if (index < 0 || index >= FAKE_GIDS || target->device < 0 ||
        (*text && inet_pton(AF_INET6, text, &gid) != 1))
        refuse(target->knob, "a device, an index and an IPv6 address, or nothing, are needed");
    struct fake_device *device = &fake_devices[target->device];
    int port = target->port < 0 ? 0 : target->port;
    if (memcmp(&device->port[port].gid[index], &gid, sizeof(gid)) == 0)
        return;
    device->port[port].gid[index] = gid;
    if (device->port[port].gids <= index)
        device->port[port].gids = index + 1;
    fake_event_port(device, port + 1, IBV_EVENT_GID_CHANGE);
}

static void set_text(const struct target *target, const char *text)
{
    int device = target->device < 0 ? 0 : target->device,
        port = target->port < 0 ? 0 : target->port;
    if (strncmp(target->knob, "gid.", 4) == 0)
        set_gid(target, atoi(target->knob + 4), text);
    else if (strncmp(target->knob, "pkey.", 5) == 0 && atoi(target->knob + 5) < FAKE_PKEYS)
        fake_devices[device].port[port].pkey[atoi(target->knob + 5)] =
            (uint16_t)strtol(text, NULL, 0);
    else if (strcmp(target->knob, "name") == 0)
        snprintf(fake_devices[device].base.name, IBV_SYSFS_NAME_MAX, "%s", text);
    else
        refuse(target->knob, "no such knob");
}

static void set_one(const char *name, const char *text)
{
    struct target target = parse(name);
    char *end;
    long value = strtol(text, &end, 0);
    if (!target.found && !of_library(name))
        set_text(&target, text);
    else if (*end || !*text)
        refuse(name, "a number is needed");
    else
        at_knob(name, value, true);
    fake_publish();
}

void fakeverbs_set(const char *name, const char *text)
{
    fake_enter();
    set_one(name, text);
    fake_leave();
    fake_fabric_wake(fake_self);
}

/* All knobs as at the beginning; what exists stays. */
void fakeverbs_reset(void)
{
    fake_enter();
    fake_knobs_reset();
    fake_leave();
    fake_fabric_wake(fake_self);
}

void fake_publish(void)
{
    for (int d = 0; d < FAKE_DEVICES; d++) {
        for (int p = 0; p < FAKE_PORTS; p++) {
            struct fake_port *port = &fake_devices[d].port[p];
            struct shared_port *shared = &fake_self->ports[d][p];
            atomic_store(&shared->state, (uint32_t)port->state);
            atomic_store(&shared->lid, (uint32_t)port->lid);
            atomic_store(&shared->fabric, (uint32_t)port->fabric);
            for (int g = 0; g < FAKE_GIDS; g++) {
                uint64_t halves[2];
                memcpy(halves, &port->gid[g], sizeof(halves));
                atomic_store(&shared->gids[g][0], g < port->gids ? halves[0] : 0);
                atomic_store(&shared->gids[g][1], g < port->gids ? halves[1] : 0);
            }
        }
    }
}

/* $FAKEVERBS: words "name=value". */
void fake_knobs_reset(void)
{
    const char *settings = getenv("FAKEVERBS");
    fake_listed = 1;
    fake_fork_status = IBV_FORK_UNNEEDED;
    fake_fork_inits = 0;
    fake_devices_reset();
    char *words = strdup(settings ? settings : ""), *rest = words, *word;
    while ((word = strtok_r(rest, " \n", &rest))) {
        char *equals = strchr(word, '=');
        if (!equals)
            refuse(word, "name=value is needed");
        *equals = 0;
        set_one(word, equals + 1);
    }
    free(words);
    fake_publish();
}

/* ---- the lock, and the beginning */
static pid_t joined;

void fake_enter(void)
{
    atomic_fetch_add(&fake_waiting, 1);
    pthread_mutex_lock(&fake_lock);
    atomic_fetch_sub(&fake_waiting, 1);
    if (joined == getpid())
        return;
    if (!joined)
        pthread_atfork(NULL, NULL, fake_forked);
    joined = getpid();
    fake_fabric_join();
    fake_knobs_reset();
}

void fake_leave(void)
{
    pthread_mutex_unlock(&fake_lock);
}
