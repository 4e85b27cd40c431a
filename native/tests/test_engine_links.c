/* What the engine does for links beside handing them transfers: messages, ticks, and a second
 * choice when a link cannot go on. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "providers/provider.h"
#include "providers/transfer.h"
#include "tests/check.h"
#include "tests/engine_pair.h"

/* A link that takes pieces, gives them back and passes the transfer on. */
struct quitter {
    struct tn_host *host;
    struct tn_peer *peer;
    int accepts;  /* what it says */
    int fallback; /* what it passes on with */
    int moves;    /* how often it carries what it is given after all */
    _Atomic int starts, ticks, messages;
    _Atomic uint64_t period;
    char got[64];
};

static int quitter_accepts(void *link, const struct tn_transfer *transfer, char *why,
                           size_t capacity)
{
    (void)transfer;
    snprintf(why, capacity, "it is tired");
    return ((struct quitter *)link)->accepts;
}

static void quitter_start(void *link, struct tn_transfer *transfer)
{
    struct quitter *quitter = link;
    struct tn_piece pieces[3];
    tn_transfer_set_path(transfer, "quitter");
    int count = tn_transfer_next(transfer, pieces, 3, 16, UINT64_MAX);
    CHECK(count > 0);
    if (atomic_fetch_add(&quitter->starts, 1) >= quitter->moves) {
        tn_transfer_return(transfer, pieces, (uint64_t)count);
        quitter->host->rechoose(quitter->host, transfer, quitter->fallback, "it gave up");
        return;
    }
    do
        tn_piece_done(transfer, (uint64_t)count);
    while ((count = tn_transfer_next(transfer, pieces, 3, 16, UINT64_MAX)));
}

static void quitter_message(void *link, const void *bytes, size_t length)
{
    struct quitter *quitter = link;
    CHECK(length < sizeof(quitter->got));
    memcpy(quitter->got, bytes, length);
    atomic_fetch_add(&quitter->messages, 1);
}

static uint64_t quitter_tick(void *link, uint64_t now)
{
    struct quitter *quitter = link;
    uint64_t period = atomic_load(&quitter->period);
    atomic_fetch_add(&quitter->ticks, 1);
    return period ? now + period : UINT64_MAX;
}

static void quitter_close(void *link, int status, const char *text)
{
    (void)link, (void)status, (void)text;
}

static void quitter_free(void *link)
{
    (void)link;
}

static const struct tn_link_ops quitter_ops = {.abi = TN_PROVIDER_ABI,
                                               .name = "quitter",
                                               .accepts = quitter_accepts,
                                               .start = quitter_start,
                                               .message = quitter_message,
                                               .tick = quitter_tick,
                                               .close = quitter_close,
                                               .free = quitter_free};

static void open_quitters(struct side *a, struct side *b, struct quitter *here,
                          struct quitter *there)
{
    int fds[2];
    pair_open_side(a, 1, 4096, 4);
    pair_open_side(b, 2, 4096, 4);
    pair_open_peer(a, 2);
    pair_open_peer(b, 1);
    CHECK(tn_peer_attach(a->peer, TN_PROVIDER_SHM, &quitter_ops, here) == TN_OK);
    CHECK(tn_peer_attach(b->peer, TN_PROVIDER_SHM, &quitter_ops, there) == TN_OK);
    here->host = tn_engine_host(a->engine);
    here->peer = a->peer;
    there->host = tn_engine_host(b->engine);
    there->peer = b->peer;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    CHECK(tn_peer_up(a->peer, fds[0], TN_PROVIDER_TCP, 4) == TN_OK);
    CHECK(tn_peer_up(b->peer, fds[1], TN_PROVIDER_TCP, 4) == TN_OK);
}

static struct tn_transfer *start(struct side *a, struct side *b)
{
    memset(a->memory, 7, 64);
    memset(b->memory, 0, 64);
    return pair_start(a, &b->remote, TN_OP_WRITE, a->memory, 64, NULL, TN_NO_DEADLINE);
}

static void expect(struct tn_transfer *transfer, int status, const char *path, const char *text)
{
    struct tn_result result;
    tn_transfer_wait(transfer, UINT64_C(20000000000));
    CHECK(tn_transfer_wait_quiet(transfer, UINT64_C(20000000000)) == 1);
    tn_transfer_result(transfer, &result);
    CHECK_TEXT(result.status == status, result.text);
    CHECK_TEXT(strcmp(result.path, path) == 0, result.path);
    CHECK_TEXT(strstr(result.text, text), result.text);
    tn_transfer_release(transfer);
}

static void test_another_link_takes_over(void)
{
    struct side a = {0}, b = {0};
    struct quitter here = {.fallback = TN_VERBS}, there = {0};
    open_quitters(&a, &b, &here, &there);
    for (int i = 1; i < 100; i++) {
        expect(start(&a, &b), TN_OK, "stream", "");
        CHECK(memcmp(a.memory, b.memory, 64) == 0 && here.starts == i);
    }
    pair_close_side(&a);
    pair_close_side(&b);
}

static struct tn_transfer *start_without_stream(struct side *a, struct side *b)
{
    struct tn_range range = {
        .local_address = (uintptr_t)a->memory, .length = 64, .rows = 1, .remote = 0};
    struct tn_batch batch = {.op = TN_OP_WRITE,
                             .providers = 1u << TN_PROVIDER_SHM,
                             .remotes = &b->remote,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .deadline_ns = TN_NO_DEADLINE};
    struct tn_transfer *transfer;
    CHECK(tn_submit(a->peer, &batch, &transfer) == TN_OK);
    return transfer;
}

static void test_nobody_takes_over(void)
{
    struct side a = {0}, b = {0};
    struct quitter here = {.fallback = TN_VERBS}, there = {0};
    open_quitters(&a, &b, &here, &there);
    expect(start_without_stream(&a, &b), TN_VERBS, "quitter", "it gave up");
    here.fallback = TN_AGAIN; /* it gets it back, and then carries it */
    here.moves = 3;
    atomic_store(&here.starts, 2);
    here.moves = 3;
    expect(start_without_stream(&a, &b), TN_OK, "quitter", "");
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_a_reluctant_link_is_the_last_choice(void)
{
    struct side a = {0}, b = {0};
    struct quitter here = {.accepts = TN_AGAIN, .moves = 1000}, there = {0};
    open_quitters(&a, &b, &here, &there);
    expect(start(&a, &b), TN_OK, "stream", "");
    CHECK(here.starts == 0);
    expect(start_without_stream(&a, &b), TN_OK, "quitter", "");
    here.accepts = TN_NO_PATH;
    expect(start_without_stream(&a, &b), TN_NO_PATH, "", "it is tired");
    pair_close_side(&a);
    pair_close_side(&b);
}

static void wait_for(_Atomic int *counter, int least)
{
    for (uint64_t end = tn_now() + LONG; tn_now() < end && atomic_load(counter) < least;)
        usleep(1000);
    CHECK(atomic_load(counter) >= least);
}

static void test_messages(void)
{
    struct side a = {0}, b = {0};
    struct quitter here = {0}, there = {0};
    char large[TN_MAX_LINK_MESSAGE + 1] = {0};
    open_quitters(&a, &b, &here, &there);
    CHECK(here.host->send_link(here.host, a.peer, TN_MAX_PROVIDERS + 5, "x", 1) == TN_OK);
    CHECK(here.host->send_link(here.host, a.peer, TN_PROVIDER_VERBS, "y", 1) == TN_OK);
    CHECK(here.host->send_link(here.host, a.peer, TN_PROVIDER_SHM, "hello", 6) == TN_OK);
    CHECK(here.host->send_link(here.host, a.peer, TN_PROVIDER_SHM, large, sizeof(large)) ==
          TN_INVALID);
    wait_for(&there.messages, 1);
    CHECK(strcmp(there.got, "hello") == 0 && there.messages == 1); /* unknown ones are dropped */
    CHECK(tn_peer_state(b.peer) == TN_OK);
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_ticks(void)
{
    struct side a = {0}, b = {0};
    struct quitter here = {0}, there = {0};
    open_quitters(&a, &b, &here, &there);
    wait_for(&here.ticks, 1); /* the first comes with the peer */
    int before = here.ticks;
    here.host->tick_soon(here.host, a.peer);
    wait_for(&here.ticks, before + 1);
    atomic_store(&here.period, 1000000);
    here.host->tick_soon(here.host, a.peer);
    wait_for(&here.ticks, before + 10); /* on its own from now on */
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_a_provider_changes(void)
{
    struct side a = {0};
    struct tn_event event;
    static char buffer[TN_MAX_CONTROL];
    pair_open_side(&a, 1, 4096, 4);
    pair_open_peer(&a, 2);
    struct tn_host *host = tn_engine_host(a.engine);
    host->provider_changed(host, TN_PROVIDER_VERBS, "its GID is gone");
    CHECK(pair_next_event(a.engine, &event, buffer) == 1);
    CHECK(event.kind == TN_EVENT_PROVIDER && event.cookie == TN_PROVIDER_VERBS);
    CHECK(strcmp(event.text, "its GID is gone") == 0);
    pair_close_side(&a);
}

/* Two links of one peer: the first passes on what it is given while it is still starting it, the
 * second takes its time. */
static struct {
    struct tn_host *host;
    _Atomic bool second_begins, may_return, second_has_returned;
    _Atomic int cancels, early;
} handover;

static void await(_Atomic bool *what)
{
    uint64_t until = tn_now() + LONG;
    while (!atomic_load(what)) {
        CHECK_TEXT(tn_now() < until, "in time");
        usleep(100);
    }
}

static void first_start(void *link, struct tn_transfer *transfer)
{
    (void)link;
    handover.host->rechoose(handover.host, transfer, TN_VERBS, "not me");
    await(&handover.second_begins);
}

static void second_start(void *link, struct tn_transfer *transfer)
{
    (void)link;
    tn_transfer_set_path(transfer, "second");
    atomic_store(&handover.second_begins, true);
    await(&handover.may_return);
    atomic_store(&handover.second_has_returned, true);
}

static void second_cancel(void *link, struct tn_transfer *transfer)
{
    (void)link, (void)transfer;
    atomic_fetch_add(&handover.early, !atomic_load(&handover.second_has_returned));
    atomic_fetch_add(&handover.cancels, 1);
}

/* A link hears of a cancellation only once its own start has returned, also when the start of the
 * link before it returns meanwhile. */
static void test_cancelled_while_another_link_starts(void)
{
    struct side a = {0}, b = {0};
    struct quitter unused = {0}, there = {0};
    struct tn_link_ops first = quitter_ops, second = quitter_ops;
    first.accepts = second.accepts = quitter_accepts;
    first.start = first_start;
    second.start = second_start;
    second.cancel = second_cancel;
    int fds[2];
    pair_open_side(&a, 1, 4096, 4);
    pair_open_side(&b, 2, 4096, 4);
    pair_open_peer(&a, 2);
    pair_open_peer(&b, 1);
    handover.host = tn_engine_host(a.engine);
    CHECK(tn_peer_attach(a.peer, TN_PROVIDER_SHM, &first, &unused) == TN_OK);
    CHECK(tn_peer_attach(a.peer, TN_PROVIDER_SHM, &second, &there) == TN_OK);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    CHECK(tn_peer_up(a.peer, fds[0], TN_PROVIDER_TCP, 4) == TN_OK);
    CHECK(tn_peer_up(b.peer, fds[1], TN_PROVIDER_TCP, 4) == TN_OK);
    struct tn_transfer *transfer = start(&a, &b);
    tn_transfer_cancel(transfer);
    CHECK(!atomic_load(&handover.second_has_returned));
    atomic_store(&handover.may_return, true);
    expect(transfer, TN_CANCELLED, "second", "");
    CHECK(atomic_load(&handover.early) == 0 && atomic_load(&handover.cancels) == 1);
    pair_close_side(&a);
    pair_close_side(&b);
}

int main(void)
{
    test_another_link_takes_over();
    test_nobody_takes_over();
    test_a_reluctant_link_is_the_last_choice();
    test_messages();
    test_ticks();
    test_a_provider_changes();
    test_cancelled_while_another_link_starts();
    return 0;
}
