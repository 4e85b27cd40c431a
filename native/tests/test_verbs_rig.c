/* Two engines in two processes over a real RDMA device, through the public interface only.
 *
 *   test_verbs_rig                            both ends on this host's first device; skips where
 * there is none test_verbs_rig listen DEVICE              one end each, on two hosts: prints
 * "ready" when it listens test_verbs_rig connect DEVICE ADDRESS [bench BYTES WINDOW SECONDS [read]]
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/verbs_end.h"

#define MEMORY (64u * MIB)
#define PORT 7471

static void exchange(int fd, const void *ours, void *theirs, size_t bytes)
{
    CHECK(send(fd, ours, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
    CHECK(recv(fd, theirs, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

static void join(struct end *end, int fd)
{
    char ready = 'r';
    end_greet(end);
    exchange(fd, &end->ours, &end->theirs, sizeof(end->ours));
    end_accept(end);
    exchange(fd, &ready, &ready, 1);
    end_up(end, fd);
}

static void test_there_and_back(struct end *end)
{
    static const uint64_t sizes[] = {1, 7, 4096, 65537, 3 * MIB + 17, 20 * MIB};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        uint64_t bytes = sizes[i];
        end_fill(end->memory, bytes, (unsigned)i);
        memset(end->memory + 32 * MIB, 0, bytes);
        struct tn_range out = end_range(end, 0, 3, bytes),
                        back = end_range(end, 32 * MIB, 3, bytes);
        end_finish(end_submit(end, TN_OP_WRITE, &end->theirs.memory, &out, 1, NULL), TN_OK, "rc");
        end_finish(end_submit(end, TN_OP_READ, &end->theirs.memory, &back, 1, NULL), TN_OK, "rc");
        CHECK(memcmp(end->memory, end->memory + 32 * MIB, bytes) == 0);
    }
}

/* 1000 rows that touch on neither side, and many transfers at once. */
static void test_rows_and_crowds(struct end *end)
{
    struct tn_transfer *crowd[200];
    end_fill(end->memory, MIB, 99);
    memset(end->memory + 32 * MIB, 0, MIB);
    struct tn_range out = end_range(end, 0, 0, 100), back = end_range(end, 32 * MIB, 0, 100);
    out.rows = back.rows = 1000;
    out.local_stride = back.local_stride = 1000;
    out.remote_stride = back.remote_stride = 300;
    end_finish(end_submit(end, TN_OP_WRITE, &end->theirs.memory, &out, 1, NULL), TN_OK, "rc");
    end_finish(end_submit(end, TN_OP_READ, &end->theirs.memory, &back, 1, NULL), TN_OK, "rc");
    for (size_t row = 0; row < 1000; row++)
        CHECK(memcmp(end->memory + row * 1000, end->memory + 32 * MIB + row * 1000, 100) == 0);
    for (size_t i = 0; i < 200; i++) {
        struct tn_range one = end_range(end, i * 4096, i * 4096, i == 100 ? 16 * MIB : 1000);
        crowd[i] =
            end_submit(end, i % 2 ? TN_OP_WRITE : TN_OP_READ, &end->theirs.memory, &one, 1, NULL);
    }
    for (size_t i = 0; i < 200; i++)
        end_finish(crowd[i], TN_OK, "rc");
}

/* More than the ring has slots, in both directions; the data is there before the notification. */
static void test_notes(struct end *end)
{
    char text[TN_MAX_NOTIFY + 1];
    struct tn_transfer *sent[100];
    for (int i = 0; i < 100; i++) {
        memset(end->memory + i * 8192, i + 1, 8192);
        struct tn_range out = end_range(end, (uint64_t)i * 8192, (uint64_t)i * 8192, 8192);
        snprintf(text, sizeof(text), "look %d%0*d", i, i * 9 + 1, 0);
        sent[i] = end_submit(end, TN_OP_WRITE, &end->theirs.memory, &out, 1, text);
        if (i % 10 == 9)
            end_expect_note(end, text, sizeof(text)); /* the answer to one of ten */
    }
    for (int i = 0; i < 100; i++)
        end_finish(sent[i], TN_OK, "rc");
}

/* What is not allowed is refused by the peer's NIC, typed; both engines go on with RDMA. */
static void test_refusals(struct end *end)
{
    char text[64];
    struct tn_range last = end_range(end, 0, 0, 4096);
    end_finish(end_submit(end, TN_OP_READ, &end->theirs.second, &last, 1, NULL), TN_OK, "rc");
    end_finish(end_submit(end, TN_OP_READ, &end->theirs.second, &last, 1, "close"), TN_OK, "rc");
    end_expect_note(end, text, sizeof(text));
    CHECK_TEXT(strcmp(text, "closed") == 0, text);
    struct tn_transfer *refused = end_submit(end, TN_OP_READ, &end->theirs.second, &last, 1, NULL);
    end_finish(refused, TN_STALE, "rc");
    end_finish(end_submit(end, TN_OP_READ, &end->theirs.memory, &last, 1, NULL), TN_OK, "rc");
    end_finish(end_submit(end, TN_OP_WRITE, &end->theirs.memory, &last, 1, "bye"), TN_OK, "rc");
}

static void reply(struct end *end, const char *text)
{
    struct tn_range none = end_range(end, 0, 0, 1);
    end_finish(end_submit(end, TN_OP_READ, &end->theirs.memory, &none, 1, text), TN_OK, NULL);
}

/* The passive end: answers what it is told to. */
static void serve(struct end *end)
{
    char text[TN_MAX_NOTIFY + 1];
    int looks = 0;
    for (;;) {
        end_expect_note(end, text, sizeof(text));
        if (strncmp(text, "look ", 5) == 0) {
            int i = looks++;
            for (int at = 0; at < 8192; at++)
                CHECK(end->memory[i * 8192 + at] == i + 1);
            if (i % 10 == 9)
                reply(end, text);
        } else if (strcmp(text, "close") == 0) {
            CHECK(tn_region_close(end->second, LONG) == TN_OK);
            reply(end, "closed");
        } else if (strcmp(text, "bye") == 0) {
            usleep(100000); /* the acknowledgement may leave after the completion has come */
            return;
        } else {
            CHECK_TEXT(0, text);
        }
    }
}

/* As perftest does it: the same buffers all the time. Spread over memory that no cache holds,
 * Soft-RoCE moves a third less. */
static void bench(struct end *end, uint64_t bytes, uint32_t window, double seconds, uint32_t op)
{
    struct tn_transfer **ring = calloc(window, sizeof(struct tn_transfer *));
    uint64_t count = 0, stop = 0, begin = 0;
    CHECK(bytes && bytes <= MEMORY);
    memset(end->memory, 1, bytes);
    for (;; count++) {
        struct tn_transfer **place = &ring[count % window];
        if (*place)
            end_finish(*place, TN_OK, "rc");
        if (count == 64) {
            begin = tn_now();
            stop = begin + (uint64_t)(seconds * 1e9);
        }
        if (count > 64 && tn_now() > stop)
            break;
        struct tn_range range = end_range(end, 0, 0, bytes);
        *place = end_submit(end, op, &end->theirs.memory, &range, 1, NULL);
    }
    double took = (double)(tn_now() - begin);
    for (uint32_t i = 0; i < window; i++)
        if (ring[(count + i + 1) % window] && i + 1 < window)
            end_finish(ring[(count + i + 1) % window], TN_OK, "rc");
    printf("ours %s %llu bytes, window %u: %.3f GB/s, %.2f us each\n",
           op == TN_OP_READ ? "read" : "write", (unsigned long long)bytes, window,
           (double)((count - 64) * bytes) / took, took / 1e3 / (double)(count - 64));
    free(ring);
    struct tn_range last = end_range(end, 0, 0, 8);
    end_finish(end_submit(end, TN_OP_WRITE, &end->theirs.memory, &last, 1, "bye"), TN_OK, "rc");
}

static void run_end(int fd, const char *device, bool active, int argc, char **argv)
{
    struct end end = {0};
    end_open(&end, NULL, device, active ? 1 : 2, MEMORY);
    join(&end, fd);
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
    end_close(&end);
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
    end_sockets(fds);
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
