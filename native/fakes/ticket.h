/* Descriptors that stand for memory without being it, as those of GPU drivers do: a socket that
 * nothing comes out of but, to a double that knows, the memory's own descriptor. It cannot be
 * mapped, lives as long as any copy of it, wherever it was sent, and keeps the memory alive.
 * For doubles only: what one of them exports, another can use. */
#ifndef FAKE_TICKET_H
#define FAKE_TICKET_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum fake_ticket_kind { FAKE_TICKET_VIRTUAL = 0x56544b46, FAKE_TICKET_DMABUF = 0x44544b46 };

struct fake_ticket {
    uint32_t kind;
    int32_t device;
    uint64_t id, offset, bytes; /* of the memory: `bytes` from `offset` on are what it stands for */
    uint32_t direct_rdma;
};

union fake_ticket_control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

/* A new descriptor, or -1. `memory` stays the caller's. */
static inline int fake_ticket_make(const struct fake_ticket *ticket, int memory)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair))
        return -1;
    union fake_ticket_control control;
    memset(&control, 0, sizeof(control));
    struct iovec iov = {(void *)ticket, sizeof(*ticket)};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &memory, sizeof(memory));
    bool sent = sendmsg(pair[0], &message, 0) == (ssize_t)sizeof(*ticket);
    close(pair[0]);
    if (sent)
        return pair[1];
    close(pair[1]);
    return -1;
}

/* The memory's descriptor, the caller's to close; -1 where `fd` is no ticket of that kind. */
static inline int fake_ticket_read(int fd, uint32_t kind, struct fake_ticket *ticket)
{
    union fake_ticket_control control;
    struct iovec iov = {ticket, sizeof(*ticket)};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t got = recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *header = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS)
        return -1;
    int memory;
    memcpy(&memory, CMSG_DATA(header), sizeof(memory));
    if (got == (ssize_t)sizeof(*ticket) && ticket->kind == kind)
        return memory;
    close(memory);
    return -1;
}

#endif
