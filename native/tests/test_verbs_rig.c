/* Two engines in two processes over a real RDMA device, through the public interface only.
 *
 *   test_verbs_rig                            both ends on this host's first device; skips where there is none
 *   test_verbs_rig listen DEVICE              one end each, on two hosts: prints "ready" when it listens
 *   test_verbs_rig connect DEVICE ADDRESS [bench BYTES WINDOW SECONDS [read]]
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

#define MIB (1u << 20)
#define MEMORY (64u * MIB)
#define SECOND UINT64_C(1000000000)
#define DEPTH 16u
#define PORT 7471

struct greeting {
    struct tn_verbs_offer offer;
    struct tn_remote memory; /* all of it, may be read and written */
    struct tn_remote second; /* its last MiB, may be read; closed on request */
};

struct end {
    struct tn_engine *engine;
    struct tn_verbs_rail *rail;
    struct tn_peer *peer;
    struct tn_region *region, *second;
    uint8_t *memory;
    struct greeting theirs;
};

static void exchange(int fd, const void *ours, void *theirs, size_t bytes)
{
    CHECK(send(fd, ours, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
    CHECK(recv(fd, theirs, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

static void open_engine(struct end *end, const char *device, uint8_t mark)
{
    struct tn_engine_options options = {.incarnation = {mark},
                                        .liveness_ns = 5 * SECOND,
                                        .inline_bytes = 65536,
                                        .chunk_bytes = MIB,
                                        .notify_depth = DEPTH,
                                        .max_regions = 1024,
                                        .stream_window = 16,
                                        .order = {TN_PROVIDER_VERBS, TN_PROVIDER_TCP},
                                        .providers = 2};
    struct tn_verbs_rail_options rail = {.piece_bytes = MIB,
                                         .window_bytes = 32 * MIB,
                                         .port = 1,
                                         .gid_index = 1,
                                         .send_depth = 128,
                                         .notify_slots = DEPTH,
                                         .inline_bytes = 64,
                                         .timeout = 14,
                                         .retry_count = 7,
                                         .rnr_retry = 6,
                                         .min_rnr_timer = 14,
                                         .hop_limit = 64};
    struct tn_verbs *verbs;
    snprintf(rail.device, sizeof(rail.device), "%s", device);
    CHECK(tn_engine_open(&options, &end->engine) == TN_OK);
    CHECK(tn_verbs_open(end->engine, NULL, &verbs) == TN_OK);
    CHECK(tn_verbs_rail_open(verbs, &rail, &end->rail) == TN_OK);
    end->memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(end->memory != MAP_FAILED);
    CHECK(tn_region_open(end->engine, end->memory, MEMORY, TN_READ | TN_WRITE, NULL,
                         &end->region) == TN_OK);
    CHECK(tn_region_open(end->engine, end->memory + MEMORY - MIB, MIB, TN_READ, NULL,
                         &end->second) == TN_OK);
}

static void join(struct end *end, int fd, uint8_t their_mark)
{
    struct tn_verbs_connection *connection;
    struct greeting ours = {0};
    uint8_t incarnation[TN_INCARNATION_BYTES] = {their_mark};
    CHECK(tn_verbs_connection_open(end->rail, &connection) == TN_OK);
    tn_verbs_connection_offer(connection, &ours.offer);
    tn_region_describe(end->region, &ours.memory);
    tn_region_describe(end->second, &ours.second);
    exchange(fd, &ours, &end->theirs, sizeof(ours));
    CHECK(tn_verbs_connection_accept(connection, &end->theirs.offer) == TN_OK);
    CHECK(tn_verbs_connection_accept(connection, &end->theirs.offer) == TN_INVALID);
    CHECK(tn_peer_open(end->engine, incarnation, 1, &end->peer) == TN_OK);
    CHECK(tn_verbs_connection_attach(connection, end->peer) == TN_OK);
    char ready = 'r';
    exchange(fd, &ready, &ready, 1);
    CHECK(tn_peer_up(end->peer, fd, TN_PROVIDER_TCP, DEPTH) == TN_OK);
}

static void leave(struct end *end)
{
    CHECK(tn_region_close(end->region, 5 * SECOND) == TN_OK);
    tn_region_release(end->region);
    CHECK(tn_region_close(end->second, 5 * SECOND) == TN_OK);
    tn_region_release(end->second);
    tn_peer_release(end->peer);
    tn_engine_close(end->engine);
    munmap(end->memory, MEMORY);
}

static struct tn_transfer *submit(struct end *end, uint32_t op, const struct tn_remote *remote,
                                  const struct tn_range *range, const char *notify)
{
    struct tn_batch batch = {.op = op,
                             .providers = UINT32_MAX,
                             .remotes = remote,
                             .ranges = range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .deadline_ns = tn_now() + 20 * SECOND,
                             .notify = notify,
                             .notify_length = notify ? (uint32_t)strlen(notify) : 0};
    struct tn_transfer *transfer;
    CHECK(tn_submit(end->peer, &batch, &transfer) == TN_OK);
    return transfer;
}

static void finish(struct tn_transfer *transfer, int expected, const char *path)
{
    struct tn_result result;
    int status = tn_transfer_wait(transfer, 30 * SECOND);
    tn_transfer_result(transfer, &result);
    CHECK_TEXT(status == expected, result.text);
    CHECK_TEXT(!path || strcmp(result.path, path) == 0, result.path);
    CHECK(tn_transfer_wait_quiet(transfer, 5 * SECOND) == 1);
    tn_transfer_release(transfer);
}

static struct tn_range range_at(struct end *end, uint64_t local, uint64_t remote, uint64_t bytes)
{
    return (struct tn_range){.local_address = (uintptr_t)end->memory + local,
                             .local_region = end->region,
                             .remote_offset = remote,
                             .length = bytes,
                             .rows = 1};
}

static void fill(uint8_t *bytes, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(seed + i * 2654435761u / 65536);
}

static void test_there_and_back(struct end *end)
{
    static const uint64_t sizes[] = {1, 7, 4096, 65537, 3 * MIB + 17, 20 * MIB};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        uint64_t bytes = sizes[i];
        fill(end->memory, bytes, (unsigned)i);
        memset(end->memory + 32 * MIB, 0, bytes);
        struct tn_range out = range_at(end, 0, 3, bytes), back = range_at(end, 32 * MIB, 3, bytes);
        finish(submit(end, TN_OP_WRITE, &end->theirs.memory, &out, NULL), TN_OK, "rc");
        finish(submit(end, TN_OP_READ, &end->theirs.memory, &back, NULL), TN_OK, "rc");
        CHECK(memcmp(end->memory, end->memory + 32 * MIB, bytes) == 0);
    }
}

/* 1000 rows that touch on neither side, and many transfers at once. */
static void test_rows_and_crowds(struct end *end)
{
    struct tn_transfer *crowd[200];
    fill(end->memory, MIB, 99);
    memset(end->memory + 32 * MIB, 0, MIB);
    struct tn_range out = range_at(end, 0, 0, 100), back = range_at(end, 32 * MIB, 0, 100);
    out.rows = back.rows = 1000;
    out.local_stride = back.local_stride = 1000;
    out.remote_stride = back.remote_stride = 300;
    finish(submit(end, TN_OP_WRITE, &end->theirs.memory, &out, NULL), TN_OK, "rc");
    finish(submit(end, TN_OP_READ, &end->theirs.memory, &back, NULL), TN_OK, "rc");
    for (size_t row = 0; row < 1000; row++)
        CHECK(memcmp(end->memory + row * 1000, end->memory + 32 * MIB + row * 1000, 100) == 0);
    for (size_t i = 0; i < 200; i++) {
        struct tn_range one = range_at(end, i * 4096, i * 4096, i == 100 ? 16 * MIB : 1000);
        crowd[i] = submit(end, i % 2 ? TN_OP_WRITE : TN_OP_READ, &end->theirs.memory, &one, NULL);
    }
    for (size_t i = 0; i < 200; i++)
        finish(crowd[i], TN_OK, "rc");
}

static void expect_note(struct end *end, char *text, size_t capacity)
{
    struct tn_notification got;
    CHECK(tn_notification_wait(end->engine, 20 * SECOND) == 1);
    CHECK(tn_notification_poll(end->engine, &got) == 1);
    CHECK(got.length < capacity);
    memcpy(text, got.payload, got.length);
    text[got.length] = 0;
}

/* More than the ring has slots, in both directions; the data is there before the notification. */
static void test_notes(struct end *end)
{
    char text[TN_MAX_NOTIFY + 1];
    struct tn_transfer *sent[100];
    for (int i = 0; i < 100; i++) {
        memset(end->memory + i * 8192, i + 1, 8192);
        struct tn_range out = range_at(end, (uint64_t)i * 8192, (uint64_t)i * 8192, 8192);
        snprintf(text, sizeof(text), "look %d%0*d", i, i * 9 + 1, 0);
        sent[i] = submit(end, TN_OP_WRITE, &end->theirs.memory, &out, text);
        if (i % 10 == 9)
            expect_note(end, text, sizeof(text)); /* the answer to one of ten */
    }
    for (int i = 0; i < 100; i++)
        finish(sent[i], TN_OK, "rc");
}

/* What is not allowed is refused by the peer's NIC, typed; both engines then use another path. */
static void test_refusals(struct end *end)
{
    char text[64];
    struct tn_range last = range_at(end, 0, 0, 4096);
    finish(submit(end, TN_OP_READ, &end->theirs.second, &last, NULL), TN_OK, "rc");
    finish(submit(end, TN_OP_READ, &end->theirs.second, &last, "close"), TN_OK, "rc");
    expect_note(end, text, sizeof(text));
    CHECK_TEXT(strcmp(text, "closed") == 0, text);
    struct tn_transfer *refused = submit(end, TN_OP_READ, &end->theirs.second, &last, NULL);
    finish(refused, TN_REMOTE_ACCESS, "rc");
    finish(submit(end, TN_OP_READ, &end->theirs.memory, &last, NULL), TN_OK, NULL);
    finish(submit(end, TN_OP_WRITE, &end->theirs.memory, &last, "bye"), TN_OK, NULL);
}

static void reply(struct end *end, const char *text)
{
    struct tn_range none = range_at(end, 0, 0, 1);
    finish(submit(end, TN_OP_READ, &end->theirs.memory, &none, text), TN_OK, NULL);
}

/* The passive end: answers what it is told to. */
static void serve(struct end *end)
{
    char text[TN_MAX_NOTIFY + 1];
    int looks = 0;
    for (;;) {
        expect_note(end, text, sizeof(text));
        if (strncmp(text, "look ", 5) == 0) {
            int i = looks++;
            for (int at = 0; at < 8192; at++)
                CHECK(end->memory[i * 8192 + at] == i + 1);
            if (i % 10 == 9)
                reply(end, text);
        } else if (strcmp(text, "close") == 0) {
            CHECK(tn_region_close(end->second, 5 * SECOND) == TN_OK);
            reply(end, "closed");
        } else if (strcmp(text, "bye") == 0) {
            usleep(100000); /* the acknowledgement may leave after the completion has come */
            return;
        } else {
            CHECK_TEXT(0, text);
        }
    }
}

static void bench(struct end *end, uint64_t bytes, uint32_t window, double seconds, uint32_t op)
{
    struct tn_transfer **ring = calloc(window, sizeof(struct tn_transfer *));
    uint64_t count = 0, stop = 0, begin = 0;
    uint32_t places = (uint32_t)(16 * MIB / (bytes > 16 * MIB ? 16 * MIB : bytes));
    memset(end->memory, 1, 16 * MIB);
    for (;; count++) {
        struct tn_transfer **place = &ring[count % window];
        if (*place)
            finish(*place, TN_OK, "rc");
        if (count == 64) {
            begin = tn_now();
            stop = begin + (uint64_t)(seconds * 1e9);
        }
        if (count > 64 && tn_now() > stop)
            break;
        uint64_t at = count % places * bytes;
        struct tn_range range = range_at(end, at, at, bytes);
        *place = submit(end, op, &end->theirs.memory, &range, NULL);
    }
    double took = (double)(tn_now() - begin);
    for (uint32_t i = 0; i < window; i++)
        if (ring[(count + i + 1) % window] && i + 1 < window)
            finish(ring[(count + i + 1) % window], TN_OK, "rc");
    printf("ours %s %llu bytes, window %u: %.3f GB/s, %.2f us each\n",
           op == TN_OP_READ ? "read" : "write", (unsigned long long)bytes, window,
           (double)((count - 64) * bytes) / took, took / 1e3 / (double)(count - 64));
    free(ring);
    struct tn_range last = range_at(end, 0, 0, 8);
    finish(submit(end, TN_OP_WRITE, &end->theirs.memory, &last, "bye"), TN_OK, "rc");
}

static void run_end(int fd, const char *device, bool active, int argc, char **argv)
{
    struct end end = {0};
    open_engine(&end, device, active ? 1 : 2);
    join(&end, fd, active ? 2 : 1);
    if (!active) {
        serve(&end);
    } else if (argc >= 7 && strcmp(argv[4], "bench") == 0) {
        bench(&end, strtoull(argv[5], NULL, 0), (uint32_t)strtoul(argv[6], NULL, 0),
              argc > 7 ? strtod(argv[7], NULL) : 1, argc > 8 ? TN_OP_READ : TN_OP_WRITE);
    } else {
        test_there_and_back(&end);
        test_rows_and_crowds(&end);
        test_notes(&end);
        test_refusals(&end);
        puts("all passed");
    }
    leave(&end);
}

static int tcp_socket(const char *address)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    CHECK(inet_pton(AF_INET, address ? address : "0.0.0.0", &at.sin_addr) == 1);
    if (address) {
        for (int i = 0; connect(fd, (struct sockaddr *)&at, sizeof(at)); i++) {
            CHECK(i < 200);
            close(fd);
            usleep(20000);
            fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        }
        return fd;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 1) == 0);
    puts("ready");
    fflush(stdout);
    int accepted = accept(fd, NULL, NULL);
    CHECK(accepted >= 0);
    close(fd);
    return accepted;
}

static int both_ends(void)
{
    char text[TN_TEXT_BYTES];
    struct tn_verbs_port port;
    if (tn_verbs_probe(NULL, text, sizeof(text)) != TN_OK) {
        printf("skipped: %s\n", text);
        return 77;
    }
    CHECK(tn_verbs_ports(NULL, &port, 1) >= 1);
    int fds[2], status;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    close(fds[child ? 1 : 0]);
    run_end(fds[child ? 0 : 1], port.device, child != 0, 0, NULL);
    if (!child)
        exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return both_ends();
    bool active = strcmp(argv[1], "connect") == 0;
    CHECK_TEXT(active ? argc > 3 : strcmp(argv[1], "listen") == 0, "see the top of the source");
    run_end(tcp_socket(active ? argv[3] : NULL), argv[2], active, argc, argv);
    return 0;
}
