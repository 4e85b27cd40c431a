/* Who is where, and bytes between all ranks over loopback sockets. */
#define _GNU_SOURCE /* accept4 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fakes/fakenccl/fakenccl.h"

struct hello {
    uint64_t nonce;
    int32_t rank, ranks;
    uint16_t port;
};

struct root {
    int listener;
    uint64_t nonce;
};

int fake_listen(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 128) ||
        getsockname(fd, (struct sockaddr *)&address, &length)) {
        close(fd);
        return -1;
    }
    *port = ntohs(address.sin_port);
    return fd;
}

static int dial(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address))) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool read_all(int fd, void *out, size_t bytes)
{
    return recv(fd, out, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* ---- the root: tells all ranks where all of them are */
static void *serve(void *context)
{
    struct root root = *(struct root *)context;
    struct fake_where where = {.nonce = root.nonce};
    int waiting[64], count = 0;
    free(context);
    while (!count || count < where.ranks) {
        struct hello hello;
        int fd = accept4(root.listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 || !read_all(fd, &hello, sizeof(hello)) || hello.nonce != root.nonce ||
            hello.ranks < 1 || hello.ranks > 64 || hello.rank < 0 || hello.rank >= hello.ranks) {
            close(fd);
            continue;
        }
        where.ranks = hello.ranks;
        where.ports[hello.rank] = hello.port;
        waiting[count++] = fd;
    }
    for (int i = 0; i < count; i++) {
        send(waiting[i], &where, sizeof(where), MSG_NOSIGNAL);
        close(waiting[i]);
    }
    close(root.listener);
    return NULL;
}

int fake_root_open(ncclUniqueId *id)
{
    struct root *root = malloc(sizeof(*root));
    uint16_t port;
    pthread_t thread;
    root->listener = fake_listen(&port);
    if (root->listener < 0 || getrandom(&root->nonce, sizeof(root->nonce), 0) < 0)
        return ncclSystemError;
    memset(id, 0, sizeof(*id));
    memcpy(id->internal, &root->nonce, sizeof(root->nonce));
    memcpy(id->internal + 8, &port, sizeof(port));
    pthread_create(&thread, NULL, serve, root);
    pthread_detach(thread);
    return ncclSuccess;
}

/* ---- waiting, which an abort ends */
static bool is_ready(ncclComm_t comm, int fd)
{
    struct pollfd polled[2] = {{fd, POLLIN, 0}, {comm->bell, POLLIN, 0}};
    while (poll(polled, 2, -1) < 0 && errno == EINTR)
        ;
    return !polled[1].revents;
}

void fake_wait_for_abort(ncclComm_t comm)
{
    struct pollfd polled = {comm->bell, POLLIN, 0};
    while (poll(&polled, 1, -1) < 0 && errno == EINTR)
        ;
}

int fake_meet(ncclComm_t comm, const ncclUniqueId *id)
{
    struct hello hello = {.rank = comm->rank, .ranks = comm->where.ranks};
    uint16_t port;
    memcpy(&hello.nonce, id->internal, sizeof(hello.nonce));
    memcpy(&port, id->internal + 8, sizeof(port));
    comm->listener = fake_listen(&hello.port);
    int root = comm->listener < 0 ? -1 : dial(port), error = ncclSuccess;
    if (root < 0)
        error = ncclSystemError;
    else if (send(root, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello) ||
             !is_ready(comm, root) || !read_all(root, &comm->where, sizeof(comm->where)))
        error = ncclRemoteError;
    close(root);
    return error ? error : fake_connect(comm);
}

static int take_stashed(ncclComm_t comm)
{
    int taken = 0;
    for (int i = 0; i < FAKE_STASH; i++) {
        if (comm->stash[i].fd < 0 || comm->stash[i].nonce != comm->where.nonce)
            continue;
        comm->sockets[comm->stash[i].rank] = comm->stash[i].fd;
        comm->stash[i].fd = -1;
        taken++;
    }
    return taken;
}

static void stash(ncclComm_t comm, int fd, const struct hello *hello)
{
    int i = 0;
    while (comm->stash[i].fd >= 0)
        i++;
    comm->stash[i].fd = fd;
    comm->stash[i].nonce = hello->nonce;
    comm->stash[i].rank = hello->rank;
}

/* Every rank dials the lower ones and is dialled by the higher ones. */
int fake_connect(ncclComm_t comm)
{
    struct hello hello = {comm->where.nonce, comm->rank, comm->where.ranks, 0};
    for (int rank = 0; rank < comm->rank; rank++) {
        int fd = dial(comm->where.ports[rank]);
        if (fd < 0)
            return ncclRemoteError;
        comm->sockets[rank] = fd;
        if (send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello))
            return ncclRemoteError;
    }
    int wanted = comm->where.ranks - 1 - comm->rank - take_stashed(comm);
    while (wanted > 0) {
        struct hello theirs;
        if (!is_ready(comm, comm->listener))
            return ncclInternalError;
        int fd = accept4(comm->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 || !read_all(fd, &theirs, sizeof(theirs))) {
            close(fd);
        } else if (theirs.nonce != comm->where.nonce) {
            stash(comm, fd, &theirs);
        } else {
            comm->sockets[theirs.rank] = fd;
            wanted--;
        }
    }
    for (int rank = 0; rank < comm->where.ranks; rank++) {
        int one = 1;
        if (comm->sockets[rank] < 0)
            continue;
        setsockopt(comm->sockets[rank], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        fcntl(comm->sockets[rank], F_SETFL, O_NONBLOCK);
    }
    return ncclSuccess;
}

/* ---- bytes */
/* 1: done; 0: not now; negative: the peer is gone. */
static int push(int fd, struct fake_flow *flow)
{
    while (flow->done < sizeof(flow->header) + flow->bytes) {
        bool head = flow->done < sizeof(flow->header);
        const char *at = head ? (char *)flow->header + flow->done
                              : flow->data + (flow->done - sizeof(flow->header));
        size_t left = head ? sizeof(flow->header) - flow->done
                           : flow->bytes + sizeof(flow->header) - flow->done;
        ssize_t moved = send(fd, at, left, MSG_NOSIGNAL);
        if (moved <= 0)
            return moved < 0 && errno == EAGAIN ? 0 : -1;
        flow->done += (size_t)moved;
    }
    return 1;
}

/* As push; -2: something else came than what is due. */
static int pull(int fd, struct fake_flow *flow)
{
    while (flow->done < sizeof(flow->header) + flow->bytes) {
        bool head = flow->done < sizeof(flow->header);
        char *at = head ? (char *)flow->header + flow->done
                        : flow->data + (flow->done - sizeof(flow->header));
        size_t left = head ? sizeof(flow->header) - flow->done
                           : flow->bytes + sizeof(flow->header) - flow->done;
        ssize_t moved = recv(fd, at, left, 0);
        if (moved <= 0)
            return moved < 0 && errno == EAGAIN ? 0 : -1;
        flow->done += (size_t)moved;
        if (flow->done == sizeof(flow->header) &&
            (flow->header[0] != flow->bytes || flow->header[1] != flow->tag))
            return -2;
    }
    return 1;
}

static bool is_done(const struct fake_flow *flow)
{
    return flow->done == sizeof(flow->header) + flow->bytes;
}

/* Moves the first flow of each direction of a peer; 0, or an error. */
static int move(ncclComm_t comm, struct fake_flow *flows, size_t count, int peer, bool out)
{
    for (size_t i = 0; i < count; i++) {
        struct fake_flow *flow = &flows[i];
        if (flow->peer != peer || flow->out != out || is_done(flow))
            continue;
        int moved = out ? push(comm->sockets[peer], flow) : pull(comm->sockets[peer], flow);
        if (moved == -2)
            fake_fail(comm, ncclInternalError,
                      "rank %d sent %llu bytes of kind %llu where %zu of kind %u are due", peer,
                      (unsigned long long)flow->header[0], (unsigned long long)flow->header[1],
                      flow->bytes, flow->tag);
        else if (moved < 0)
            fake_fail(comm, ncclRemoteError, "connection closed by remote peer (rank %d)", peer);
        if (moved <= 0)
            return moved;
    }
    return 0;
}

static short wanted_of(struct fake_flow *flows, size_t count, int peer)
{
    short wanted = 0;
    for (size_t i = 0; i < count; i++)
        if (flows[i].peer == peer && !is_done(&flows[i]))
            wanted |= flows[i].out ? POLLOUT : POLLIN;
    return wanted;
}

int fake_exchange(ncclComm_t comm, struct fake_flow *flows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (flows[i].out) {
            flows[i].header[0] = flows[i].bytes;
            flows[i].header[1] = flows[i].tag;
        }
    for (;;) {
        struct pollfd polled[65] = {{comm->bell, POLLIN, 0}};
        int peers[65], waiting = 1;
        for (int peer = 0; peer < comm->where.ranks; peer++) {
            short wanted = wanted_of(flows, count, peer);
            if (!wanted)
                continue;
            peers[waiting] = peer;
            polled[waiting++] = (struct pollfd){comm->sockets[peer], wanted, 0};
        }
        if (waiting == 1)
            return ncclSuccess;
        if (poll(polled, (nfds_t)waiting, -1) < 0 && errno != EINTR)
            return ncclSystemError;
        if (polled[0].revents)
            return ncclInternalError;
        for (int i = 1; i < waiting; i++)
            if (polled[i].revents && (move(comm, flows, count, peers[i], true) ||
                                      move(comm, flows, count, peers[i], false)))
                return ncclRemoteError;
    }
}
