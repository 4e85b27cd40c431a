/* Streams of GPUs that wait for transfers: each waits for a word in pinned memory, which is written
 * when its transfer is quiet. No host function blocks in the driver's threads: those run one after
 * another, and one that waits for a transfer could keep up the very work that the transfer waits
 * for. */
#include <stdlib.h>

#include "engine/engine.h"
#include "gpu/gpu.h"

#define PAGE_BYTES 4096u
#define WORD_BYTES 64u /* none shares a cache line with another */

struct tn_hold {
    struct tn_list node;    /* in holds.busy or holds.idle */
    struct tn_hold *next;   /* of the same transfer */
    _Atomic uint32_t *word; /* 1: go on */
    void *event;            /* recorded behind the wait: the word is free again once it is over */
    int32_t device;
};

struct page {
    struct page *next;
    void *memory;
};

void tn_holds_init(struct tn_holds *holds)
{
    pthread_mutex_init(&holds->lock, NULL);
    tn_list_init(&holds->busy);
    tn_list_init(&holds->idle);
}

static void go_on(struct tn_hold *hold)
{
    while (hold) {
        struct tn_hold *next = hold->next;
        atomic_store_explicit(hold->word, 1, memory_order_release);
        hold = next;
    }
}

static bool is_over(const struct tn_hold *hold)
{
    return tn_gpu_event_query(hold->device, hold->event) == TN_OK;
}

static void free_hold(struct tn_hold *hold)
{
    if (hold->event)
        tn_gpu_event_close(hold->device, hold->event);
    free(hold);
}

/* Memory that a stream still looks at is better lost than given to somebody else. */
void tn_holds_fini(struct tn_holds *holds)
{
    struct tn_list *node;
    bool all_over = true;
    for (node = holds->busy.next; node != &holds->busy; node = node->next) {
        struct tn_hold *hold = tn_container(node, struct tn_hold, node);
        atomic_store(hold->word, 1);
        all_over = all_over && is_over(hold);
    }
    while (all_over && (node = tn_list_take_first(&holds->busy)))
        free_hold(tn_container(node, struct tn_hold, node));
    while ((node = tn_list_take_first(&holds->idle)))
        free_hold(tn_container(node, struct tn_hold, node));
    while (all_over && holds->pages) {
        struct page *page = holds->pages;
        holds->pages = page->next;
        tn_gpu_pinned_free(page->memory);
        free(page);
    }
    pthread_mutex_destroy(&holds->lock);
}

/* ---- words; called with the lock held */
static int add_page(struct tn_holds *holds)
{
    struct page *page = calloc(1, sizeof(*page));
    if (!page)
        return tn_fail(TN_NOMEM, "no memory for words that streams wait for");
    int status = tn_gpu_pinned_alloc(PAGE_BYTES, &page->memory);
    if (status != TN_OK) {
        free(page);
        return status;
    }
    page->next = holds->pages;
    holds->pages = page;
    holds->next_word = 0;
    return TN_OK;
}

static int make(struct tn_holds *holds, int device, struct tn_hold **out)
{
    int status = TN_OK;
    if (!holds->pages || holds->next_word == PAGE_BYTES)
        status = add_page(holds);
    struct tn_hold *hold = status == TN_OK ? calloc(1, sizeof(*hold)) : NULL;
    if (!hold)
        return status != TN_OK ? status : tn_fail(TN_NOMEM, "no memory to hold a stream");
    tn_list_init(&hold->node);
    hold->device = device;
    status = tn_gpu_event_open(device, &hold->event);
    if (status != TN_OK) {
        free(hold);
        return status;
    }
    struct page *page = holds->pages;
    hold->word = (void *)((char *)page->memory + holds->next_word);
    holds->next_word += WORD_BYTES;
    *out = hold;
    return TN_OK;
}

static struct tn_hold *find_idle(struct tn_holds *holds, int device)
{
    struct tn_list *next;
    for (struct tn_list *node = holds->busy.next; node != &holds->busy; node = next) {
        struct tn_hold *hold = tn_container(node, struct tn_hold, node);
        next = node->next;
        if (!atomic_load(hold->word) || !is_over(hold))
            continue;
        tn_list_remove(node);
        tn_list_append(&holds->idle, node);
    }
    for (struct tn_list *node = holds->idle.next; node != &holds->idle; node = node->next) {
        struct tn_hold *hold = tn_container(node, struct tn_hold, node);
        if (hold->device == device) {
            tn_list_remove(node);
            return hold;
        }
    }
    return NULL;
}

/* The stream waits for the word from here on; the event behind that tells when it has gone on.
 * `*lost`: nothing will tell, and the word must never be used again. */
static int put_on(struct tn_hold *hold, void *stream, bool *lost)
{
    atomic_store(hold->word, 0);
    hold->next = NULL;
    int status = tn_gpu_stream_wait_word(hold->device, stream, (uint64_t)(uintptr_t)hold->word, 1);
    if (status != TN_OK)
        return status;
    status = tn_gpu_event_record(hold->device, hold->event, stream);
    *lost = status != TN_OK;
    if (*lost)
        atomic_store(hold->word, 1);
    return status;
}

static int take(struct tn_holds *holds, int device, void *stream, struct tn_hold **out)
{
    pthread_mutex_lock(&holds->lock);
    struct tn_hold *hold = find_idle(holds, device);
    int status = hold ? TN_OK : make(holds, device, &hold);
    if (status == TN_OK) {
        bool lost = false;
        status = put_on(hold, stream, &lost);
        if (!lost)
            tn_list_append(status == TN_OK ? &holds->busy : &holds->idle, &hold->node);
    }
    pthread_mutex_unlock(&holds->lock);
    *out = hold;
    return status;
}

int tn_transfer_hold_stream(struct tn_transfer *transfer, int device, uint64_t stream)
{
    struct tn_engine *engine = (struct tn_engine *)transfer->host;
    struct tn_hold *hold;
    if (tn_transfer_is_quiet(transfer))
        return TN_OK;
    int status = take(&engine->holds, device, (void *)(uintptr_t)stream, &hold);
    if (status != TN_OK)
        return status;
    pthread_mutex_lock(&transfer->lock);
    bool quiet = tn_transfer_is_quiet(transfer);
    if (!quiet) {
        hold->next = transfer->holds;
        transfer->holds = hold;
    }
    pthread_mutex_unlock(&transfer->lock);
    if (quiet)
        go_on(hold);
    return TN_OK;
}

/* Called with the transfer's lock held, once it is quiet. */
void tn_holds_release(struct tn_transfer *transfer)
{
    struct tn_hold *first = transfer->holds;
    transfer->holds = NULL;
    go_on(first);
}
