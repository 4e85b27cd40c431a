/* Which RDMA devices there are and what their ports can do. */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "providers/verbs/verbs.h"

int tn_verbs_errno(int returned)
{
    if (returned == -1 && errno > 0)
        return errno;
    int error = returned < 0 ? -returned : returned;
    return error ? error : EIO;
}

uint32_t tn_verbs_mtu_bytes(enum ibv_mtu code)
{
    return code >= IBV_MTU_256 && code <= IBV_MTU_4096 ? 128u << code : 0;
}

enum ibv_mtu tn_verbs_mtu_code(uint32_t bytes)
{
    uint32_t code = 0;
    while (code < IBV_MTU_4096 && 256u << code <= bytes)
        code++;
    return (enum ibv_mtu)code;
}

static void copy_name(char out[TN_VERBS_NAME], const char *name)
{
    snprintf(out, TN_VERBS_NAME, "%s", name ? name : "");
}

/* ibv_query_device_ex is inline in rdma-core's header: it goes through the extended context. */
static void on_demand_facts(struct ibv_context *context, struct tn_verbs_port *out)
{
    if (context->abi_compat != (void *)UINTPTR_MAX)
        return;
    const struct verbs_context *extended =
        (const void *)((const char *)context - offsetof(struct verbs_context, context));
    struct ibv_device_attr_ex attr;
    memset(&attr, 0, sizeof(attr));
    /* The library's structure ends with a context, and `sz` counts both. */
    if (extended->sz < sizeof(*extended) || !extended->query_device_ex ||
        extended->query_device_ex(context, NULL, &attr, sizeof(attr)))
        return;
    out->on_demand = (uint32_t)attr.odp_caps.general_caps;
    out->on_demand_ops = attr.odp_caps.per_transport_caps.rc_odp_caps;
}

#define VENDOR_AMAZON 0x1d0f

/* Told apart by what the device says of itself: asking it for a queue pair that it cannot have
 * fails with an errno that explains nothing. */
static const char *why_unusable(const struct ibv_device *device, uint32_t vendor)
{
    if (device->transport_type == IBV_TRANSPORT_IWARP || device->node_type == IBV_NODE_RNIC)
        return "iWARP: its queue pairs need the RDMA connection manager";
    if (vendor == VENDOR_AMAZON)
        return "EFA: it has no reliable connections (RC)";
    if (device->transport_type != IBV_TRANSPORT_IB)
        return "it has no reliable connections (RC)";
    return "";
}

static void device_facts(const struct ibv_device_attr *attr, struct tn_verbs_port *out)
{
    copy_name(out->firmware, attr->fw_ver);
    out->node_guid = be64toh(attr->node_guid);
    out->max_region = attr->max_mr_size;
    out->vendor = attr->vendor_id;
    out->part = attr->vendor_part_id;
    out->max_send_depth = (uint32_t)attr->max_qp_wr;
    out->max_completions = (uint32_t)attr->max_cqe;
    out->max_queue_pairs = (uint32_t)attr->max_qp;
    out->max_regions = (uint32_t)attr->max_mr;
    out->max_reads_out = (uint32_t)attr->max_qp_init_rd_atom;
    out->max_reads_in = (uint32_t)attr->max_qp_rd_atom;
    out->max_sges = (uint32_t)attr->max_sge;
    out->max_read_sges = (uint32_t)attr->max_sge_rd;
    out->atomics = attr->atomic_cap;
}

static void port_facts(const struct ibv_port_attr *attr, struct tn_verbs_port *out)
{
    out->state = attr->state;
    /* 0 comes from libraries older than the field: InfiniBand. */
    out->link_layer = attr->link_layer ? attr->link_layer : IBV_LINK_LAYER_INFINIBAND;
    out->lid = attr->lid;
    out->gids = attr->gid_tbl_len > 0 ? (uint32_t)attr->gid_tbl_len : 0;
    out->pkeys = attr->pkey_tbl_len;
    out->max_message = attr->max_msg_sz;
    out->max_mtu = tn_verbs_mtu_bytes(attr->max_mtu);
    out->active_mtu = tn_verbs_mtu_bytes(attr->active_mtu);
    out->active_width = attr->active_width;
    out->active_speed = attr->active_speed;
}

int tn_verbs_port_facts(const struct tn_verbs_lib *lib, struct ibv_context *context,
                        const char *device, uint32_t port, struct tn_verbs_port *out)
{
    struct ibv_device_attr attr;
    memset(&attr, 0, sizeof(attr));
    int returned = lib->query_device(context, &attr);
    if (returned) {
        errno = tn_verbs_errno(returned);
        return tn_fail_errno("ibv_query_device on %s", device);
    }
    if (port < 1 || port > attr.phys_port_cnt)
        return tn_fail(TN_UNAVAILABLE, "%s has no port %u; its ports are 1 to %u", device, port,
                       attr.phys_port_cnt);
    struct ibv_port_attr port_attr;
    memset(&port_attr, 0, sizeof(port_attr)); /* the library fills a prefix */
    returned = lib->query_port(context, (uint8_t)port, &port_attr);
    if (returned) {
        errno = tn_verbs_errno(returned);
        return tn_fail_errno("ibv_query_port on %s port %u", device, port);
    }
    memset(out, 0, sizeof(*out));
    copy_name(out->device, device);
    out->port = port;
    copy_name(out->unusable, why_unusable(context->device, attr.vendor_id));
    device_facts(&attr, out);
    port_facts(&port_attr, out);
    on_demand_facts(context, out);
    return TN_OK;
}

int tn_verbs_device_open(const struct tn_verbs_lib *lib, const char *device,
                         struct ibv_context **out)
{
    struct ibv_device **list;
    int count = tn_verbs_lib_devices(lib, &list);
    if (count < 0)
        return count;
    int status = TN_UNAVAILABLE;
    tn_fail(status, "there is no RDMA device named %s", device);
    for (int i = 0; i < count; i++) {
        if (strcmp(lib->get_device_name(list[i]), device) != 0)
            continue;
        struct ibv_context *context = lib->open_device(list[i]);
        status = context ? TN_OK
                         : tn_fail_errno("cannot open RDMA device %s (is /dev/infiniband/%s there "
                                         "and readable?)",
                                         device, list[i]->dev_name);
        if (context)
            *out = context;
        break;
    }
    if (list)
        lib->free_device_list(list);
    return status;
}

static int count_ports(const struct tn_verbs_lib *lib, struct ibv_context *context)
{
    struct ibv_device_attr attr;
    memset(&attr, 0, sizeof(attr));
    return lib->query_device(context, &attr) ? 0 : attr.phys_port_cnt;
}

/* A device that cannot be opened is one entry with port 0 and state 0, so that reports can name it.
 */
static uint32_t list_device(const struct tn_verbs_lib *lib, struct ibv_device *device,
                            struct tn_verbs_port *ports, uint32_t capacity)
{
    const char *name = lib->get_device_name(device);
    struct ibv_context *context = lib->open_device(device);
    int n_ports = context ? count_ports(lib, context) : 0;
    uint32_t found = 0;
    for (int port = 1; port <= n_ports; port++) {
        struct tn_verbs_port facts;
        if (tn_verbs_port_facts(lib, context, name, (uint32_t)port, &facts) != TN_OK)
            continue;
        if (found < capacity)
            ports[found] = facts;
        found++;
    }
    if (!found) {
        if (capacity) {
            memset(ports, 0, sizeof(*ports));
            copy_name(ports->device, name);
        }
        found = 1;
    }
    if (context)
        lib->close_device(context);
    return found;
}

int tn_verbs_ports(const char *library, struct tn_verbs_port *ports, uint32_t capacity)
{
    const struct tn_verbs_lib *lib;
    int status = tn_verbs_lib_open(library, &lib);
    if (status != TN_OK)
        return status;
    struct ibv_device **list;
    int count = tn_verbs_lib_devices(lib, &list);
    if (count < 0)
        return count;
    uint32_t found = 0;
    for (int i = 0; i < count; i++) {
        uint32_t used = found < capacity ? found : capacity;
        found += list_device(lib, list[i], ports + used, capacity - used);
    }
    if (list)
        lib->free_device_list(list);
    return (int)found;
}

/* For the tables of a port. `out` is to be closed if and only if this succeeds. */
static int open_port(const char *library, const char *device, uint32_t port,
                     const struct tn_verbs_lib **lib, struct ibv_context **out,
                     struct tn_verbs_port *facts)
{
    int status = tn_verbs_lib_open(library, lib);
    if (status == TN_OK)
        status = tn_verbs_device_open(*lib, device, out);
    if (status != TN_OK)
        return status;
    status = tn_verbs_port_facts(*lib, *out, device, port, facts);
    if (status != TN_OK)
        (*lib)->close_device(*out);
    return status;
}

int tn_verbs_gids(const char *library, const char *device, uint32_t port, uint8_t *gids,
                  uint32_t capacity)
{
    const struct tn_verbs_lib *lib;
    struct ibv_context *context;
    struct tn_verbs_port facts;
    int status = open_port(library, device, port, &lib, &context, &facts);
    if (status != TN_OK)
        return status;
    uint32_t count = facts.gids < capacity ? facts.gids : capacity;
    for (uint32_t i = 0; i < count; i++) {
        union ibv_gid gid;
        /* Empty rows are an error with some drivers and zero with others. */
        if (lib->query_gid(context, (uint8_t)port, (int)i, &gid))
            memset(&gid, 0, sizeof(gid));
        memcpy(gids + (size_t)i * TN_VERBS_GID, &gid, TN_VERBS_GID);
    }
    lib->close_device(context);
    return (int)count;
}

int tn_verbs_pkeys(const char *library, const char *device, uint32_t port, uint16_t *pkeys,
                   uint32_t capacity)
{
    const struct tn_verbs_lib *lib;
    struct ibv_context *context;
    struct tn_verbs_port facts;
    int status = open_port(library, device, port, &lib, &context, &facts);
    if (status != TN_OK)
        return status;
    uint32_t count = !lib->query_pkey ? 0 : facts.pkeys < capacity ? facts.pkeys : capacity;
    for (uint32_t i = 0; i < count; i++) {
        uint16_t key;
        pkeys[i] = lib->query_pkey(context, (uint8_t)port, (int)i, &key) ? 0 : be16toh(key);
    }
    lib->close_device(context);
    return (int)count;
}

int tn_verbs_probe(const char *library, char *text, size_t capacity)
{
    const struct tn_verbs_lib *lib;
    struct ibv_device **list = NULL;
    int count = tn_verbs_lib_open(library, &lib);
    if (count == TN_OK)
        count = tn_verbs_lib_devices(lib, &list);
    if (count > 0) {
        snprintf(text, capacity, "%d RDMA device%s, the first is %s", count, count > 1 ? "s" : "",
                 lib->get_device_name(list[0]));
    } else if (count == 0) {
        tn_fail(TN_UNAVAILABLE, "no RDMA devices: the kernel lists none in "
                                "/sys/class/infiniband_verbs (no NIC, its driver or ib_uverbs is "
                                "not loaded, or this container may not see it)");
        snprintf(text, capacity, "%s", tn_last_error());
    } else {
        snprintf(text, capacity, "%s", tn_last_error());
    }
    if (list)
        lib->free_device_list(list);
    return count > 0 ? TN_OK : TN_UNAVAILABLE;
}
