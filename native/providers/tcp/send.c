/* Frames to the socket: as many as fit into one sendmsg, straight from where their bytes lie. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "providers/tcp/state.h"

#define IOV 64

struct batch {
    struct iovec iov[IOV];
    struct tn_frame *frames[IOV];
    int n_iov, n_frames;
    uint64_t bytes, limit;
    int fd; /* travels with the first frame, which is then alone; -1 none */
};

void tn_frame_init(struct tn_frame *frame, enum tn_frame_owner owner, enum tn_frame_type type)
{
    *frame = (struct tn_frame){.owner = owner,
                               .header = {.magic = TN_FRAME_MAGIC, .type = (uint8_t)type}};
    tn_list_init(&frame->node);
}

void tn_link_signal(struct tn_link *link, struct tn_signal *signal, uint64_t count)
{
    signal->owed += count;
    if (link->current != &signal->frame && tn_list_empty(&signal->frame.node))
        tn_list_append(&link->urgent, &signal->frame.node);
}

static int descriptor_of(struct tn_frame *frame)
{
    return frame->owner == TN_OF_MESSAGE ? tn_container(frame, struct tn_message, frame)->fd : -1;
}

/* What a signal says is decided when it is about to be sent, and again if it was not. */
static void prepare(struct tn_frame *frame)
{
    if (frame->owner != TN_OF_SIGNAL)
        return;
    struct tn_signal *signal = tn_container(frame, struct tn_signal, frame);
    uint64_t most = signal->owed < UINT32_MAX ? signal->owed : UINT32_MAX;
    frame->header.length = signal->counts ? most : 0;
}

/* False when nothing may be added after it. */
static bool add(struct batch *batch, struct tn_frame *frame, uint64_t skip)
{
    if (batch->n_iov + 2 > IOV || batch->bytes >= batch->limit)
        return false;
    batch->frames[batch->n_frames++] = frame;
    uint64_t head = sizeof(frame->header);
    if (skip < head) {
        batch->iov[batch->n_iov++] = (struct iovec){(uint8_t *)&frame->header + skip, head - skip};
        batch->bytes += head - skip;
    }
    uint64_t from = skip > head ? skip - head : 0;
    uint64_t left = frame->bytes - from;
    uint64_t room = batch->limit > batch->bytes ? batch->limit - batch->bytes : 0;
    uint64_t take = left < room ? left : room;
    if (take) {
        batch->iov[batch->n_iov++] = (struct iovec){(uint8_t *)frame->payload + from, take};
        batch->bytes += take;
    }
    return take == left;
}

static bool gather_urgent(struct tn_link *link, struct batch *batch)
{
    for (struct tn_list *node = link->urgent.next; node != &link->urgent; node = node->next) {
        struct tn_frame *frame = tn_container(node, struct tn_frame, node);
        int fd = descriptor_of(frame);
        if (fd >= 0 && batch->n_frames)
            return false;
        prepare(frame);
        if (!add(batch, frame, 0))
            return false;
        batch->fd = fd;
        if (fd >= 0)
            return false;
    }
    return true;
}

static void gather_bulk(struct tn_link *link, struct batch *batch)
{
    struct tn_list *answer = link->answers.next, *write = link->writes.next;
    bool answers_turn = link->answers_turn;
    while (answer != &link->answers || write != &link->writes) {
        struct tn_list **next = &write;
        if (write == &link->writes || (answers_turn && answer != &link->answers))
            next = &answer;
        struct tn_frame *frame = tn_container(*next, struct tn_frame, node);
        if (next == &answer)
            tn_link_answer_ready(tn_container(frame, struct tn_answer, frame));
        if (!add(batch, frame, 0))
            return;
        answers_turn = next == &write;
        *next = (*next)->next;
    }
}

static void gather(struct tn_link *link, struct batch *batch, uint64_t limit)
{
    batch->n_iov = batch->n_frames = 0;
    batch->bytes = 0;
    batch->limit = limit;
    batch->fd = -1;
    if (link->current && !add(batch, link->current, link->current_sent))
        return;
    if (gather_urgent(link, batch))
        gather_bulk(link, batch);
}

static ssize_t send_batch(struct tn_link *link, struct batch *batch)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = batch->iov, .msg_iovlen = (size_t)batch->n_iov};
    if (batch->fd >= 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = control.room;
        message.msg_controllen = sizeof(control.room);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &batch->fd, sizeof(int));
    }
    ssize_t sent;
    do
        sent = sendmsg(link->watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent;
}

/* Its first bytes are out: it can no longer be taken back. */
static void begun(struct tn_link *link, struct tn_frame *frame)
{
    tn_list_remove(&frame->node);
    if (frame->owner == TN_OF_SIGNAL) {
        struct tn_signal *signal = tn_container(frame, struct tn_signal, frame);
        signal->owed -= signal->counts ? frame->header.length : signal->owed;
    } else if (frame->bytes) {
        link->answers_turn = frame->owner != TN_OF_ANSWER;
    }
}

static void done(struct tn_link *link, struct tn_frame *frame)
{
    switch (frame->owner) {
    case TN_OF_SIGNAL: {
        struct tn_signal *signal = tn_container(frame, struct tn_signal, frame);
        if (signal->owed) /* more came while it was partly sent */
            tn_link_signal(link, signal, 0);
        break;
    }
    case TN_OF_REQUEST:
        tn_link_request_sent(link, tn_container(frame, struct tn_request, frame));
        break;
    case TN_OF_ANSWER:
        tn_link_answer_sent(link, tn_container(frame, struct tn_answer, frame));
        break;
    case TN_OF_MESSAGE:
        tn_link_message_sent(link, tn_container(frame, struct tn_message, frame));
        break;
    }
}

static void consume(struct tn_link *link, struct batch *batch, uint64_t sent)
{
    for (int i = 0; i < batch->n_frames && sent; i++) {
        struct tn_frame *frame = batch->frames[i];
        bool resumed = frame == link->current;
        uint64_t skip = resumed ? link->current_sent : 0;
        uint64_t left = sizeof(frame->header) + frame->bytes - skip;
        if (!resumed)
            begun(link, frame);
        if (sent < left) {
            link->current = frame;
            link->current_sent = skip + sent;
            return;
        }
        sent -= left;
        if (resumed)
            link->current = NULL;
        done(link, frame);
    }
}

static void block(struct tn_link *link)
{
    link->blocked = true;
    link->blocked_since = tn_now();
    link->unsent_then = -1;
    atomic_fetch_add_explicit(&link->stalls, 1, memory_order_relaxed);
}

void tn_link_pump(struct tn_link *link, uint64_t budget)
{
    struct batch batch;
    link->more = false;
    while (!link->blocked && !link->send_error) {
        tn_link_pull(link);
        gather(link, &batch, budget < TN_LINK_COPY ? budget : TN_LINK_COPY);
        if (!batch.n_frames)
            return;
        ssize_t sent = send_batch(link, &batch);
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) {
            link->send_error =
                errno; /* what the peer sent before still counts: the receiver ends the link */
            return;
        }
        if (sent > 0)
            consume(link, &batch, (uint64_t)sent);
        if (sent < 0 || (uint64_t)sent < batch.bytes)
            block(link);
        if (sent > 0 && budget <= (uint64_t)sent) {
            link->more = true;
            return;
        }
        budget -= sent > 0 ? (uint64_t)sent : 0;
    }
}
