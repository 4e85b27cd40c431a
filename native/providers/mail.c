#include "providers/mail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_UNREAD 8192 /* messages that came and were not looked at */

void tn_mail_init(struct tn_mail *mail, struct tn_host *host, uint32_t provider, const char *name)
{
    *mail = (struct tn_mail){.host = host, .provider = provider, .name = name};
    pthread_mutex_init(&mail->lock, NULL);
    tn_list_init(&mail->inbox);
    tn_list_init(&mail->outbox);
}

static void free_all(struct tn_list *packets)
{
    struct tn_list *node;
    while ((node = tn_list_take_first(packets)))
        free(tn_container(node, struct tn_packet, node));
}

void tn_mail_fini(struct tn_mail *mail)
{
    free_all(&mail->inbox);
    free_all(&mail->outbox);
    pthread_mutex_destroy(&mail->lock);
}

void tn_mail_close(struct tn_mail *mail)
{
    pthread_mutex_lock(&mail->lock);
    mail->closed = true;
    pthread_mutex_unlock(&mail->lock);
}

static struct tn_packet *copy(const void *bytes, size_t length)
{
    struct tn_packet *made = malloc(sizeof(*made) + length);
    if (!made)
        return NULL;
    made->length = length;
    memcpy(made->bytes, bytes, length);
    return made;
}

static int send_now(struct tn_mail *mail, const void *bytes, size_t length)
{
    return mail->host->send_link(mail->host, mail->peer, mail->provider, bytes, length);
}

/* Called with the lock held. False: there is no memory for it. */
static bool post(struct tn_mail *mail, const void *bytes, size_t length)
{
    if (mail->closed)
        return true;
    if (tn_list_empty(&mail->outbox) && send_now(mail, bytes, length) != TN_AGAIN)
        return true;
    struct tn_packet *later = copy(bytes, length);
    if (later)
        tn_list_append(&mail->outbox, &later->node);
    return later != NULL;
}

void tn_mail_post(struct tn_mail *mail, const void *bytes, size_t length)
{
    pthread_mutex_lock(&mail->lock);
    bool kept = post(mail, bytes, length);
    bool later = !tn_list_empty(&mail->outbox);
    pthread_mutex_unlock(&mail->lock);
    if (!kept) /* the other end would wait for it for ever */
        mail->host->peer_down(mail->host, mail->peer, TN_NOMEM, "no memory for a message");
    else if (later)
        mail->host->tick_soon(mail->host, mail->peer);
}

bool tn_mail_flush(struct tn_mail *mail)
{
    pthread_mutex_lock(&mail->lock);
    while (!tn_list_empty(&mail->outbox)) {
        struct tn_packet *first = tn_container(mail->outbox.next, struct tn_packet, node);
        if (send_now(mail, first->bytes, first->length) == TN_AGAIN)
            break;
        tn_list_remove(&first->node);
        free(first);
    }
    bool left = !tn_list_empty(&mail->outbox);
    pthread_mutex_unlock(&mail->lock);
    return left;
}

/* Keeps the packet, if it may; else says why not. */
static const char *keep(struct tn_mail *mail, struct tn_packet *came)
{
    pthread_mutex_lock(&mail->lock);
    bool room = mail->unread < MAX_UNREAD;
    if (room) {
        tn_list_append(&mail->inbox, &came->node);
        mail->unread++;
    }
    pthread_mutex_unlock(&mail->lock);
    return room ? NULL : "sends faster than it may";
}

void tn_mail_receive(struct tn_mail *mail, const void *bytes, size_t length,
                     bool (*check)(const void *bytes, size_t length))
{
    struct tn_packet *came = copy(bytes, length);
    const char *wrong = !came                         ? "sent what there is no memory for"
                        : !check(came->bytes, length) ? "sent what is no message"
                                                      : keep(mail, came);
    if (!wrong) {
        mail->host->tick_soon(mail->host, mail->peer);
        return;
    }
    char text[96];
    snprintf(text, sizeof(text), "the peer's %s link %s", mail->name, wrong);
    free(came);
    mail->host->peer_down(mail->host, mail->peer, TN_PROTOCOL, text);
}

struct tn_packet *tn_mail_take(struct tn_mail *mail)
{
    pthread_mutex_lock(&mail->lock);
    struct tn_list *node = tn_list_take_first(&mail->inbox);
    mail->unread -= node != NULL;
    pthread_mutex_unlock(&mail->lock);
    return node ? tn_container(node, struct tn_packet, node) : NULL;
}
