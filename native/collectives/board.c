/* Messages on boards. Each rank writes to its own sheet alone: a ring of messages for each of the
 * others, how far it has read theirs, and whether it sleeps. What others show is checked before it
 * is used: it may change at any time, and be anything.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/sys.h"
#include "transport/board.h"

#define SLOTS 96u
#define SPINS 200u /* looks before a thread sleeps, where every rank can have a processor */
#define NAP_NS 50000u

struct slot {
    uint32_t length;
    uint32_t reserved[3];
    uint8_t bytes[TN_BOARD_MESSAGE];
};

struct sheet {
    _Atomic uint32_t sleeping;
    uint32_t reserved[15];
    _Atomic uint32_t posted[TN_BOARD_RANKS]; /* to each rank, which may sleep on it */
    _Atomic uint32_t read[TN_BOARD_RANKS];   /* of what each has posted to this one */
    struct slot rings[][SLOTS];              /* one for each rank */
};

struct tn_board {
    struct sheet *own;
    uint32_t rank, ranks, turn;
    bool spins;
    struct {
        const struct sheet *sheet; /* NULL: not attached, or broken */
        uint32_t read, posted;     /* as the own sheet has them */
    } peers[TN_BOARD_RANKS];
};

uint64_t tn_board_bytes(uint32_t ranks)
{
    return sizeof(struct sheet) + ranks * sizeof(struct slot[SLOTS]);
}

int tn_board_open(void *own, uint32_t rank, uint32_t ranks, struct tn_board **out)
{
    if (ranks > TN_BOARD_RANKS || rank >= ranks || (uintptr_t)own % 64)
        return tn_fail(TN_INVALID, "a board is for %u ranks at most, in aligned memory",
                       TN_BOARD_RANKS);
    struct tn_board *board = calloc(1, sizeof(*board));
    if (!board)
        return tn_fail(TN_NOMEM, "no memory for a board");
    memset(own, 0, sizeof(struct sheet));
    board->own = own;
    board->rank = rank;
    board->ranks = ranks;
    board->spins = tn_sys_cpus() >= ranks;
    *out = board;
    return TN_OK;
}

int tn_board_attach(struct tn_board *board, uint32_t rank, const void *theirs)
{
    if (rank >= board->ranks || rank == board->rank || (uintptr_t)theirs % 64)
        return tn_fail(TN_INVALID, "rank %u has no board here", rank);
    board->peers[rank].sheet = theirs;
    return TN_OK;
}

/* What the peer says of its reading may be old, which makes the ring look fuller than it is. */
static bool post(struct tn_board *board, uint32_t rank, const void *bytes, uint32_t length)
{
    const struct sheet *sheet = board->peers[rank].sheet;
    uint32_t posted = board->peers[rank].posted;
    if (!sheet ||
        posted - atomic_load_explicit(&sheet->read[board->rank], memory_order_acquire) >= SLOTS)
        return false;
    struct slot *slot = &board->own->rings[rank][posted % SLOTS];
    slot->length = length;
    memcpy(slot->bytes, bytes, length);
    /* In one order with the flag: whoever set it before sees this, or is seen. */
    board->peers[rank].posted = posted + 1;
    atomic_store(&board->own->posted[rank], posted + 1);
    if (atomic_load(&sheet->sleeping))
        tn_futex_wake_shared(&board->own->posted[rank]);
    return true;
}

int tn_board_post(struct tn_board *board, uint64_t to, const void *bytes, uint32_t length,
                  uint64_t *missed)
{
    if (length > TN_BOARD_MESSAGE)
        return tn_fail(TN_INVALID, "a message has %u bytes at most", TN_BOARD_MESSAGE);
    if (board->ranks < TN_BOARD_RANKS && to >> board->ranks)
        return tn_fail(TN_INVALID, "there are %u ranks", board->ranks);
    *missed = 0;
    for (uint32_t rank = 0; rank < board->ranks; rank++)
        if (to >> rank & 1 && !post(board, rank, bytes, length))
            *missed |= UINT64_C(1) << rank;
    return TN_OK;
}

static uint32_t unread(const struct tn_board *board, uint32_t rank)
{
    const struct sheet *sheet = board->peers[rank].sheet;
    return sheet ? atomic_load(&sheet->posted[board->rank]) - board->peers[rank].read : 0;
}

static void read_next(struct tn_board *board, uint32_t rank, void *bytes, uint32_t *length)
{
    const struct slot *slot =
        &board->peers[rank].sheet->rings[board->rank][board->peers[rank].read % SLOTS];
    uint32_t claimed = *(volatile const uint32_t *)&slot->length;
    *length = claimed < TN_BOARD_MESSAGE ? claimed : TN_BOARD_MESSAGE;
    memcpy(bytes, slot->bytes, *length);
    uint32_t read = ++board->peers[rank].read;
    atomic_store_explicit(&board->own->read[rank], read, memory_order_release);
}

int tn_board_take(struct tn_board *board, uint32_t *rank, void *bytes, uint32_t *length)
{
    for (uint32_t i = 0; i < board->ranks; i++) {
        *rank = (board->turn + i) % board->ranks;
        uint32_t left = unread(board, *rank);
        if (left > SLOTS) {
            board->peers[*rank].sheet = NULL;
            return tn_fail(TN_INVALID, "the board of rank %u has messages that it cannot hold",
                           *rank);
        }
        if (left) {
            read_next(board, *rank, bytes, length);
            board->turn = *rank + 1;
            return TN_OK;
        }
    }
    return TN_AGAIN;
}

/* The words to sleep on, and what they were; false where one is not what has been read. */
static bool all_read(const struct tn_board *board, struct tn_futex_word *words, uint32_t *count)
{
    *count = 0;
    for (uint32_t rank = 0; rank < board->ranks; rank++) {
        const struct sheet *sheet = board->peers[rank].sheet;
        if (!sheet)
            continue;
        if (unread(board, rank))
            return false;
        words[(*count)++] = (struct tn_futex_word){.word = &sheet->posted[board->rank],
                                                   .expected = board->peers[rank].read};
    }
    return true;
}

int tn_board_wait(struct tn_board *board, uint64_t timeout_ns)
{
    struct tn_futex_word words[TN_BOARD_RANKS];
    uint32_t count, spins = board->spins ? SPINS : 0;
    uint64_t end = tn_now() + timeout_ns;
    do {
        if (!all_read(board, words, &count))
            return TN_OK;
        tn_sys_relax();
    } while (spins--);
    atomic_store(&board->own->sleeping, 1);
    bool read = all_read(board, words, &count);
    for (uint64_t now; read && (now = tn_now()) < end; read = all_read(board, words, &count)) {
        int slept = tn_futex_wait_any(words, count, end);
        if (slept == TN_PENDING)
            break;
        if (slept == TN_UNAVAILABLE) /* before Linux 5.16, or under a tool */
            tn_sys_nap(end - now < NAP_NS ? end - now : NAP_NS);
    }
    atomic_store(&board->own->sleeping, 0);
    return read ? TN_PENDING : TN_OK;
}

void tn_board_close(struct tn_board *board)
{
    free(board);
}
