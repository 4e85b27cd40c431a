/* The cursor of a transfer: every byte is handed out exactly once, neighbours become one piece,
 * limits hold, failure stops. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "providers/transfer.h"

struct witness {
    struct tn_host host; /* first */
    int ended, quiet;
};

static void count_ended(struct tn_host *host, struct tn_transfer *transfer)
{
    (void)transfer;
    ((struct witness *)host)->ended++;
}

static void count_quiet(struct tn_host *host, struct tn_transfer *transfer)
{
    (void)transfer;
    ((struct witness *)host)->quiet++;
}

static struct tn_transfer *make(struct witness *witness, const struct tn_range *ranges,
                                uint64_t count)
{
    struct tn_transfer *transfer = calloc(1, sizeof(*transfer));
    *witness = (struct witness){.host = {.ended = count_ended, .quiet = count_quiet}};
    pthread_mutex_init(&transfer->lock, NULL);
    transfer->host = &witness->host;
    transfer->remotes = calloc(2, sizeof(*transfer->remotes));
    transfer->n_remotes = 2;
    transfer->ranges = malloc((size_t)count * sizeof(*ranges) + 1);
    memcpy(transfer->ranges, ranges, (size_t)count * sizeof(*ranges));
    transfer->n_ranges = count;
    transfer->status = TN_PENDING;
    transfer->outstanding = 1;
    transfer->references = 1;
    return transfer;
}

static void test_neighbours_become_one_piece(void)
{
    struct witness witness;
    struct tn_piece pieces[4];
    struct tn_range ranges[] = {
        {.local_address = 1000, .length = 10, .rows = 3, .local_stride = 10, .remote_stride = 10},
        {.local_address = 1030, .remote_offset = 30, .length = 5, .rows = 1},
        {.local_address = 1035,
         .remote_offset = 99,
         .length = 5,
         .rows = 1}, /* touches on one side only */
    };
    struct tn_transfer *transfer = make(&witness, ranges, 3);
    CHECK(tn_transfer_next(transfer, pieces, 4, 1000, 1000) == 2);
    CHECK(pieces[0].local == 1000 && pieces[0].remote_offset == 0 && pieces[0].length == 35);
    CHECK(pieces[1].local == 1035 && pieces[1].remote_offset == 99 && pieces[1].length == 5);
    CHECK(tn_transfer_next(transfer, pieces, 4, 1000, 1000) == 0);
    CHECK(witness.quiet == 0);
    tn_piece_done(transfer, 1);
    CHECK(witness.quiet == 0);
    tn_piece_done(transfer, 1);
    CHECK(witness.quiet == 1 && witness.ended == 0);
    tn_transfer_unreference(transfer);
}

static void test_a_call_keeps_to_one_remote(void)
{
    struct witness witness;
    struct tn_piece pieces[4];
    struct tn_range ranges[] = {
        {.local_address = 100, .length = 8, .rows = 1},
        {.local_address = 108, .remote_offset = 8, .length = 8, .rows = 1, .remote = 1}};
    struct tn_transfer *transfer = make(&witness, ranges, 2);
    CHECK(tn_transfer_next(transfer, pieces, 4, 100, 100) == 1 &&
          pieces[0].remote == &transfer->remotes[0]);
    CHECK(tn_transfer_next(transfer, pieces, 4, 100, 100) == 1 &&
          pieces[0].remote == &transfer->remotes[1]);
    tn_piece_done(transfer, 2);
    CHECK(witness.quiet == 1);
    tn_transfer_unreference(transfer);
}

static void test_nothing_to_move(void)
{
    struct witness witness;
    struct tn_piece piece;
    struct tn_range ranges[] = {{.local_address = 1, .length = 0, .rows = 5},
                                {.local_address = 1, .length = 5, .rows = 0}};
    struct tn_transfer *transfer = make(&witness, ranges, 2);
    CHECK(tn_transfer_next(transfer, &piece, 1, 10, 10) == 0 && witness.quiet == 1);
    tn_transfer_unreference(transfer);
}

static void test_failure_stops_and_flush_yields(void)
{
    struct witness witness;
    struct tn_piece piece;
    struct tn_range range = {.local_address = 100, .length = 100, .rows = 1};
    struct tn_transfer *transfer = make(&witness, &range, 1);
    CHECK(tn_transfer_next(transfer, &piece, 1, 10, 10) == 1);
    tn_transfer_fail(transfer, TN_FLUSHED, 5, 0, "flushed");
    tn_transfer_fail(transfer, TN_VERBS, 10, 3, "the root cause");
    tn_transfer_fail(transfer, TN_DEADLINE, 0, 0, "too late");
    CHECK(transfer->status == TN_VERBS && transfer->error == 10 &&
          !strcmp(transfer->text, "the root cause"));
    CHECK(witness.ended == 1 && witness.quiet == 0);
    CHECK(tn_transfer_next(transfer, &piece, 1, 10, 10) == 0);
    tn_piece_done(transfer, 1);
    CHECK(witness.quiet == 1);
    tn_transfer_unreference(transfer);
}

/* Random ranges of rows with random strides; the local and remote byte of every index must be
 * paired once. */
static void test_every_byte_once(unsigned seed)
{
    enum { SPAN = 4096, RANGES = 8 };
    static uint8_t seen[RANGES * SPAN];
    static uint16_t expected_remote[RANGES * SPAN];
    struct tn_range ranges[RANGES];
    struct witness witness;
    uint64_t total = 0, moved = 0;
    srand(seed);
    memset(seen, 0, sizeof(seen));
    for (int i = 0; i < RANGES; i++) {
        uint64_t length = (uint64_t)(rand() % 40), rows = (uint64_t)(rand() % 20);
        int64_t gap = rand() % 3 ? (int64_t)length : (int64_t)length + rand() % 9;
        ranges[i] = (struct tn_range){.local_address = 1 + (uint64_t)i * SPAN,
                                      .remote_offset = (uint64_t)(rand() % 100),
                                      .length = length,
                                      .rows = rows,
                                      .local_stride = gap,
                                      .remote_stride = (int64_t)length + rand() % 2};
        total += length * rows;
        for (uint64_t row = 0; row < rows; row++)
            for (uint64_t byte = 0; byte < length; byte++)
                expected_remote[(uint64_t)i * SPAN + row * (uint64_t)gap + byte] =
                    (uint16_t)(ranges[i].remote_offset + row * (uint64_t)ranges[i].remote_stride +
                               byte);
    }
    struct tn_transfer *transfer = make(&witness, ranges, RANGES);
    struct tn_piece pieces[5];
    int count;
    uint64_t each = 1 + (uint64_t)(rand() % 64), at_once = 1 + (uint64_t)(rand() % 200);
    while ((count = tn_transfer_next(transfer, pieces, 1 + rand() % 5, each, at_once))) {
        uint64_t here = 0;
        for (int i = 0; i < count; i++) {
            CHECK(pieces[i].length > 0 && pieces[i].length <= each);
            for (uint64_t byte = 0; byte < pieces[i].length; byte++) {
                uint64_t local = pieces[i].local - 1 + byte;
                CHECK(!seen[local]);
                seen[local] = 1;
                CHECK(expected_remote[local] == pieces[i].remote_offset + byte);
            }
            here += pieces[i].length;
        }
        CHECK(here <= at_once || count == 1);
        moved += here;
        tn_piece_done(transfer, (uint64_t)count);
    }
    CHECK(moved == total && witness.quiet == 1);
    tn_transfer_unreference(transfer);
}

static void test_what_came_back_goes_first(void)
{
    struct witness witness;
    struct tn_piece pieces[4], again[4];
    struct tn_range range = {.local_address = 1000, .length = 100, .rows = 1};
    struct tn_transfer *transfer = make(&witness, &range, 1);
    CHECK(tn_transfer_next(transfer, pieces, 4, 30, UINT64_MAX) == 4);
    tn_piece_done(transfer, 1); /* the first */
    tn_transfer_return(transfer, pieces + 1, 3);
    CHECK(witness.quiet == 0);
    uint64_t bytes = 0;
    for (int i = 0; bytes < 70; i++) { /* cut to a smaller limit this time */
        int count = tn_transfer_next(transfer, again, 2, 20, UINT64_MAX);
        CHECK(count > 0 && i < 10);
        for (int k = 0; k < count; k++) {
            CHECK(again[k].length <= 20 && again[k].local >= 1030);
            CHECK(again[k].local - 1000 == again[k].remote_offset);
            bytes += again[k].length;
        }
        tn_piece_done(transfer, (uint64_t)count);
    }
    CHECK(bytes == 70 && tn_transfer_next(transfer, again, 2, 20, UINT64_MAX) == 0);
    CHECK(witness.quiet == 1 && witness.ended == 0);
    tn_transfer_unreference(transfer);
}

static void test_what_comes_back_to_a_failed_one_is_done(void)
{
    struct witness witness;
    struct tn_piece pieces[4];
    struct tn_range range = {.local_address = 1000, .length = 100, .rows = 1};
    struct tn_transfer *transfer = make(&witness, &range, 1);
    CHECK(tn_transfer_next(transfer, pieces, 4, 50, UINT64_MAX) == 2);
    tn_transfer_return(transfer, pieces, 1);
    tn_transfer_fail(transfer, TN_CANCELLED, 0, 0, "enough");
    CHECK(tn_transfer_next(transfer, pieces, 4, 50, UINT64_MAX) == 0 && witness.quiet == 0);
    tn_transfer_return(transfer, pieces + 1, 1);
    CHECK(witness.quiet == 1 && witness.ended == 1);
    tn_transfer_unreference(transfer);
}

static void set_outers(struct tn_transfer *transfer, const struct tn_outer *outers, uint64_t count)
{
    transfer->outers = malloc((size_t)count * sizeof(*outers));
    memcpy(transfer->outers, outers, (size_t)count * sizeof(*outers));
}

/* The pieces of a range with outer dimensions, in whatever portions they are asked for. */
static void test_outer_dimensions(unsigned seed)
{
    struct witness witness;
    struct tn_outer outers[2] = {
        {.dims = 1, .dim = {{.count = 9, .local_stride = 1, .remote_stride = 1}}},
        {.dims = 2,
         .dim = {{.count = 3, .local_stride = 1000, .remote_stride = -5000},
                 {.count = 4, .local_stride = -100, .remote_stride = 200}}}};
    struct tn_range ranges[] = {
        {.local_address = 1, .length = 5, .rows = 1},
        {.local_address = 5000,
         .remote_offset = 20000,
         .length = 7,
         .rows = 5,
         .local_stride = 10,
         .remote_stride = 7,
         .outer = 2},
        {.local_address = 9000, .length = 5, .rows = 0, .outer = 1},
        {.local_address = 9000, .length = 0, .rows = 5, .outer = 1},
        {.local_address = 9000, .remote_offset = 77, .length = 5, .rows = 1},
    };
    struct tn_transfer *transfer = make(&witness, ranges, 5);
    set_outers(transfer, outers, 2);
    uint64_t expected = 0, moved = 0;
    srand(seed);
    struct tn_piece pieces[5];
    uint64_t each = 1 + (uint64_t)(rand() % 9), at_once = 1 + (uint64_t)(rand() % 60);
    for (int count; (count = tn_transfer_next(transfer, pieces, 1 + rand() % 5, each, at_once));) {
        for (int i = 0; i < count; i++) {
            for (uint64_t byte = 0; byte < pieces[i].length; byte++, expected++) {
                uint64_t local = 1 + expected, remote = expected;
                if (expected >= 5 && expected < 5 + 420) {
                    uint64_t at = (expected - 5) % 7, row = (expected - 5) / 7 % 5;
                    uint64_t inner = (expected - 5) / 35 % 4, outer = (expected - 5) / 140;
                    local = 5000 + at + 10 * row - 100 * inner + 1000 * outer;
                    remote = 20000 + at + 7 * row + 200 * inner - 5000 * outer;
                } else if (expected >= 5) {
                    local = 9000 + expected - 425;
                    remote = 77 + expected - 425;
                }
                CHECK(pieces[i].local + byte == local && pieces[i].remote_offset + byte == remote);
            }
            moved += pieces[i].length;
        }
        tn_piece_done(transfer, (uint64_t)count);
    }
    CHECK(moved == 430 && witness.quiet == 1);
    tn_transfer_unreference(transfer);
}

/* Contiguous, rows, and rows of rows; what lies at local address i lies at remote offset i, too. */
static struct tn_transfer *make_large(struct witness *witness)
{
    struct tn_outer outer = {
        .dims = 2,
        .dim = {{.count = 2, .local_stride = 8 << 20, .remote_stride = 8 << 20},
                {.count = 3, .local_stride = 2 << 20, .remote_stride = 2 << 20}}};
    struct tn_range ranges[] = {
        {.local_address = 77, .remote_offset = 77, .length = (3 << 20) + 123, .rows = 1},
        {.local_address = 4 << 20,
         .remote_offset = 4 << 20,
         .length = 10000,
         .rows = 300,
         .local_stride = 12345,
         .remote_stride = 12345},
        {.local_address = 1, .length = 0, .rows = 3},
        {.local_address = 8 << 20,
         .remote_offset = 8 << 20,
         .length = 16384,
         .rows = 64,
         .local_stride = 20000,
         .remote_stride = 20000,
         .outer = 1},
    };
    struct tn_transfer *transfer = make(witness, ranges, 4);
    set_outers(transfer, &outer, 1);
    transfer->bytes = (3 << 20) + 123 + 300 * 10000 + 6 * 64 * 16384;
    return transfer;
}

static void mark(uint8_t *seen, const struct tn_piece *piece)
{
    CHECK(piece->length && piece->local == piece->remote_offset);
    for (uint64_t i = 0; i < piece->length; i++)
        CHECK(!seen[piece->local + i]++);
}

/* Whoever takes, and however much, every byte is handed out once. */
static void test_shares(unsigned seed)
{
    static uint8_t seen[24 << 20];
    struct witness witness;
    struct tn_transfer *transfer = make_large(&witness);
    struct tn_piece pieces[5];
    uint64_t moved = 0;
    srand(seed);
    memset(seen, 0, sizeof(seen));
    uint32_t hands = 2 + (uint32_t)rand() % (TN_MAX_HANDS - 1);
    uint64_t each = 1 + (uint64_t)rand() % (1 << 20), at_once = each + (uint64_t)rand() % (1 << 20);
    tn_transfer_share(transfer, hands);
    CHECK(transfer->n_shares == hands && tn_shares_left(transfer) == transfer->bytes);
    for (int count = 1; count;) {
        count = tn_transfer_next_of(transfer, (uint32_t)rand() % (hands + 1), pieces,
                                    1 + rand() % 5, each, at_once);
        for (int i = 0; i < count; i++) {
            mark(seen, &pieces[i]);
            moved += pieces[i].length;
        }
        tn_piece_done(transfer, (uint64_t)count);
    }
    CHECK(moved == transfer->bytes && witness.quiet == 1 && tn_transfer_exhausted(transfer));
    tn_transfer_unreference(transfer);
}

/* Each hand comes to the same bytes again, and helps the other only when its own are done. */
static void test_own_share_first(void)
{
    struct witness witness;
    struct tn_piece piece;
    struct tn_range range = {.local_address = 4096, .length = 8 << 20, .rows = 1};
    struct tn_transfer *transfer = make(&witness, &range, 1);
    transfer->bytes = range.length;
    tn_transfer_share(transfer, 2);
    for (uint64_t i = 4; i < 8; i++) {
        CHECK(tn_transfer_next_of(transfer, 1, &piece, 1, 1 << 20, 1 << 20) == 1);
        CHECK(piece.remote_offset == i << 20 && piece.length == 1 << 20);
    }
    CHECK(tn_transfer_next_of(transfer, 1, &piece, 1, 8 << 20, 8 << 20) == 1);
    CHECK(piece.remote_offset == 0 && piece.length == 2 << 20);
    CHECK(tn_transfer_next(transfer, &piece, 1, 8 << 20, 8 << 20) == 1);
    CHECK(piece.remote_offset == 2 << 20 && piece.length == 2 << 20);
    CHECK(tn_transfer_exhausted(transfer));
    tn_piece_done(transfer, 6);
    tn_transfer_unreference(transfer);
    range.length = 2 << 20; /* and one byte less is one share */
    transfer = make(&witness, &range, 1);
    transfer->bytes = range.length - 1;
    tn_transfer_share(transfer, 2);
    CHECK(!transfer->n_shares);
    tn_transfer_unreference(transfer);
}

int main(void)
{
    for (unsigned seed = 0; seed < 40; seed++)
        test_shares(seed);
    test_own_share_first();
    test_neighbours_become_one_piece();
    test_a_call_keeps_to_one_remote();
    test_nothing_to_move();
    test_failure_stops_and_flush_yields();
    for (unsigned seed = 0; seed < 500; seed++)
        test_every_byte_once(seed);
    for (unsigned seed = 0; seed < 100; seed++)
        test_outer_dimensions(seed);
    test_what_came_back_goes_first();
    test_what_comes_back_to_a_failed_one_is_done();
    return 0;
}
