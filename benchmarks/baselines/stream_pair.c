/* What bare TCP sockets carry one way: one thread for each at either end, no library, no framing.
 *
 *   stream_pair ADDRESS                                  serves for ever; prints its port first
 *   stream_pair ADDRESS PORT STREAMS SECONDS BYTES       sends; prints the bytes that arrived in
 *                                                        that time, for each second
 *
 * BYTES is a sender's buffer, all streams together, which it sends again and again; the server's
 * has the same size. What counts is what the server has acknowledged when the time is over.
 */
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static char *touched(size_t bytes)
{
    char *at = malloc(bytes);
    if (!at)
        die("malloc");
    return memset(at, 1, bytes);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct addrinfo *resolved(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    if (getaddrinfo(host, port, &hints, &found)) {
        fprintf(stderr, "stream_pair: what is %s?\n", host);
        exit(2);
    }
    return found;
}

/* ---- the receiving end: a size comes first, then bytes until the sender goes away. */
static void *receive(void *argument)
{
    int fd = (int)(intptr_t)argument;
    uint64_t size = 0;
    if (recv(fd, &size, sizeof size, MSG_WAITALL) == sizeof size && size && size <= 1u << 30) {
        char *buffer = touched(size);
        size_t at = 0;
        ssize_t got;
        while ((got = recv(fd, buffer + at, size - at, 0)) > 0)
            at = (at + (size_t)got) % size;
        free(buffer);
    }
    close(fd);
    return NULL;
}

static void serve(const char *host)
{
    struct addrinfo *where = resolved(host, "0");
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    char port[16];
    int listener = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, where->ai_addr, where->ai_addrlen) || listen(listener, 64) ||
        getsockname(listener, (struct sockaddr *)&name, &length))
        die("listen");
    getnameinfo((struct sockaddr *)&name, length, NULL, 0, port, sizeof port, NI_NUMERICSERV);
    printf("%s\n", port);
    fflush(stdout);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        pthread_t thread;
        int fd = accept(listener, NULL, NULL);
        if (fd >= 0 && !pthread_create(&thread, NULL, receive, (void *)(intptr_t)fd))
            pthread_detach(thread);
    }
}

/* ---- the sending end */
struct stream {
    pthread_t thread;
    int fd;
    size_t size;
};

/* Until the process ends. */
static void *send_on(void *argument)
{
    struct stream *stream = argument;
    char *buffer = touched(stream->size);
    uint64_t size = stream->size;
    size_t at = 0;
    if (send(stream->fd, &size, sizeof size, MSG_NOSIGNAL) != sizeof size)
        die("send");
    for (ssize_t sent = 1; sent > 0; at = (at + (size_t)sent) % stream->size) {
        size_t want = stream->size - at < 1 << 20 ? stream->size - at : 1 << 20;
        sent = send(stream->fd, buffer + at, want, MSG_NOSIGNAL);
    }
    die("send");
    return NULL;
}

static void begin(struct stream *stream, struct addrinfo *where, size_t size)
{
    int on = 1;
    struct linger reset = {.l_onoff = 1}; /* what is still queued at the end goes nowhere */
    stream->fd = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    stream->size = size;
    if (stream->fd < 0 || connect(stream->fd, where->ai_addr, where->ai_addrlen) ||
        setsockopt(stream->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) ||
        setsockopt(stream->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset))
        die("connect");
}

static uint64_t acknowledged(const struct stream *stream)
{
    struct tcp_info info;
    socklen_t length = sizeof info;
    if (getsockopt(stream->fd, IPPROTO_TCP, TCP_INFO, &info, &length))
        die("TCP_INFO");
    return info.tcpi_bytes_acked;
}

int main(int argc, char **argv)
{
    if (argc == 2)
        serve(argv[1]);
    if (argc != 6) {
        fprintf(stderr, "usage: stream_pair ADDRESS [PORT STREAMS SECONDS BYTES]\n");
        return 2;
    }
    struct addrinfo *where = resolved(argv[1], argv[2]);
    int count = atoi(argv[3]);
    double start, seconds = atof(argv[4]);
    uint64_t total = 0;
    struct stream *streams = calloc((size_t)count, sizeof *streams);
    if (count < 1 || !streams)
        die("streams");
    for (int i = 0; i < count; i++)
        begin(&streams[i], where, strtoull(argv[5], NULL, 10) / (size_t)count);
    start = now();
    for (int i = 0; i < count; i++)
        if (pthread_create(&streams[i].thread, NULL, send_on, &streams[i]))
            die("pthread_create");
    usleep((useconds_t)(seconds * 1e6));
    for (int i = 0; i < count; i++)
        total += acknowledged(&streams[i]);
    printf("%.0f\n", (double)total / (now() - start));
    return 0;
}
