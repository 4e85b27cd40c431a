#define _GNU_SOURCE

#include "tests/gpu_pair.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "tests/check.h"
#include "tests/gpu_double.h"

/* ---- memory ---------------------------------------------------------------------------------- */
static void make_virtual(struct gpu_owned *owned, uint64_t piece)
{
    uint64_t count = (owned->bytes + piece - 1) / piece;
    CHECK(count <= 64);
    owned->bytes = count * piece;
    CHECK(tn_gpu_reserve(owned->bytes, 0, &owned->address) == TN_OK);
    for (uint64_t i = 0; i < count; i++) {
        CHECK(tn_gpu_memory_create(owned->device, piece, &owned->handles[i]) == TN_OK);
        CHECK(tn_gpu_map(owned->address + i * piece, piece, owned->handles[i], owned->device,
                         true) == TN_OK);
        CHECK(tn_gpu_memory_release(owned->handles[i]) == TN_OK);
    }
}

void gpu_owned_make(struct tn_engine *engine, enum gpu_memory kind, int device, uint64_t bytes,
                    struct gpu_owned *out)
{
    struct gpu_owned owned = {.kind = kind, .device = device, .bytes = bytes};
    uint64_t whole = (bytes + GPU_PIECE - 1) / GPU_PIECE * GPU_PIECE;
    switch (kind) {
    case GPU_VIRTUAL:
        make_virtual(&owned, whole);
        break;
    case GPU_PIECES:
        make_virtual(&owned, GPU_PIECE);
        break;
    case GPU_LEGACY:
        owned.address = gpu_alloc(device, bytes);
        break;
    case GPU_POOL:
        CHECK(tn_segment_open(engine, bytes, TN_READ | TN_WRITE, &owned.segment) == TN_OK);
        owned.address = (uint64_t)(uintptr_t)tn_segment_address(owned.segment);
        break;
    case GPU_PRIVATE:
        owned.address = (uint64_t)(uintptr_t)malloc(bytes);
        break;
    }
    *out = owned;
}

void gpu_owned_free(struct gpu_owned *owned)
{
    uint64_t piece = owned->kind == GPU_PIECES ? GPU_PIECE : owned->bytes;
    switch (owned->kind) {
    case GPU_VIRTUAL:
    case GPU_PIECES:
        for (uint64_t at = 0; at < owned->bytes; at += piece)
            CHECK(tn_gpu_unmap(owned->address + at, piece) == TN_OK);
        CHECK(tn_gpu_unreserve(owned->address, owned->bytes) == TN_OK);
        break;
    case GPU_LEGACY:
        gpu_free(owned->address);
        break;
    case GPU_POOL:
        tn_segment_close(owned->segment);
        break;
    case GPU_PRIVATE:
        free((void *)(uintptr_t)owned->address);
        break;
    }
}

/* The tools slow down what is done byte by byte: so it is for one period of the pattern, and the
 * rest is copied from that and compared with it. */
#define PERIOD (64u << 10)
typedef uint64_t __attribute__((aligned(1), may_alias)) word;

uint8_t gpu_pattern(uint8_t seed, uint64_t i)
{
    return (uint8_t)(seed + i * 7 + (i >> 8) * 13);
}

/* The CPU's view of some of it; of host memory the memory itself. */
static uint8_t *look_at(const struct gpu_owned *owned, uint64_t offset, uint64_t bytes)
{
    if (owned->kind == GPU_POOL || owned->kind == GPU_PRIVATE)
        return (uint8_t *)(uintptr_t)(owned->address + offset);
    return gpu_peek(owned->address + offset, bytes);
}

static void look_away(const struct gpu_owned *owned, uint8_t *at, uint64_t bytes)
{
    if (owned->kind != GPU_POOL && owned->kind != GPU_PRIVATE)
        gpu_unpeek(at, bytes);
}

void gpu_owned_fill(const struct gpu_owned *owned, uint64_t offset, uint64_t bytes, uint8_t seed)
{
    uint8_t *at = look_at(owned, offset, bytes);
    for (uint64_t i = 0; i < bytes && i < PERIOD; i++)
        at[i] = gpu_pattern(seed, i);
    for (uint64_t i = PERIOD; i < bytes; i += PERIOD)
        memcpy(at + i, at, bytes - i < PERIOD ? bytes - i : PERIOD);
    look_away(owned, at, bytes);
}

/* What another process's transfer has brought is there when that process says so, which
 * ThreadSanitizer does not see. */
__attribute__((no_sanitize("thread"))) uint64_t gpu_owned_differs(const struct gpu_owned *owned,
                                                                  uint64_t offset, uint64_t bytes,
                                                                  uint8_t seed)
{
    uint8_t *at = look_at(owned, offset, bytes);
    uint64_t i = 0;
    while (i < bytes && i < PERIOD && at[i] == gpu_pattern(seed, i))
        i++;
    while (i >= PERIOD && i + sizeof(word) <= bytes &&
           *(const word *)(at + i) == *(const word *)(at + i - PERIOD))
        i += sizeof(word);
    while (i < bytes && at[i] == gpu_pattern(seed, i))
        i++;
    look_away(owned, at, bytes);
    return i;
}

struct tn_region *gpu_owned_register(struct tn_engine *engine, const struct gpu_owned *owned,
                                     uint64_t offset, uint64_t bytes, uint32_t access)
{
    struct tn_region *region;
    struct tn_region_options options = {.address = (void *)(uintptr_t)(owned->address + offset),
                                        .length = bytes,
                                        .segment = owned->segment,
                                        .access = access,
                                        .memory = owned->kind < GPU_POOL ? TN_MEMORY_DEVICE
                                                                         : TN_MEMORY_HOST,
                                        .dmabuf_fd = -1};
    CHECK_TEXT(tn_region_open_with(engine, &options, &region) == TN_OK, tn_last_error());
    return region;
}

int gpu_open_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* ---- one end --------------------------------------------------------------------------------- */
static void send_fd(int socket, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    char byte = 1;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    CHECK(sendmsg(socket, &message, MSG_NOSIGNAL) == 1);
}

static int receive_fd(int socket)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    char byte;
    int fd;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    CHECK(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
    return fd;
}

static void open_end(struct gpu_pair *pair, const struct gpu_pair_options *options, uint8_t mark,
                     int stream, int pid)
{
    struct tn_engine_options engine = {
        .incarnation = {mark},
        .liveness_ns = LONG,
        .inline_bytes = 65536,
        .chunk_bytes = options->chunk_bytes ? options->chunk_bytes : MIB,
        .notify_depth = 16,
        .max_regions = 4096,
        .stream_window = 16,
        .order = {TN_PROVIDER_GPU_IPC, TN_PROVIDER_TCP, TN_PROVIDER_STAGED},
        .providers = 3,
        .gpu_direct = options->gpu_direct};
    uint8_t other[TN_INCARNATION_BYTES] = {(uint8_t)(3 - mark)};
    CHECK(tn_engine_open(&engine, &pair->engine) == TN_OK);
    CHECK(tn_peer_open(pair->engine, other, 1, &pair->peer) == TN_OK);
    if (!options->no_ipc) {
        struct tn_ipc_link *link;
        int life;
        CHECK(tn_ipc_link_open(pair->engine, &link) == TN_OK);
        CHECK(tn_ipc_link_offer(link, &life) == TN_OK);
        send_fd(pair->socket, life);
        CHECK_TEXT(tn_ipc_link_accept(link, pid, receive_fd(pair->socket)) == TN_OK,
                   tn_last_error());
        CHECK(tn_ipc_link_attach(link, pair->peer) == TN_OK);
    }
    if (options->staged) {
        struct tn_staged_link *link;
        CHECK(tn_staged_link_open(pair->engine, &link) == TN_OK);
        CHECK(tn_staged_link_attach(link, pair->peer) == TN_OK);
    }
    CHECK(tn_peer_up(pair->peer, stream, TN_PROVIDER_TCP, 16) == TN_OK);
}

/* ---- the owner ------------------------------------------------------------------------------- */
struct owner {
    struct gpu_pair end;
    uint32_t count;
    struct owned {
        struct gpu_owned memory;
        struct tn_region *region;
        uint64_t offset, length;
    } regions[4096];
};

static void make(struct owner *owner, const struct gpu_request *request, struct gpu_reply *reply)
{
    struct owned *owned = &owner->regions[owner->count];
    gpu_owned_make(owner->end.engine, request->kind, request->device, request->bytes,
                   &owned->memory);
    owned->offset = request->offset;
    owned->length = request->length;
    gpu_owned_fill(&owned->memory, owned->offset, owned->length, request->seed);
    owned->region = gpu_owned_register(owner->end.engine, &owned->memory, owned->offset,
                                       owned->length, request->access);
    tn_region_describe(owned->region, &reply->remote);
    reply->value = owner->count++;
}

static void make_again(struct owner *owner, const struct gpu_request *request,
                       struct gpu_reply *reply)
{
    struct owned *owned = &owner->regions[owner->count];
    *owned = owner->regions[request->index];
    owned->region = gpu_owned_register(owner->end.engine, &owned->memory, request->offset,
                                       request->length, request->access);
    tn_region_describe(owned->region, &reply->remote);
    reply->value = owner->count++;
}

static int read_near(struct owner *owner, const struct gpu_request *request)
{
    struct tn_result result;
    uint8_t *memory = malloc(request->length);
    int status = gpu_end(gpu_begin(&owner->end, TN_OP_READ, &request->remote, 0, NULL,
                                   (uint64_t)(uintptr_t)memory, request->length),
                         &result);
    free(memory);
    return status;
}

static int close_region(struct owned *owned)
{
    int status = tn_region_close(owned->region, 5 * SECOND);
    if (status == TN_OK)
        tn_region_release(owned->region);
    return status;
}

static void obey(struct owner *owner, const struct gpu_request *request, struct gpu_reply *reply)
{
    struct owned *owned = &owner->regions[request->index];
    switch (request->command) {
    case GPU_MAKE:
        make(owner, request, reply);
        break;
    case GPU_VERIFY:
        reply->value = (int64_t)gpu_owned_differs(&owned->memory, owned->offset + request->offset,
                                                  request->length, request->seed);
        break;
    case GPU_CLOSE:
        reply->status = close_region(owned);
        break;
    case GPU_FREE:
        gpu_owned_free(&owned->memory);
        break;
    case GPU_COUNT:
        reply->value = gpu_get(request->name);
        break;
    case GPU_SET:
        gpu_set(request->name, request->value);
        break;
    case GPU_FDS:
        reply->value = gpu_open_descriptors();
        break;
    case GPU_AGAIN:
        make_again(owner, request, reply);
        break;
    case GPU_READ:
        reply->status = read_near(owner, request);
        break;
    case GPU_STOP_ENGINE:
        tn_peer_release(owner->end.peer);
        tn_engine_close(owner->end.engine);
        break;
    }
}

static void owner_main(int socket, int stream, const struct gpu_pair_options *options)
{
    struct owner *owner = calloc(1, sizeof(*owner));
    struct gpu_request request;
    CHECK(owner && !prctl(PR_SET_PDEATHSIG, SIGKILL));
    gpu_double_use(options->which,
                   options->far_settings ? options->far_settings : options->settings);
    owner->end.socket = socket;
    open_end(&owner->end, options, 2, stream, getppid());
    while (recv(socket, &request, sizeof(request), 0) == sizeof(request)) {
        struct gpu_reply reply = {0};
        obey(owner, &request, &reply);
        snprintf(reply.text, sizeof(reply.text), "%s", tn_last_error());
        CHECK(send(socket, &reply, sizeof(reply), MSG_NOSIGNAL) == sizeof(reply));
    }
    _exit(0); /* leaks are looked for in the other process */
}

/* ---- both ------------------------------------------------------------------------------------ */
static void connect_streams(bool tcp, int fds[2])
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(where);
    if (!tcp) {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
        return;
    }
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (void *)&where, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (void *)&where, &length) == 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(connect(fds[0], (void *)&where, length) == 0);
    fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(fds[1] >= 0);
    close(listener);
}

void gpu_pair_open(struct gpu_pair *pair, const struct gpu_pair_options *options)
{
    int sockets[2], streams[2];
    memset(pair, 0, sizeof(*pair));
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets));
    connect_streams(options->tcp, streams);
    fflush(NULL);
    pair->owner = fork();
    CHECK(pair->owner >= 0);
    if (pair->owner == 0) {
        close(sockets[0]);
        close(streams[0]);
        owner_main(sockets[1], streams[1], options);
    }
    close(sockets[1]);
    close(streams[1]);
    pair->socket = sockets[0];
    gpu_double_use(options->which, options->settings);
    open_end(pair, options, 1, streams[0], pair->owner);
}

void gpu_pair_kill(struct gpu_pair *pair)
{
    if (!pair->owner)
        return;
    CHECK(!kill(pair->owner, SIGKILL));
    CHECK(waitpid(pair->owner, NULL, 0) == pair->owner);
    pair->owner = 0;
}

void gpu_pair_close(struct gpu_pair *pair)
{
    tn_peer_release(pair->peer);
    tn_engine_close(pair->engine);
    close(pair->socket);
    gpu_pair_kill(pair);
}

void gpu_tell(struct gpu_pair *pair, struct gpu_request request)
{
    CHECK(send(pair->socket, &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request));
}

struct gpu_reply gpu_ask(struct gpu_pair *pair, struct gpu_request request)
{
    struct gpu_reply reply;
    gpu_tell(pair, request);
    CHECK(recv(pair->socket, &reply, sizeof(reply), 0) == sizeof(reply));
    return reply;
}

struct tn_remote gpu_make(struct gpu_pair *pair, enum gpu_memory kind, uint64_t length,
                          uint8_t seed, uint32_t *index)
{
    struct gpu_reply reply = gpu_ask(pair, (struct gpu_request){.command = GPU_MAKE,
                                                                .kind = kind,
                                                                .access = TN_READ | TN_WRITE,
                                                                .bytes = length + 4096,
                                                                .offset = 516,
                                                                .length = length,
                                                                .seed = seed});
    if (index)
        *index = (uint32_t)reply.value;
    return reply.remote;
}

int64_t gpu_far_count(struct gpu_pair *pair, const char *name)
{
    struct gpu_request request = {.command = GPU_COUNT};
    snprintf(request.name, sizeof(request.name), "%s", name);
    return gpu_ask(pair, request).value;
}

struct tn_transfer *gpu_begin(struct gpu_pair *pair, uint32_t op, const struct tn_remote *remote,
                              uint64_t offset, struct tn_region *region, uint64_t local,
                              uint64_t length)
{
    struct tn_transfer *transfer;
    struct tn_range range = {.local_address = local,
                             .local_region = region,
                             .remote_offset = offset,
                             .length = length,
                             .rows = 1};
    struct tn_batch batch = {.op = op,
                             .providers = UINT32_MAX,
                             .remotes = remote,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .deadline_ns = tn_now() + LONG};
    CHECK_TEXT(tn_submit(pair->peer, &batch, &transfer) == TN_OK, tn_last_error());
    return transfer;
}

int gpu_end(struct tn_transfer *transfer, struct tn_result *result)
{
    int status = tn_transfer_wait(transfer, LONG);
    CHECK(tn_transfer_wait_quiet(transfer, LONG) == 1);
    tn_transfer_result(transfer, result);
    tn_transfer_release(transfer);
    return status;
}
