#define _GNU_SOURCE /* mmap flags */

#include "tests/shm_pair.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

#define NOBODY 65534
#define FILL_LIMIT ((uint64_t)64 << 20)

struct reply {
    int status;
    struct tn_remote remote;
    char text[TN_TEXT_BYTES];
};

uint8_t shm_pattern(uint8_t seed, uint64_t i)
{
    return (uint8_t)(seed + i * 7 + (i >> 8) * 13);
}

/* ---- messages with descriptors ------------------------------------------------------------- */
static void send_message(int socket, const void *bytes, size_t length, const int *fds, int n_fds)
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part = {.iov_base = (void *)bytes, .iov_len = length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (n_fds) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        memcpy(CMSG_DATA(header), fds, (size_t)n_fds * sizeof(int));
    }
    CHECK(sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)length);
}

/* False at the end of the stream. Descriptors that did not come are -1. */
static bool receive_message(int socket, void *bytes, size_t length, int fds[2])
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part = {.iov_base = bytes, .iov_len = length};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control)};
    ssize_t got;
    do
        got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return false;
    CHECK(got == (ssize_t)length);
    fds[0] = fds[1] = -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header)
        memcpy(fds, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
    return true;
}

/* ---- the owner's process ------------------------------------------------------------------- */
struct owner {
    struct fake_host fake;
    struct tn_shm_connection *connection;
    const struct shm_options *options;
    int socket;
    uint32_t count;
    struct owned {
        struct tn_region *region;
        uint8_t *base; /* private memory */
        uint8_t *bytes;
        uint64_t mapped;
    } regions[SHM_REGIONS];
};

static int owner_make(struct owner *owner, const struct shm_request *request,
                      struct tn_remote *remote)
{
    struct owned *owned = &owner->regions[owner->count++];
    struct tn_segment *segment = NULL;
    CHECK(owner->count <= SHM_REGIONS);
    owned->mapped = request->offset + request->length;
    if (request->kind == SHM_SEGMENT) {
        CHECK(tn_segments_add(owner->fake.segments, owned->mapped, request->access, &segment) ==
              TN_OK);
        owned->base = tn_segment_address(segment);
    } else {
        owned->base = mmap(NULL, owned->mapped, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(owned->base != MAP_FAILED);
    }
    owned->bytes = owned->base + request->offset;
    for (uint64_t i = 0; i < request->length && request->length <= FILL_LIMIT; i++)
        owned->bytes[i] = shm_pattern(request->seed, i);
    int status = tn_regions_add(owner->fake.host.regions, owned->bytes, request->length,
                                request->access, segment, &owned->region);
    if (status == TN_OK)
        *remote = owned->region->remote;
    return status;
}

static int owner_verify(const struct owned *owned, const struct shm_request *request)
{
    for (uint64_t i = 0; i < request->length; i++)
        if (owned->bytes[request->offset + i] != shm_pattern(request->seed, request->offset + i))
            return TN_INVALID;
    return TN_OK;
}

static int owner_close(struct owned *owned)
{
    tn_regions_revoke(owned->region);
    uint64_t end = tn_now() + UINT64_C(60000000000);
    while (!tn_regions_unguarded(owned->region))
        if (tn_now() > end)
            return TN_DEADLINE;
    return TN_OK;
}

static void owner_obey(struct owner *owner, const struct shm_request *request)
{
    struct owned *owned = &owner->regions[request->index];
    struct reply reply = {0};
    int fd = -1;
    switch (request->command) {
    case SHM_MAKE:
        reply.status = owner_make(owner, request, &reply.remote);
        break;
    case SHM_VERIFY:
        reply.status = owner_verify(owned, request);
        break;
    case SHM_CLOSE:
        reply.status = owner_close(owned);
        break;
    case SHM_UNMAP:
        CHECK(!munmap(owned->base, owned->mapped));
        break;
    case SHM_EXPORT:
        fd = tn_segments_export(owner->fake.segments, (uint32_t)request->number);
        reply.status = fd < 0 ? fd : TN_OK;
        break;
    case SHM_ANNOUNCE:
        tn_hazard_announce(owner->connection->hazards.address, request->number);
        break;
    case SHM_LET_GO:
        tn_shm_connection_close(owner->connection);
        break;
    case SHM_EXEC:
        execl("/bin/sleep", "sleep", "30", NULL);
        _exit(1);
    case SHM_OWN:
        owner->options->own(&owner->fake, owned->region, request->number);
        break;
    }
    send_message(owner->socket, &reply, sizeof(reply), &fd, fd >= 0);
    if (fd >= 0)
        close(fd);
}

/* Each tells the other its offer; the parent's pid is known. */
static void owner_connect(struct owner *owner, const struct shm_options *options)
{
    struct tn_shm_offer offer;
    int fds[2];
    CHECK(tn_shm_connection_create(&owner->fake.host, &owner->connection) == TN_OK);
    CHECK(tn_shm_connection_offer(owner->connection, &offer, fds) == TN_OK);
    send_message(owner->socket, &offer, sizeof(offer), fds, 2);
    if (!receive_message(owner->socket, &offer, sizeof(offer), fds))
        _exit(0);
    int pid = options->no_pid ? 0 : getppid();
    CHECK(tn_shm_connection_accept(owner->connection, pid, &offer, fds) == TN_OK);
}

static void owner_main(int socket, const struct shm_options *options)
{
    struct owner *owner = calloc(1, sizeof(*owner));
    struct fake_options fake = {.chunk_bytes = options->chunk_bytes};
    struct shm_request request;
    int none[2];
    CHECK(owner && !prctl(PR_SET_PDEATHSIG, SIGKILL));
    CHECK(!options->hidden || !prctl(PR_SET_DUMPABLE, 0));
    owner->options = options;
    owner->socket = socket;
    fake_host_open(&owner->fake, &fake);
    owner_connect(owner, options);
    while (receive_message(socket, &request, sizeof(request), none))
        owner_obey(owner, &request);
    _exit(0); /* leaks are looked for in the other process */
}

/* ---- the side that moves bytes ------------------------------------------------------------- */
void shm_send(struct shm_pair *pair, const struct shm_request *request)
{
    send_message(pair->socket, request, sizeof(*request), NULL, 0);
}

static struct reply ask(struct shm_pair *pair, const struct shm_request *request, int fds[2])
{
    struct reply reply;
    shm_send(pair, request);
    CHECK(receive_message(pair->socket, &reply, sizeof(reply), fds));
    return reply;
}

int shm_tell(struct shm_pair *pair, struct shm_request request, struct tn_remote *remote)
{
    int fds[2];
    struct reply reply = ask(pair, &request, fds);
    if (remote)
        *remote = reply.remote;
    return reply.status;
}

struct tn_remote shm_make(struct shm_pair *pair, enum shm_kind kind, uint32_t access,
                          uint64_t length, uint8_t seed)
{
    struct tn_remote remote;
    struct shm_request request = {.command = SHM_MAKE,
                                  .kind = kind,
                                  .access = access,
                                  .length = length,
                                  .seed = seed,
                                  .offset = 100};
    CHECK(shm_tell(pair, request, &remote) == TN_OK);
    return remote;
}

static void on_want_segment(struct tn_host *host, struct tn_peer *peer, uint32_t number)
{
    struct shm_pair *pair = (struct shm_pair *)host;
    struct shm_request request = {.command = SHM_EXPORT, .number = number};
    int fds[2];
    (void)peer;
    pair->asked++;
    pair->held = number;
    if (pair->hold)
        return;
    ask(pair, &request, fds);
    if (!tn_shm_link_ops.segment(pair->connection, number, fds[0]) && fds[0] >= 0)
        close(fds[0]);
}

static void on_work(struct tn_host *host, struct tn_transfer *transfer)
{
    (void)transfer;
    ((struct shm_pair *)host)->worked++;
}

static void connect_to_owner(struct shm_pair *pair, const struct shm_options *options)
{
    struct tn_shm_offer ours;
    int fds[2];
    CHECK(tn_shm_connection_create(&pair->fake.host, &pair->connection) == TN_OK);
    CHECK(receive_message(pair->socket, &pair->offer, sizeof(pair->offer), pair->offer_fds));
    CHECK(tn_shm_connection_offer(pair->connection, &ours, fds) == TN_OK);
    send_message(pair->socket, &ours, sizeof(ours), fds, 2);
    if (options->no_accept)
        return;
    int pid = options->no_pid ? 0 : pair->owner;
    CHECK(tn_shm_connection_accept(pair->connection, pid, &pair->offer, pair->offer_fds) == TN_OK);
    pair->offer_fds[0] = pair->offer_fds[1] = -1;
}

struct shm_pair *shm_pair_open(const struct shm_options *options)
{
    struct shm_pair *pair = calloc(1, sizeof(*pair));
    struct fake_options fake = {.chunk_bytes = options->chunk_bytes,
                                .inline_bytes = options->inline_bytes};
    int sockets[2];
    CHECK(pair && !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets));
    if (options->hidden && geteuid() == 0) /* for good: call it in a process of its own */
        CHECK(!setgid(NOBODY) && !setuid(NOBODY));
    pair->owner = fork();
    CHECK(pair->owner >= 0);
    if (pair->owner == 0) {
        close(sockets[0]);
        owner_main(sockets[1], options);
    }
    close(sockets[1]);
    pair->socket = sockets[0];
    fake_host_open(&pair->fake, &fake);
    pair->fake.host.work = on_work;
    pair->fake.host.want_segment = on_want_segment;
    connect_to_owner(pair, options);
    return pair;
}

void shm_kill(struct shm_pair *pair)
{
    if (pair->owner <= 0)
        return;
    CHECK(!kill(pair->owner, SIGKILL));
    CHECK(waitpid(pair->owner, NULL, 0) == pair->owner);
    pair->owner = 0;
}

void shm_pair_close(struct shm_pair *pair)
{
    shm_kill(pair);
    if (pair->connection) {
        tn_shm_link_ops.close(pair->connection, TN_CLOSED, "the test is over");
        tn_shm_link_ops.free(pair->connection);
    }
    fake_host_close(&pair->fake);
    close(pair->socket);
    free(pair);
}

struct tn_transfer *shm_begin(struct shm_pair *pair, uint32_t op, const struct tn_remote *remotes,
                              uint64_t n_remotes, const struct tn_range *ranges, uint64_t n_ranges)
{
    struct tn_transfer *transfer =
        fake_transfer(&pair->fake, op, remotes, n_remotes, ranges, n_ranges, NULL);
    for (uint64_t i = 0; i < n_ranges; i++)
        transfer->bytes += ranges[i].length * ranges[i].rows;
    if (tn_shm_link_ops.accepts(pair->connection, transfer, pair->why, sizeof(pair->why)) < 0) {
        tn_transfer_unreference(transfer);
        tn_transfer_unreference(transfer);
        return NULL;
    }
    transfer->link = pair->connection;
    tn_shm_link_ops.start(pair->connection, transfer);
    return transfer;
}

int shm_end(struct shm_pair *pair, struct tn_transfer *transfer)
{
    while (transfer->run(transfer, 0))
        ;
    CHECK(fake_quiet(transfer));
    int status = fake_status(transfer);
    snprintf(pair->why, sizeof(pair->why), "%s", status == TN_OK ? transfer->path : transfer->text);
    tn_transfer_unreference(transfer);
    return status;
}

int shm_move(struct shm_pair *pair, uint32_t op, const struct tn_remote *remote, uint64_t offset,
             void *local, uint64_t length)
{
    struct tn_range range = {
        .local_address = (uintptr_t)local, .remote_offset = offset, .length = length, .rows = 1};
    struct tn_transfer *transfer = shm_begin(pair, op, remote, 1, &range, 1);
    return transfer ? shm_end(pair, transfer) : TN_NO_PATH;
}
