/* GPU memory between two processes, over the doubles: by descriptor, by legacy handle, and to a
 * NIC.
 */
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "tests/check.h"
#include "tests/gpu_double.h"

#define MIB (UINT64_C(1) << 20)

static const char *double_name, *double_settings;

static void send_bytes(int socket, const void *bytes, size_t size, int fd)
{
    struct iovec iov = {(void *)bytes, size};
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    CHECK(sendmsg(socket, &message, 0) == (ssize_t)size);
}

static int receive_bytes(int socket, void *bytes, size_t size)
{
    struct iovec iov = {bytes, size};
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    CHECK(recvmsg(socket, &message, 0) == (ssize_t)size);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int fd = -1;
    if (header)
        memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return fd;
}

/* Writes by the device, and waits. */
static void fill(uint64_t to, int value, uint64_t bytes)
{
    void *stream, *event, *source;
    CHECK(tn_gpu_stream_open(0, &stream) == TN_OK && tn_gpu_event_open(0, &event) == TN_OK);
    CHECK(tn_gpu_pinned_alloc(bytes, &source) == TN_OK);
    memset(source, value, bytes);
    CHECK(tn_gpu_copy(0, stream, to, (uintptr_t)source, bytes) == TN_OK);
    CHECK(tn_gpu_event_record(0, event, stream) == TN_OK && tn_gpu_event_wait(0, event) == TN_OK);
    CHECK(tn_gpu_pinned_free(source) == TN_OK);
    CHECK(tn_gpu_event_close(0, event) == TN_OK && tn_gpu_stream_close(0, stream) == TN_OK);
}

static bool holds(uint64_t address, int value, uint64_t bytes)
{
    unsigned char *at = gpu_peek(address, bytes);
    bool all = true;
    for (uint64_t i = 0; i < bytes; i++)
        all &= at[i] == value;
    gpu_unpeek(at, bytes);
    return all;
}

/* ---- the owner */
static void owner_by_descriptor(int socket)
{
    uint64_t handle, base;
    int fd;
    char done;
    CHECK(tn_gpu_memory_create(0, 2 * MIB, &handle) == TN_OK);
    CHECK(tn_gpu_reserve(2 * MIB, 0, &base) == TN_OK);
    CHECK(tn_gpu_map(base, 2 * MIB, handle, 0, true) == TN_OK);
    fill(base, 1, 2 * MIB);
    CHECK(tn_gpu_memory_export(handle, &fd) == TN_OK);
    send_bytes(socket, "v", 1, fd);
    close(fd);
    receive_bytes(socket, &done, 1);
    CHECK(holds(base, 2, 2 * MIB));
}

static void owner_by_handle(int socket)
{
    struct tn_gpu_ipc ipc;
    char done;
    uint64_t memory = gpu_alloc(0, 3 * MIB);
    fill(memory, 3, 3 * MIB);
    CHECK(tn_gpu_ipc_export(memory + MIB, &ipc) == TN_OK); /* of the whole allocation */
    send_bytes(socket, &ipc, sizeof(ipc), -1);
    receive_bytes(socket, &done, 1);
    CHECK(holds(memory, 4, 3 * MIB));
    CHECK(tn_gpu_ipc_export((uintptr_t)&ipc, &ipc) == TN_INVALID);
    gpu_free(memory);
}

static void owner(int socket)
{
    gpu_double_use(double_name, double_settings);
    owner_by_descriptor(socket);
    owner_by_handle(socket);
    pause(); /* until it is killed */
}

/* ---- the other process */
static void use_descriptor(int fd, uint64_t *base, int expected, int then)
{
    uint64_t handle;
    CHECK(tn_gpu_memory_import(fd, &handle) == TN_OK);
    CHECK(tn_gpu_reserve(2 * MIB, 0, base) == TN_OK);
    CHECK(tn_gpu_map(*base, 2 * MIB, handle, 0, true) == TN_OK);
    CHECK(tn_gpu_memory_release(handle) == TN_OK);
    CHECK(holds(*base, expected, 2 * MIB));
    fill(*base, then, 2 * MIB);
}

static void use_handle(const struct tn_gpu_ipc *ipc)
{
    uint64_t first, second;
    struct tn_gpu_pointer pointer;
    CHECK(tn_gpu_ipc_open(0, ipc, &first) == TN_OK);
    CHECK(tn_gpu_ipc_open(0, ipc, &second) == TN_OK && first == second);
    CHECK(tn_gpu_ipc_close(0, second) == TN_OK);
    CHECK(holds(first, 3, 3 * MIB));
    CHECK(tn_gpu_pointer(first + MIB, &pointer) == TN_OK && pointer.kind == TN_GPU_DEVICE);
    CHECK(pointer.base == first && pointer.bytes == 3 * MIB && !pointer.virtual_memory);
    fill(first, 4, 3 * MIB);
    CHECK(tn_gpu_ipc_close(0, first) == TN_OK);
    CHECK(tn_gpu_ipc_close(0, first) < 0);
}

static void test(const char *name, const char *settings)
{
    int pair[2];
    char letter;
    uint64_t base, address;
    struct tn_gpu_ipc ipc;
    double_name = name;
    double_settings = settings;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(pair[1]);
        owner(pair[0]);
    }
    close(pair[0]);
    gpu_double_use(name, settings);
    int fd = receive_bytes(pair[1], &letter, 1);
    CHECK(fd >= 0);
    use_descriptor(fd, &base, 1, 2);
    send_bytes(pair[1], "d", 1, -1);
    receive_bytes(pair[1], &ipc, sizeof(ipc));
    use_handle(&ipc);
    send_bytes(pair[1], "d", 1, -1);
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
    /* What was mapped lives on; a descriptor still leads to it, a legacy handle does not. */
    CHECK(holds(base, 2, 2 * MIB));
    CHECK(tn_gpu_unmap(base, 2 * MIB) == TN_OK && tn_gpu_unreserve(base, 2 * MIB) == TN_OK);
    use_descriptor(fd, &base, 2, 5);
    CHECK(tn_gpu_unmap(base, 2 * MIB) == TN_OK && tn_gpu_unreserve(base, 2 * MIB) == TN_OK);
    CHECK(tn_gpu_ipc_open(0, &ipc, &address) < 0);
    CHECK(gpu_get("physical") == 0 && gpu_get("handles") == 0 && gpu_get("ipc_opened") == 0);
    close(fd);
    close(pair[1]);
}

int main(void)
{
    static const char *const cases[][2] = {{"cuda", ""},
                                           {"cuda", "version=11080"},
                                           {"hip", "version=50221153"},
                                           {"hip", "version=60443484"},
                                           {"hip", "version=70051831"},
                                           {"hip", "version=70125424"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        pid_t pid = fork();
        if (pid == 0) {
            test(cases[i][0], cases[i][1]);
            exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK_TEXT(status == 0, cases[i][1]);
    }
    return 0;
}
