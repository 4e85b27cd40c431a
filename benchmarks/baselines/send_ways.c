/* What one TCP socket on loopback carries, by the ways in which the kernel takes bytes from memory.
 *
 *   cc -O2 -o build/baselines/send_ways benchmarks/baselines/send_ways.c
 *   build/baselines/send_ways send|zerocopy|vmsplice CHUNK_KIB SECONDS [BUFFER_KIB]
 *
 * A child receives into 64 MiB, 1 MiB at a time. The sender's buffer (65536 KiB) is sent again and
 * again in chunks. Prints GB/s and the CPU time of either end for a GB.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define MOST (64 * MIB)

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu(void)
{
    return now(CLOCK_PROCESS_CPUTIME_ID);
}

static char *touched(size_t bytes)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("mmap");
    return memset(at, 1, bytes);
}

/* Tells its CPU time for a GB when the stream has ended. */
static void receive(int listener, int answer)
{
    int fd = accept(listener, NULL, NULL);
    char *buffer = touched(MOST);
    size_t at = 0, total = 0;
    double begun = cpu();
    for (ssize_t got; (got = recv(fd, buffer + at, MOST - at < MIB ? MOST - at : MIB, 0)) > 0;) {
        at = (at + (size_t)got) % MOST;
        total += (size_t)got;
    }
    double spent = (cpu() - begun) / ((double)total / 1e9);
    if (write(answer, &spent, sizeof spent) != sizeof spent)
        die("write");
    _exit(0);
}

static ssize_t send_pinned(int fd, const char *from, size_t bytes)
{
    char room[128];
    struct msghdr message = {.msg_control = room, .msg_controllen = sizeof room};
    while (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0)
        message.msg_controllen = sizeof room;
    ssize_t sent = send(fd, from, bytes, MSG_ZEROCOPY);
    if (sent < 0 && errno == ENOBUFS) {
        poll(&(struct pollfd){.fd = fd}, 1, 10);
        return 0;
    }
    return sent;
}

static ssize_t send_spliced(int fd, const int tube[2], char *from, size_t bytes)
{
    struct iovec iov = {from, bytes};
    ssize_t taken = vmsplice(tube[1], &iov, 1, 0);
    for (ssize_t done = 0, moved; done < taken; done += moved)
        if ((moved = splice(tube[0], NULL, fd, NULL, (size_t)(taken - done), 0)) <= 0)
            return -1;
    return taken;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return fprintf(stderr, "usage: send_ways send|zerocopy|vmsplice CHUNK_KIB SECONDS [KIB]\n"),
               2;
    char way = argv[1][0];
    size_t chunk = strtoull(argv[2], NULL, 10) << 10, at = 0, total = 0;
    size_t size = argc > 4 ? strtoull(argv[4], NULL, 10) << 10 : MOST;
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    int answer[2], tube[2];
    if (bind(listener, (void *)&name, length) || listen(listener, 1) ||
        getsockname(listener, (void *)&name, &length) || pipe(answer) || pipe(tube))
        die("listen");
    fcntl(tube[1], F_SETPIPE_SZ, MIB);
    if (!fork())
        receive(listener, answer[1]);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (void *)&name, sizeof name) ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) ||
        (way == 'z' && setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on)))
        die("connect");
    char *buffer = touched(size);
    double begun = now(CLOCK_MONOTONIC), used = cpu(), theirs = 0, took;
    while ((took = now(CLOCK_MONOTONIC) - begun) < atof(argv[3])) {
        size_t want = size - at < chunk ? size - at : chunk;
        ssize_t sent = way == 'z'   ? send_pinned(fd, buffer + at, want)
                       : way == 'v' ? send_spliced(fd, tube, buffer + at, want)
                                    : send(fd, buffer + at, want, 0);
        if (sent < 0)
            die("send");
        at = (at + (size_t)sent) % size;
        total += (size_t)sent;
    }
    used = (cpu() - used) / ((double)total / 1e9);
    close(fd);
    if (read(answer[0], &theirs, sizeof theirs) != sizeof theirs)
        die("read");
    printf("%-9s %5zu KiB of %zu: %.2f GB/s; %.3f s/GB to send, %.3f s/GB to receive\n", argv[1],
           chunk >> 10, size >> 10, (double)total / took / 1e9, used, theirs);
    return wait(NULL) < 0;
}
