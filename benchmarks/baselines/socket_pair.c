/* What a bare pair of TCP sockets on loopback moves: no library, no framing, one thread at each
 * end.
 *
 *   socket_pair BYTES read|write
 *
 * Two processes. For every line N on stdin the client moves BYTES bytes N times and prints each
 * time in ns. "write": it sends them and waits for one byte that says that the last one is in the
 * server's memory. "read": it asks with one byte and receives them. Both buffers are touched before
 * and used again every time.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void *touched(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("mmap");
    memset(at, 1, bytes);
    return at;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int send_all(int fd, const char *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = send(fd, from + done, bytes - done, MSG_NOSIGNAL);
        if (n <= 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

static int receive_all(int fd, char *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = recv(fd, to + done, bytes - done, 0);
        if (n <= 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

/* Ends with the connection. */
static void serve(int fd, char *buffer, size_t bytes, int reads)
{
    char byte = 0;
    for (;;) {
        int failed = reads ? receive_all(fd, &byte, 1) || send_all(fd, buffer, bytes)
                           : receive_all(fd, buffer, bytes) || send_all(fd, &byte, 1);
        if (failed)
            exit(0);
    }
}

static uint64_t once(int fd, char *buffer, size_t bytes, int reads)
{
    char byte = 0;
    uint64_t begin = now_ns();
    int failed = reads ? send_all(fd, &byte, 1) || receive_all(fd, buffer, bytes)
                       : send_all(fd, buffer, bytes) || receive_all(fd, &byte, 1);
    if (failed)
        die("the other end went away");
    return now_ns() - begin;
}

static int listen_on_loopback(struct sockaddr_in *address)
{
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || bind(fd, (struct sockaddr *)address, length) || listen(fd, 1) ||
        getsockname(fd, (struct sockaddr *)address, &length))
        die("listen");
    return fd;
}

static int connected(int fd)
{
    int on = 1;
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on))
        die("connect");
    return fd;
}

static int connect_to(const struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof *address))
        die("connect");
    return connected(fd);
}

int main(int argc, char **argv)
{
    size_t bytes = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
    int reads = argc == 3 && strcmp(argv[2], "read") == 0;
    if (bytes == 0 || (!reads && strcmp(argv[2], "write") != 0)) {
        fprintf(stderr, "usage: socket_pair BYTES read|write\n");
        return 2;
    }
    struct sockaddr_in address;
    int listener = listen_on_loopback(&address);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(connected(accept(listener, NULL, NULL)), touched(bytes), bytes, reads);
    }
    int fd = connect_to(&address);
    char *buffer = touched(bytes);
    unsigned long count;
    while (scanf("%lu", &count) == 1) {
        while (count-- > 0)
            printf("%llu\n", (unsigned long long)once(fd, buffer, bytes, reads));
        fflush(stdout);
    }
    return 0;
}
