/* Everything that is not a read or a write: control messages, what the links of other providers
 * tell each other, notifications and their credits, descriptors of segments. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "providers/tcp/state.h"

static struct tn_message *message_new(enum tn_frame_type type, size_t bytes)
{
    struct tn_message *message = malloc(sizeof(*message) + bytes);
    if (!message)
        return NULL;
    tn_frame_init(&message->frame, TN_OF_MESSAGE, type);
    message->transfer = NULL;
    message->fd = -1;
    return message;
}

static void message_free(struct tn_message *message)
{
    if (message->fd >= 0)
        close(message->fd);
    free(message);
}

static void set_payload(struct tn_message *message, const void *payload, uint64_t bytes)
{
    message->frame.payload = payload;
    message->frame.bytes = message->frame.header.length = bytes;
}

/* True if the link lives and the message was taken. */
static bool leave_at_door(struct tn_link *link, struct tn_message *message)
{
    pthread_mutex_lock(&link->door_lock);
    bool open = !link->shut;
    if (open) {
        tn_list_append(&link->new_messages, &message->frame.node);
        atomic_fetch_add(&link->arrivals, 1);
    }
    pthread_mutex_unlock(&link->door_lock);
    if (open)
        tn_link_come_in(link);
    return open;
}

/* ---- control --------------------------------------------------------------------------------- */

/* Counts a control message in: TN_OK, or why there is no room. */
static int reserve_control(struct tn_link *link, size_t length)
{
    pthread_mutex_lock(&link->door_lock);
    int status = link->shut ? TN_PEER_LOST : TN_OK;
    bool full =
        link->controls >= TN_LINK_CONTROLS || link->control_bytes + length > TN_LINK_CONTROL_BYTES;
    if (status == TN_OK && full)
        status = TN_AGAIN;
    if (status == TN_OK) {
        link->controls++;
        link->control_bytes += length;
    }
    pthread_mutex_unlock(&link->door_lock);
    if (status == TN_PEER_LOST)
        return tn_fail(TN_PEER_LOST, "the connection to the peer has ended");
    return status == TN_OK
               ? TN_OK
               : tn_fail(TN_AGAIN, "too many control messages to this peer are still unsent");
}

static void unreserve_control(struct tn_link *link, size_t length)
{
    pthread_mutex_lock(&link->door_lock);
    link->controls--;
    link->control_bytes -= length;
    pthread_mutex_unlock(&link->door_lock);
}

static int send_counted(struct tn_link *link, enum tn_frame_type type, uint64_t region,
                        const void *bytes, size_t length)
{
    int status = reserve_control(link, length);
    if (status != TN_OK)
        return status;
    struct tn_message *message = message_new(type, length);
    if (!message) {
        unreserve_control(link, length);
        return tn_fail(TN_NOMEM, "no memory for a message of %zu bytes", length);
    }
    if (length)
        memcpy(message->bytes, bytes, length);
    message->frame.header.region = region;
    set_payload(message, message->bytes, length);
    if (leave_at_door(link, message))
        return TN_OK;
    message_free(message);
    return tn_fail(TN_PEER_LOST, "the connection to the peer has ended");
}

int tn_link_send_control(struct tn_link *link, const void *bytes, size_t length)
{
    if (length > TN_MAX_CONTROL)
        return tn_fail(TN_INVALID, "a control message of %zu bytes exceeds the limit of %d", length,
                       TN_MAX_CONTROL);
    return send_counted(link, TN_FRAME_CONTROL, 0, bytes, length);
}

int tn_link_send_link(struct tn_link *link, uint32_t provider, const void *bytes, size_t length)
{
    if (!length || length > TN_MAX_LINK_MESSAGE)
        return tn_fail(TN_INVALID, "a message of %zu bytes between links (1 to %d)", length,
                       TN_MAX_LINK_MESSAGE);
    return send_counted(link, TN_FRAME_LINK, provider, bytes, length);
}

/* ---- notifications --------------------------------------------------------------------------- */

static void fail_notify(struct tn_transfer *transfer, int status, const char *text)
{
    tn_transfer_fail(transfer, status, 0, 0, "%s", text);
    tn_notify_done(transfer);
}

void tn_link_send_notify(struct tn_link *link, struct tn_transfer *transfer)
{
    struct tn_message *message = message_new(TN_FRAME_NOTIFY, 0);
    if (!message) {
        fail_notify(transfer, TN_NOMEM, "no memory for a notification");
        return;
    }
    message->transfer = transfer;
    message->frame.header.region = transfer->remotes[transfer->notify_remote].number;
    set_payload(message, transfer->notify, transfer->notify_length);
    if (leave_at_door(link, message))
        return;
    message_free(message);
    fail_notify(transfer, TN_PEER_LOST,
                "the connection to the peer ended before the notification was sent");
}

void tn_link_notify(void *link, struct tn_transfer *transfer)
{
    tn_link_send_notify(link, transfer);
}

/* The stream keeps the order, so acknowledgements merely count: one frame stands for many, and
 * they never pile up. */
bool tn_link_take_notify_done(struct tn_link *link, const struct tn_header *header)
{
    for (uint64_t i = 0; i < header->length; i++) {
        struct tn_list *node = tn_list_take_first(&link->notifying);
        if (!node)
            return false;
        struct tn_message *message = tn_container(node, struct tn_message, frame.node);
        struct tn_transfer *transfer = message->transfer;
        message_free(message);
        tn_notify_done(transfer);
    }
    return true;
}

void tn_link_send_credit(struct tn_link *link, uint32_t credits)
{
    pthread_mutex_lock(&link->door_lock);
    link->new_credits += credits;
    atomic_fetch_add(&link->arrivals, 1);
    pthread_mutex_unlock(&link->door_lock);
    tn_link_come_in(link);
}

/* ---- segments -------------------------------------------------------------------------------- */

void tn_link_want_segment(struct tn_link *link, uint32_t number)
{
    struct tn_message *message = message_new(TN_FRAME_SEGMENT, 0);
    if (message)
        message->frame.header.region = number;
    if (message && leave_at_door(link, message))
        return;
    free(message);
    link->host->segment(link->host, link->peer, number, -1);
}

bool tn_link_serve_segment(struct tn_link *link, const struct tn_header *header)
{
    if (link->segments_busy == TN_FRAME_MAX_SEGMENTS)
        return false;
    struct tn_message *message = message_new(TN_FRAME_SEGMENT_FD, 0);
    if (!message) {
        tn_link_break(link, TN_NOMEM, "no memory for serving the peer");
        return true;
    }
    int fd = TN_UNAVAILABLE;
    if (link->is_unix && link->segments)
        fd = tn_segments_export(link->segments, (uint32_t)header->region);
    message->frame.header.id = header->id;
    message->frame.header.region = header->region;
    message->frame.header.status = (int16_t)(fd < 0 ? fd : TN_OK);
    message->fd = fd < 0 ? -1 : fd;
    link->segments_busy++;
    tn_list_append(&link->urgent, &message->frame.node);
    return true;
}

static void ask(struct tn_link *link, struct tn_message *message)
{
    if (link->asked == TN_FRAME_MAX_SEGMENTS) {
        tn_list_append(&link->to_ask, &message->frame.node);
        return;
    }
    link->asked++;
    message->frame.header.id = ++link->last_segment_id;
    tn_list_append(&link->urgent, &message->frame.node);
}

bool tn_link_take_segment(struct tn_link *link, const struct tn_header *header)
{
    int fd = -1;
    if (header->status == TN_OK) {
        fd = link->came_fd;
        link->came_fd = -1;
        if (fd < 0 && !link->lost_fd)
            return false;
        link->lost_fd = false;
    }
    struct tn_message *asked = tn_container(link->asking.next, struct tn_message, frame.node);
    if (tn_list_empty(&link->asking) || asked->frame.header.id != header->id ||
        asked->frame.header.region != header->region) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    tn_list_remove(&asked->frame.node);
    message_free(asked);
    link->asked--;
    struct tn_list *next = tn_list_take_first(&link->to_ask);
    if (next)
        ask(link, tn_container(next, struct tn_message, frame.node));
    link->host->segment(link->host, link->peer, (uint32_t)header->region, fd);
    return true;
}

/* ---- all of them ----------------------------------------------------------------------------- */

void tn_link_queue_message(struct tn_link *link, struct tn_message *message)
{
    if (message->frame.header.type == TN_FRAME_SEGMENT)
        ask(link, message);
    else
        tn_list_append(&link->urgent, &message->frame.node);
}

void tn_link_message_sent(struct tn_link *link, struct tn_message *message)
{
    switch (message->frame.header.type) {
    case TN_FRAME_NOTIFY:
        tn_list_append(&link->notifying, &message->frame.node);
        return;
    case TN_FRAME_SEGMENT:
        tn_list_append(&link->asking, &message->frame.node);
        return;
    case TN_FRAME_SEGMENT_FD:
        link->segments_busy--;
        break;
    case TN_FRAME_CONTROL:
    case TN_FRAME_LINK:
        unreserve_control(link, message->frame.bytes);
        break;
    }
    message_free(message);
}

bool tn_link_take_message(struct tn_link *link, const struct tn_header *header,
                          const uint8_t *payload)
{
    struct tn_host *host = link->host;
    if (header->type == TN_FRAME_READ_ROWS || header->type == TN_FRAME_WRITE_ROWS)
        return tn_link_serve_rows(link, header, payload);
    if (header->type == TN_FRAME_CONTROL) {
        host->control(host, link->peer, payload, header->length);
        return true;
    }
    if (header->type == TN_FRAME_LINK) {
        host->linked(host, link->peer, header->region, payload, (size_t)header->length);
        return true;
    }
    int status =
        host->notified(host, link->peer, header->region, payload, (uint32_t)header->length);
    if (status < 0)
        tn_link_break(link, status, "the peer's notification was not taken: %s", tn_last_error());
    else
        tn_link_signal(link, &link->notify_done, 1);
    return status >= 0;
}

/* Takes those out of `list` that are messages. */
static void fail_list(struct tn_list *list, int status, const char *text)
{
    struct tn_list *next;
    for (struct tn_list *node = list->next; node != list; node = next) {
        next = node->next;
        struct tn_frame *frame = tn_container(node, struct tn_frame, node);
        if (frame->owner != TN_OF_MESSAGE)
            continue;
        tn_list_remove(node);
        struct tn_message *message = tn_container(frame, struct tn_message, frame);
        if (message->transfer)
            fail_notify(message->transfer, status, text);
        message_free(message);
    }
}

void tn_link_fail_messages(struct tn_link *link, int status, const char *text)
{
    if (link->current && link->current->owner == TN_OF_MESSAGE)
        tn_list_append(&link->urgent, &link->current->node);
    link->current = NULL;
    fail_list(&link->urgent, status, text);
    fail_list(&link->notifying, status, text);
    fail_list(&link->asking, status, text);
    fail_list(&link->to_ask, status, text);
}
