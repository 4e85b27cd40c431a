/* The devices, and what one can ask them. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>

#include "fakes/fakeverbs/fakeverbs.h"

/* Newer versions of the library keep a structure of their own in front of the public one, with
 * functions that the public headers find from a mark in it. We fill in the one that tells about
 * on-demand paging. */
#define IN_FRONT 4096
#define QUERY_DEVICE_EX_BEFORE 104
#define SIZE_BEFORE 8
#define SIZE_OF_44 648
#define ODP_CAPS_AT 240

enum { KIND_IB, KIND_IWARP, KIND_UNRELIABLE };

struct fake_device fake_devices[FAKE_DEVICES];
struct fake_context *fake_contexts;

/* GIDs, addresses and LIDs are other ones in each process of a fabric. */
static void reset_port(struct fake_port *port, uint8_t device, uint8_t number)
{
    *port = (struct fake_port){.state = IBV_PORT_ACTIVE,
                               .link_layer = IBV_LINK_LAYER_ETHERNET,
                               .active_mtu = IBV_MTU_1024,
                               .max_mtu = IBV_MTU_4096,
                               .gids = 4,
                               .pkeys = 1,
                               .max_msg_sz = 1L << 30,
                               .active_width = 2,
                               .active_speed = 32,
                               .pkey = {0xffff}};
    uint8_t slot = (uint8_t)fake_slot;
    port->lid = 1 + number - 1 + FAKE_PORTS * (device + FAKE_DEVICES * (long)slot);
    port->gid[0] = (union ibv_gid){.raw = {0xfe, 0x80, [13] = slot, [14] = device, [15] = number}};
    port->gid[1] =
        (union ibv_gid){.raw = {[10] = 0xff, 0xff, 10, 9, slot, (uint8_t)(device * 16 + number)}};
}

void fake_devices_reset(void)
{
    for (uint8_t i = 0; i < FAKE_DEVICES; i++) {
        struct fake_device *device = &fake_devices[i], old = *device;
        *device = (struct fake_device){.contexts = old.contexts,
                                       .qps = old.qps,
                                       .mrs = old.mrs,
                                       .pds = old.pds,
                                       .cqs = old.cqs,
                                       .ports = 1,
                                       .max_mr_size = 1L << 40,
                                       .max_qp = FAKE_QPS - 1,
                                       .max_qp_wr = 1024,
                                       .max_sge = FAKE_SGES,
                                       .max_sge_rd = FAKE_SGES,
                                       .max_cqe = 1 << 20,
                                       .max_mr = FAKE_MRS - 1,
                                       .max_pd = 1024,
                                       .max_inline = 256,
                                       .max_qp_rd_atom = 16,
                                       .max_qp_init_rd_atom = 16,
                                       .atomic_cap = IBV_ATOMIC_HCA,
                                       .vendor_id = 0xfa4e,
                                       .vendor_part_id = 1,
                                       .post_fail_after = -1,
                                       .post_fail_count = 1,
                                       .post_errno = ENOMEM,
                                       .fail_after = -1,
                                       .fail_count = 1,
                                       .fail_status = IBV_WC_GENERAL_ERR,
                                       .retry_us = -1,
                                       .rnr_us = 1000,
                                       .dmabuf_errno = EOPNOTSUPP,
                                       .modify_stage = IBV_QPS_RTR};
        snprintf(device->base.name, sizeof(device->base.name), "fake%u", i);
        snprintf(device->base.dev_name, sizeof(device->base.dev_name), "uverbs%u", i);
        for (uint8_t p = 0; p < FAKE_PORTS; p++)
            reset_port(&device->port[p], i, (uint8_t)(p + 1));
    }
}

static void set_kind(struct fake_device *device)
{
    struct ibv_device *base = &device->base;
    base->node_type = device->kind == KIND_IB      ? IBV_NODE_CA
                      : device->kind == KIND_IWARP ? IBV_NODE_RNIC
                                                   : (enum ibv_node_type)7; /* UNSPECIFIED */
    base->transport_type = device->kind == KIND_IB      ? IBV_TRANSPORT_IB
                           : device->kind == KIND_IWARP ? IBV_TRANSPORT_IWARP
                                                        : (enum ibv_transport_type)4;
    snprintf(base->dev_path, sizeof(base->dev_path), "/sys/class/infiniband_verbs/%s",
             base->dev_name);
    snprintf(base->ibdev_path, sizeof(base->ibdev_path), "/sys/class/infiniband/%s", base->name);
}

struct ibv_device **ibv_get_device_list(int *count)
{
    fake_enter();
    long listed = fake_listed;
    for (long i = 0; i < listed && i < FAKE_DEVICES; i++)
        set_kind(&fake_devices[i]);
    fake_leave();
    if (listed < 0) {
        errno = ENOSYS;
        return NULL;
    }
    struct ibv_device **list = calloc(FAKE_DEVICES + 1, sizeof(struct ibv_device *));
    for (long i = 0; i < listed && i < FAKE_DEVICES; i++)
        list[i] = &fake_devices[i].base;
    if (count)
        *count = (int)listed;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *which)
{
    return which->name;
}

static int query_device_ex(struct ibv_context *context, const void *input, char *attr, size_t bytes)
{
    (void)input;
    if (bytes < ODP_CAPS_AT)
        return EINVAL;
    memset(attr, 0, bytes);
    uint64_t caps = (uint64_t)fake_device_of(context)->odp_caps;
    uint32_t per_operation = caps ? 0x1f : 0; /* send, receive, write, read, atomic */
    if (bytes >= ODP_CAPS_AT + 24) {
        memcpy(attr + ODP_CAPS_AT, &caps, sizeof(caps));
        memcpy(attr + ODP_CAPS_AT + 8, &per_operation, sizeof(per_operation));
    }
    return ibv_query_device(context, (struct ibv_device_attr *)(void *)attr);
}

static struct fake_context *make_context(struct fake_device *device)
{
    int fds[2];
    struct fake_context *made = calloc(1, sizeof(*made) + IN_FRONT + sizeof(struct ibv_context));
    if (!made || pipe2(fds, O_CLOEXEC)) {
        free(made);
        return NULL;
    }
    struct ibv_context *context = (struct ibv_context *)(void *)(made->memory + IN_FRONT);
    int (*query)(struct ibv_context *, const void *, char *, size_t) = query_device_ex;
    size_t size = SIZE_OF_44;
    memcpy((char *)context - QUERY_DEVICE_EX_BEFORE, &query, sizeof(query));
    memcpy((char *)context - SIZE_BEFORE, &size, sizeof(size));
    context->device = &device->base;
    context->ops.poll_cq = fake_poll_cq;
    context->ops.req_notify_cq = fake_req_notify_cq;
    context->ops.post_send = fake_post_send;
    context->ops.post_recv = fake_post_recv;
    context->cmd_fd = -1;
    context->async_fd = fds[0];
    context->num_comp_vectors = 1;
    context->abi_compat = (void *)UINTPTR_MAX;
    pthread_mutex_init(&context->mutex, NULL);
    made->base = context;
    made->events_out = fds[1];
    return made;
}

struct ibv_context *ibv_open_device(struct ibv_device *which)
{
    struct fake_device *device = (struct fake_device *)which;
    if (device->open_errno) {
        errno = (int)device->open_errno;
        return NULL;
    }
    struct fake_context *made = make_context(device);
    if (!made)
        return NULL;
    fake_enter();
    fake_start();
    device->contexts++;
    made->next = fake_contexts;
    fake_contexts = made;
    fake_leave();
    return made->base;
}

int ibv_close_device(struct ibv_context *context)
{
    fake_enter();
    fake_device_of(context)->contexts--;
    struct fake_context **at = &fake_contexts, *made;
    while ((*at)->base != context)
        at = &(*at)->next;
    made = *at;
    *at = made->next;
    fake_leave();
    close(context->async_fd);
    close(made->events_out);
    pthread_mutex_destroy(&context->mutex);
    free(made);
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    struct fake_device *device = fake_device_of(context);
    fake_enter();
    int error = (int)device->query_errno;
    *attr = (struct ibv_device_attr){.fw_ver = "double 2",
                                     .node_guid = htobe64((uint64_t)(device - fake_devices) + 1),
                                     .max_mr_size = (uint64_t)device->max_mr_size,
                                     .page_size_cap = 0xfffff000,
                                     .vendor_id = (uint32_t)device->vendor_id,
                                     .vendor_part_id = (uint32_t)device->vendor_part_id,
                                     .max_qp = (int)device->max_qp,
                                     .max_qp_wr = (int)device->max_qp_wr,
                                     .max_sge = (int)device->max_sge,
                                     .max_sge_rd = (int)device->max_sge_rd,
                                     .max_cq = 1024,
                                     .max_cqe = (int)device->max_cqe,
                                     .max_mr = (int)device->max_mr,
                                     .max_pd = (int)device->max_pd,
                                     .max_qp_rd_atom = (int)device->max_qp_rd_atom,
                                     .max_qp_init_rd_atom = (int)device->max_qp_init_rd_atom,
                                     .atomic_cap = (enum ibv_atomic_cap)device->atomic_cap,
                                     .max_pkeys = FAKE_PKEYS,
                                     .phys_port_cnt = (uint8_t)device->ports};
    fake_leave();
    return error;
}

static struct fake_port *port_at(struct ibv_context *context, uint8_t port)
{
    struct fake_device *device = fake_device_of(context);
    return port >= 1 && port <= device->ports ? &device->port[port - 1] : NULL;
}

int ibv_query_port(struct ibv_context *context, uint8_t number, struct ibv_port_attr *attr)
{
    struct fake_port *port = port_at(context, number);
    if (!port)
        return EINVAL;
    fake_enter();
    struct ibv_port_attr found = {.state = (enum ibv_port_state)port->state,
                                  .max_mtu = (enum ibv_mtu)port->max_mtu,
                                  .active_mtu = (enum ibv_mtu)port->active_mtu,
                                  .gid_tbl_len = (int)port->gids,
                                  .max_msg_sz = (uint32_t)port->max_msg_sz,
                                  .pkey_tbl_len = (uint16_t)port->pkeys,
                                  .lid = (uint16_t)port->lid,
                                  .sm_lid = 1,
                                  .active_width = (uint8_t)port->active_width,
                                  .active_speed = (uint8_t)port->active_speed,
                                  .phys_state = port->state == IBV_PORT_ACTIVE ? 5 : 3,
                                  .link_layer = (uint8_t)port->link_layer};
    /* Without its newest tail, like the exported function of every version. */
    memcpy(attr, &found, offsetof(struct ibv_port_attr, port_cap_flags2));
    fake_leave();
    return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t number, int index, union ibv_gid *gid)
{
    struct fake_port *port = port_at(context, number);
    fake_enter();
    bool found = port && index >= 0 && index < port->gids && index < FAKE_GIDS;
    if (found)
        *gid = port->gid[index];
    fake_leave();
    errno = found ? errno : EINVAL;
    return found ? 0 : -1;
}

/* The key as it is on the wire. */
int ibv_query_pkey(struct ibv_context *context, uint8_t number, int index, uint16_t *pkey)
{
    struct fake_port *port = port_at(context, number);
    if (!port || index < 0 || index >= port->pkeys || index >= FAKE_PKEYS) {
        errno = EINVAL;
        return -1;
    }
    *pkey = htons(port->pkey[index]);
    return 0;
}

int ibv_fork_init(void)
{
    fake_enter();
    fake_fork_inits++;
    fake_leave();
    return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
    fake_enter();
    long status = fake_fork_status;
    fake_leave();
    return (enum ibv_fork_status)status;
}
