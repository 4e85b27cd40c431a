/* UCX without Python in its data path: ucp_put of every block of a batch, then one flush.
 * Built as a library for drive_ucx.py, which only passes numbers and bytes. Two of these, in two
 * processes, give each other what side_facts() says. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

struct side {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_mem_h memory;
    ucp_ep_h peer;
    ucp_rkey_h key;
    uint8_t *buffer;
    uint64_t there;
    uint64_t batch, size;
    uint64_t *local, *remote; /* offsets of the blocks */
};

struct header {
    uint64_t address_bytes, key_bytes, buffer;
};

static char text[256];

const char *side_error(void)
{
    return text;
}

static int failed(const char *what, ucs_status_t status)
{
    snprintf(text, sizeof text, "%s: %s", what, ucs_status_string(status));
    return -1;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        ucs_status_t status_ = (call);                                                             \
        if (status_ != UCS_OK)                                                                     \
            return failed(#call, status_);                                                         \
    } while (0)

static ucs_status_t finished(struct side *side, ucs_status_ptr_t request)
{
    if (!UCS_PTR_IS_PTR(request))
        return UCS_PTR_STATUS(request);
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
        ucp_worker_progress(side->worker);
    ucp_request_free(request);
    return status;
}

static int map_buffer(struct side *side, void *buffer, uint64_t bytes)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .address = buffer,
        .length = bytes,
        .flags = buffer ? 0 : UCP_MEM_MAP_ALLOCATE,
    };
    ucp_mem_attr_t attributes = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    TRY(ucp_mem_map(side->context, &params, &side->memory));
    TRY(ucp_mem_query(side->memory, &attributes));
    side->buffer = attributes.address;
    return 0;
}

/* `buffer` NULL: UCX allocates, from shared memory where it has a transport for that. */
int side_open(void *buffer, uint64_t bytes, struct side **out)
{
    struct side *side = calloc(1, sizeof *side);
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA};
    ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_config_t *config;
    TRY(ucp_config_read(NULL, NULL, &config));
    TRY(ucp_init(&params, config, &side->context));
    ucp_config_release(config);
    TRY(ucp_worker_create(side->context, &worker, &side->worker));
    if (map_buffer(side, buffer, bytes))
        return -1;
    *out = side;
    return 0;
}

void *side_buffer(struct side *side)
{
    return side->buffer;
}

/* The bytes that it takes, or -1; `room` of them are at `out`. */
int64_t side_facts(struct side *side, uint8_t *out, uint64_t room)
{
    ucp_address_t *address;
    size_t address_bytes, key_bytes;
    void *key;
    TRY(ucp_worker_get_address(side->worker, &address, &address_bytes));
    TRY(ucp_rkey_pack(side->context, side->memory, &key, &key_bytes));
    struct header header = {address_bytes, key_bytes, (uintptr_t)side->buffer};
    uint64_t all = sizeof header + address_bytes + key_bytes;
    if (all > room)
        return failed("side_facts", UCS_ERR_BUFFER_TOO_SMALL);
    memcpy(out, &header, sizeof header);
    memcpy(out + sizeof header, address, address_bytes);
    memcpy(out + sizeof header + address_bytes, key, key_bytes);
    ucp_worker_release_address(side->worker, address);
    ucp_rkey_buffer_release(key);
    return (int64_t)all;
}

int side_connect(struct side *side, const uint8_t *facts)
{
    struct header header;
    memcpy(&header, facts, sizeof header);
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                              .address = (const ucp_address_t *)(facts + sizeof header)};
    TRY(ucp_ep_create(side->worker, &params, &side->peer));
    TRY(ucp_ep_rkey_unpack(side->peer, facts + sizeof header + header.address_bytes, &side->key));
    side->there = header.buffer;
    return 0;
}

/* The offsets are the caller's to keep. */
void side_prepare(struct side *side, uint64_t batch, uint64_t size, uint64_t *local,
                  uint64_t *remote)
{
    side->batch = batch;
    side->size = size;
    side->local = local;
    side->remote = remote;
}

void side_progress(struct side *side)
{
    ucp_worker_progress(side->worker);
}

static int put_all(struct side *side)
{
    ucp_request_param_t with_memory = {.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH,
                                       .memh = side->memory};
    ucp_request_param_t plain = {0};
    for (uint64_t i = 0; i < side->batch; i++) {
        ucs_status_ptr_t request =
            ucp_put_nbx(side->peer, side->buffer + side->local[i], side->size,
                        side->there + side->remote[i], side->key, &with_memory);
        if (UCS_PTR_IS_ERR(request))
            return failed("ucp_put_nbx", UCS_PTR_STATUS(request));
        if (UCS_PTR_IS_PTR(request))
            ucp_request_free(request); /* the flush waits for it */
    }
    TRY(finished(side, ucp_ep_flush_nbx(side->peer, &plain)));
    return 0;
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Nanoseconds of each batch at `times`. */
int side_run(struct side *side, uint64_t count, uint64_t *times)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t begin = now();
        if (put_all(side))
            return -1;
        times[i] = now() - begin;
    }
    return 0;
}
