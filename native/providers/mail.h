/* The messages of a link and its counterpart: what came waits for the link's tick, and what cannot
 * be sent at once is sent then. */
#ifndef TN_PROVIDERS_MAIL_H
#define TN_PROVIDERS_MAIL_H

#include <pthread.h>

#include "providers/provider.h"

struct tn_packet {
    struct tn_list node;
    size_t length;
    _Alignas(8) uint8_t bytes[];
};

struct tn_mail {
    struct tn_host *host;
    struct tn_peer *peer; /* once the link is attached */
    uint32_t provider;
    const char *name;     /* of the link, for errors */
    pthread_mutex_t lock; /* a leaf of the link's */
    struct tn_list inbox, outbox;
    uint32_t unread;
    bool closed;
};

void tn_mail_init(struct tn_mail *mail, struct tn_host *host, uint32_t provider, const char *name);
void tn_mail_fini(struct tn_mail *mail);
void tn_mail_close(struct tn_mail *mail); /* nothing is sent any more */
/* Sends it, now or by tn_mail_flush; in order, and never lost while the peer is up. */
void tn_mail_post(struct tn_mail *mail, const void *bytes, size_t length);
bool tn_mail_flush(struct tn_mail *mail); /* whether something is left: try again soon */
#define TN_MAIL_AGAIN_NS 1000000u
/* In a link's `message`: keeps it and asks for a tick. A peer whose message does not stand `check`,
 * or that sends too many, is put down. */
void tn_mail_receive(struct tn_mail *mail, const void *bytes, size_t length,
                     bool (*check)(const void *bytes, size_t length));
struct tn_packet *tn_mail_take(struct tn_mail *mail); /* the caller's, to be freed; NULL: none */

#endif
