/* Bytes from the socket: payloads straight to where they belong, everything else through the
 * staging buffer. Only the thread that watches the link comes here. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "providers/tcp/state.h"

union control {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))]; /* alignment makes room for two: both are looked at */
};

static void violation(struct tn_link *link, const char *what)
{
    tn_link_break(link, TN_PROTOCOL, "the peer sent %s", what);
}

/* Keeps the one descriptor that may be meant for a SEGMENT_FD, closes all others. The kernel also
 * says that some were cut off when this process may open no more: then the one is lost, which is no
 * fault of the peer's. */
static void take_descriptors(struct tn_link *link, struct msghdr *message)
{
    int extra = 0, came = 0;
    for (struct cmsghdr *item = CMSG_FIRSTHDR(message); item; item = CMSG_NXTHDR(message, item)) {
        if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++, came++) {
            int fd;
            memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
            if (link->came_fd < 0) {
                link->came_fd = fd;
                continue;
            }
            close(fd);
            extra++;
        }
    }
    bool cut = message->msg_flags & MSG_CTRUNC;
    if (cut && !came)
        link->lost_fd = true;
    else if (extra || cut)
        violation(link, "more descriptors than it was asked for");
}

/* The payload is complete. */
static void finish_sink(struct tn_link *link)
{
    struct tn_sink sink = link->sink;
    link->sink = (struct tn_sink){.kind = TN_SINK_NONE};
    if (sink.kind == TN_SINK_WRITE && sink.buffer)
        tn_link_store(sink.answer, &sink.header, sink.buffer);
    if (sink.kind == TN_SINK_DATA)
        tn_link_data_here(link, sink.request);
    else if (sink.kind == TN_SINK_WRITE)
        tn_link_write_here(link, sink.answer);
    else if (sink.kind == TN_SINK_MESSAGE)
        tn_link_take_message(link, &sink.header, sink.buffer);
    free(sink.buffer);
}

static void advance_sink(struct tn_link *link, uint64_t bytes)
{
    if (link->sink.to)
        link->sink.to += bytes;
    link->sink.left -= bytes;
    if (!link->sink.left)
        finish_sink(link);
}

static uint8_t *staged(struct tn_link *link)
{
    return link->staging + link->begin;
}

static uint32_t staged_bytes(const struct tn_link *link)
{
    return link->end - link->begin;
}

static void feed_sink(struct tn_link *link)
{
    uint64_t take = staged_bytes(link) < link->sink.left ? staged_bytes(link) : link->sink.left;
    if (link->sink.to)
        memcpy(link->sink.to, staged(link), take);
    link->begin += (uint32_t)take;
    advance_sink(link, take);
}

/* A small message that is here in one piece is delivered from where it lies. */
static void begin_message(struct tn_link *link, const struct tn_header *header)
{
    if (header->length <= staged_bytes(link)) {
        const uint8_t *payload = staged(link);
        link->begin += (uint32_t)header->length;
        tn_link_take_message(link, header, payload);
        return;
    }
    uint8_t *buffer = malloc(header->length);
    if (!buffer) {
        tn_link_break(link, TN_NOMEM, "no memory for a message of %llu bytes",
                      (unsigned long long)header->length);
        return;
    }
    link->sink = (struct tn_sink){.kind = TN_SINK_MESSAGE,
                                  .to = buffer,
                                  .left = header->length,
                                  .header = *header,
                                  .buffer = buffer};
}

/* Answers to what this side has asked; false if it has not. */
static bool handle_answer(struct tn_link *link, const struct tn_header *header)
{
    switch ((enum tn_frame_type)header->type) {
    case TN_FRAME_DATA:
        return tn_link_take_data(link, header);
    case TN_FRAME_WRITE_DONE:
        return tn_link_take_write_done(link, header);
    case TN_FRAME_NOTIFY_DONE:
        return tn_link_take_notify_done(link, header);
    case TN_FRAME_SEGMENT_FD:
        return tn_link_take_segment(link, header);
    default: /* PONG: that it was heard is all */
        return true;
    }
}

/* The order of everything else is that of the first stream. */
static bool on_any_stream(const struct tn_header *header)
{
    switch ((enum tn_frame_type)header->type) {
    case TN_FRAME_PING:
    case TN_FRAME_PONG:
    case TN_FRAME_READ:
    case TN_FRAME_DATA:
    case TN_FRAME_WRITE:
    case TN_FRAME_WRITE_DONE:
    case TN_FRAME_READ_ROWS:
    case TN_FRAME_WRITE_ROWS:
    case TN_FRAME_BYE:
        return true;
    default:
        return false;
    }
}

static void handle(struct tn_link *link, const struct tn_header *header)
{
    bool allowed = true;
    if (!tn_link_is_first(link) && !on_any_stream(header)) {
        violation(link, "what belongs on its first stream over another");
        return;
    }
    switch ((enum tn_frame_type)header->type) {
    case TN_FRAME_PING:
        tn_link_signal(link, &link->pong, 1);
        break;
    case TN_FRAME_READ:
        tn_link_serve_read(link, header);
        break;
    case TN_FRAME_WRITE:
        tn_link_serve_write(link, header);
        break;
    case TN_FRAME_NOTIFY:
    case TN_FRAME_CONTROL:
    case TN_FRAME_LINK:
    case TN_FRAME_READ_ROWS:
    case TN_FRAME_WRITE_ROWS:
        begin_message(link, header);
        break;
    case TN_FRAME_CREDIT:
        link->host->credited(link->host, link->peer, (uint32_t)header->length);
        break;
    case TN_FRAME_SEGMENT:
        allowed = tn_link_serve_segment(link, header);
        break;
    case TN_FRAME_WIDEN:
        tn_link_widen(link);
        break;
    case TN_FRAME_BYE:
        tn_link_break(link, TN_PEER_LOST, "the peer closed its engine");
        break;
    default:
        allowed = handle_answer(link, header);
        break;
    }
    if (!allowed && !link->dead)
        violation(link, "an answer to nothing that was asked, or more requests than are allowed");
}

static void parse(struct tn_link *link)
{
    while (!link->dead) {
        if (link->sink.kind != TN_SINK_NONE) {
            if (!staged_bytes(link))
                break;
            feed_sink(link);
            continue;
        }
        struct tn_header header;
        if (staged_bytes(link) < sizeof(header))
            break;
        memcpy(&header, staged(link), sizeof(header));
        const char *wrong = tn_frame_check(&header);
        if (wrong) {
            violation(link, wrong);
            return;
        }
        bool request = header.type == TN_FRAME_READ || header.type == TN_FRAME_WRITE ||
                       header.type == TN_FRAME_READ_ROWS || header.type == TN_FRAME_WRITE_ROWS;
        if (request && !tn_link_can_serve(link)) {
            link->paused = true;
            return;
        }
        link->begin += (uint32_t)sizeof(header);
        handle(link, &header);
    }
    if (!link->dead && link->came_fd >= 0 && !staged_bytes(link))
        violation(link, "a descriptor that it was not asked for");
}

static void compact(struct tn_link *link)
{
    uint32_t left = staged_bytes(link);
    if (left && link->begin)
        memmove(link->staging, staged(link), left);
    link->begin = 0;
    link->end = left;
}

/* As much came as there was room for: more room saves system calls. */
static void grow(struct tn_link *link)
{
    link->used_room = true;
    if (link->staging != link->small)
        return;
    uint8_t *large = malloc(TN_LINK_STAGING_BUSY);
    if (!large)
        return; /* it goes without */
    memcpy(large, link->small, link->end);
    link->staging = large;
    link->room = TN_LINK_STAGING_BUSY;
}

void tn_link_rest_staging(struct tn_link *link)
{
    bool needed = link->used_room || staged_bytes(link) > TN_LINK_STAGING_IDLE;
    link->used_room = false;
    if (needed || link->staging == link->small)
        return;
    compact(link);
    memcpy(link->small, link->staging, link->end);
    free(link->staging);
    link->staging = link->small;
    link->room = TN_LINK_STAGING_IDLE;
}

static void ended(struct tn_link *link, ssize_t got)
{
    if (got < 0)
        tn_link_break(link, TN_PEER_LOST, "receiving from the peer failed: %s", strerror(errno));
    else
        tn_link_break(link, TN_PEER_LOST, "the peer closed the connection");
}

/* What recvmsg brought: first the payload, then whatever follows it. */
static void distribute(struct tn_link *link, uint64_t direct, uint64_t got)
{
    uint64_t straight = got < direct ? got : direct;
    link->end += (uint32_t)(got - straight);
    if (straight)
        advance_sink(link, straight);
    parse(link);
}

/* Where the next bytes go: the rest of a payload, then the staging buffer. */
struct aim {
    struct iovec iov[2];
    size_t n_iov;
    uint64_t direct, room;
};

static void take_aim(struct tn_link *link, struct aim *aim)
{
    const struct tn_sink *sink = &link->sink;
    aim->n_iov = 0;
    aim->direct = 0;
    aim->room = link->room - link->end;
    if (sink->kind != TN_SINK_NONE && sink->to) {
        aim->direct = sink->left < TN_LINK_COPY ? sink->left : TN_LINK_COPY;
        aim->iov[aim->n_iov++] = (struct iovec){sink->to, aim->direct};
        if (sink->bulk)
            aim->room = sizeof(struct tn_header);
        if (aim->direct < sink->left)
            aim->room = 0;
    }
    if (aim->room)
        aim->iov[aim->n_iov++] = (struct iovec){link->staging + link->end, aim->room};
}

/* One recvmsg into the aim; what it says about the end of the stream ends the link. */
static ssize_t receive_into(struct tn_link *link, struct aim *aim)
{
    union control control;
    struct msghdr message = {.msg_iov = aim->iov, .msg_iovlen = aim->n_iov};
    if (link->is_unix) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof(control.room);
    }
    ssize_t got;
    do
        got = recvmsg(link->watch.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (got <= 0)
        ended(link, got);
    else if (link->is_unix)
        take_descriptors(link, &message);
    return got;
}

/* One system call: the bytes that came, 0 if none were there. `*filled` tells that there may be
 * more. */
static uint64_t receive_once(struct tn_link *link, bool *filled)
{
    struct aim aim;
    compact(link);
    take_aim(link, &aim);
    ssize_t got = receive_into(link, &aim);
    *filled = got > 0 && (uint64_t)got == aim.direct + aim.room;
    if (got <= 0 || link->dead)
        return 0;
    atomic_store_explicit(&link->last_heard, tn_now(), memory_order_relaxed);
    link->unsure = false;
    distribute(link, aim.direct, (uint64_t)got);
    if (*filled && aim.room > sizeof(struct tn_header) && !link->dead) {
        compact(link);
        grow(link);
    }
    return (uint64_t)got;
}

void tn_link_receive(struct tn_link *link, uint32_t events)
{
    if (link->paused && tn_link_can_serve(link)) {
        link->paused = false;
        parse(link);
    }
    uint64_t budget = tn_link_turn(link);
    bool filled = true;
    while (filled && budget && !link->dead && !link->paused) {
        uint64_t got = receive_once(link, &filled);
        budget -= got < budget ? got : budget;
        if (got && !link->dead)
            tn_link_settle(link, tn_link_turn(link));
        if (atomic_load_explicit(&link->waiting, memory_order_relaxed))
            break;
    }
    if (link->dead)
        return;
    if (link->paused && events & (EPOLLHUP | EPOLLERR))
        tn_link_break(link, TN_PEER_LOST,
                      "the peer closed the connection with requests unanswered");
    else if (link->send_error && (link->paused || !filled))
        tn_link_break(link, TN_PEER_LOST, "sending to the peer failed: %s",
                      strerror(link->send_error));
}
