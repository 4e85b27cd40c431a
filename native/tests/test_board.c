/* Boards of several processes: everybody hears what is for him, in order; sleepers are woken; what
 * cannot be is refused. */
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sys.h"
#include "tests/check.h"

#define SECOND UINT64_C(1000000000)
#define RANKS 4u
#define TURNS 3000u
#define BYTES (MIB)
#define MIB (UINT64_C(1) << 20)

static void *owned[RANKS];
static const void *shown[RANKS]; /* the same memory, as others see it */

static void make_memory(void)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        int fd = tn_sys_memfd("board");
        CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0);
        owned[rank] = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        shown[rank] = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(owned[rank] != MAP_FAILED && shown[rank] != MAP_FAILED);
        close(fd);
    }
}

static void free_memory(void)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        munmap(owned[rank], BYTES);
        munmap((void *)shown[rank], BYTES);
    }
}

static int say(struct tn_board *board, uint64_t to, const void *bytes, uint32_t length)
{
    uint64_t missed = 99;
    int status = tn_board_post(board, to, bytes, length, &missed);
    CHECK(status < 0 || (missed & ~to) == 0);
    return status < 0 || !missed ? status : TN_AGAIN;
}

static struct tn_board *open_board(uint32_t rank, uint32_t ranks)
{
    struct tn_board *board;
    CHECK(tn_board_open(owned[rank], rank, ranks, &board) == TN_OK);
    return board;
}

/* Two boards of one process that see each other. */
static void open_two(struct tn_board *two[2])
{
    make_memory();
    for (uint32_t rank = 0; rank < 2; rank++)
        two[rank] = open_board(rank, 2);
    for (uint32_t rank = 0; rank < 2; rank++)
        CHECK(tn_board_attach(two[rank], 1 - rank, shown[1 - rank]) == TN_OK);
}

static void close_two(struct tn_board *two[2])
{
    tn_board_close(two[0]);
    tn_board_close(two[1]);
    free_memory();
}

static void expect(struct tn_board *board, uint32_t from, const char *text)
{
    char bytes[TN_BOARD_MESSAGE];
    uint32_t rank, length;
    CHECK(tn_board_take(board, &rank, bytes, &length) == TN_OK);
    CHECK(rank == from && length == strlen(text) && !memcmp(bytes, text, length));
}

static void expect_nothing(struct tn_board *board)
{
    char bytes[TN_BOARD_MESSAGE];
    uint32_t rank, length;
    CHECK(tn_board_take(board, &rank, bytes, &length) == TN_AGAIN);
    CHECK(tn_board_wait(board, SECOND / 1000) == TN_PENDING);
}

static void test_what_is_said_is_heard(void)
{
    struct tn_board *two[2];
    open_two(two);
    expect_nothing(two[1]);
    CHECK(say(two[0], 2, "one", 3) == TN_OK);
    CHECK(say(two[0], 1, "to who is not there", 19) == TN_AGAIN);
    CHECK(say(two[0], 2, "", 0) == TN_OK);
    CHECK(say(two[1], 1, "three", 5) == TN_OK);
    CHECK(tn_board_wait(two[1], SECOND) == TN_OK);
    expect(two[1], 0, "one");
    expect(two[1], 0, "");
    expect_nothing(two[1]);
    expect(two[0], 1, "three");
    expect_nothing(two[0]);
    close_two(two);
}

static void test_bad_arguments(void)
{
    struct tn_board *two[2], *none;
    char bytes[TN_BOARD_MESSAGE + 1] = {0};
    open_two(two);
    CHECK(say(two[0], 2, bytes, sizeof(bytes)) == TN_INVALID);
    CHECK(say(two[0], 4, bytes, 1) == TN_INVALID);
    CHECK(tn_board_attach(two[0], 0, shown[0]) == TN_INVALID);
    CHECK(tn_board_attach(two[0], 2, shown[1]) == TN_INVALID);
    CHECK(tn_board_open(owned[2], 2, 2, &none) == TN_INVALID);
    CHECK(tn_board_open(owned[2], 0, TN_BOARD_RANKS + 1, &none) == TN_INVALID);
    CHECK(tn_board_open((char *)owned[2] + 8, 0, 2, &none) == TN_INVALID);
    close_two(two);
}

/* A ring that is full takes nothing more, and loses nothing. */
static void test_full(void)
{
    struct tn_board *two[2];
    uint32_t said = 0, heard = 0, rank, length, value;
    open_two(two);
    while (say(two[0], 2, &said, sizeof(said)) == TN_OK)
        said++;
    CHECK(said > 64 && said < 4096);
    for (int i = 0; i < 500; i++) {
        CHECK(tn_board_take(two[1], &rank, &value, &length) == TN_OK && value == heard++);
        CHECK(say(two[0], 2, &said, sizeof(said)) == TN_OK);
        said++;
        CHECK(say(two[0], 2, &said, sizeof(said)) == TN_AGAIN);
    }
    close_two(two);
}

/* Who does not read keeps nobody else from hearing. */
static void test_one_does_not_read(void)
{
    struct tn_board *three[3];
    uint64_t missed = 0;
    uint32_t rank, length, value;
    make_memory();
    for (uint32_t i = 0; i < 3; i++)
        three[i] = open_board(i, 3);
    for (uint32_t i = 0; i < 9; i++)
        if (i / 3 != i % 3)
            CHECK(tn_board_attach(three[i / 3], i % 3, shown[i % 3]) == TN_OK);
    for (uint32_t i = 0; i < 1000; i++) {
        CHECK(tn_board_post(three[0], 6, &i, sizeof(i), &missed) == TN_OK);
        CHECK(tn_board_take(three[1], &rank, &value, &length) == TN_OK && value == i);
        CHECK(missed == 0 || missed == 4);
    }
    CHECK(missed == 4);
    for (uint32_t i = 0; i < 64; i++)
        CHECK(tn_board_take(three[2], &rank, &value, &length) == TN_OK && value == i);
    for (uint32_t i = 0; i < 3; i++)
        tn_board_close(three[i]);
    free_memory();
}

/* After a line of the cache there is how much was said to each rank, then how much of whose was
 * read, then what was said. */
static void test_hostile(void)
{
    struct tn_board *two[2];
    char bytes[TN_BOARD_MESSAGE];
    uint32_t rank, length;
    open_two(two);
    CHECK(say(two[0], 2, "x", 1) == TN_OK);
    memset((char *)owned[0] + 64 + 4 * TN_BOARD_RANKS, 0xff, BYTES - 64 - 4 * TN_BOARD_RANKS);
    CHECK(tn_board_take(two[1], &rank, bytes, &length) == TN_OK && length == TN_BOARD_MESSAGE);
    ((uint32_t *)owned[0])[16 + 1] += 100000;
    CHECK(tn_board_wait(two[1], SECOND) == TN_OK);
    CHECK(tn_board_take(two[1], &rank, bytes, &length) == TN_INVALID && rank == 0);
    expect_nothing(two[1]);
    CHECK(say(two[1], 1, "y", 1) == TN_AGAIN);
    close_two(two);
}

/* Each says a number to all and waits for everybody's, again and again. */
static void play(uint32_t rank)
{
    struct tn_board *board = open_board(rank, RANKS);
    atomic_fetch_add((_Atomic uint32_t *)((char *)owned[0] + BYTES - 64), 1);
    while (atomic_load((_Atomic uint32_t *)((char *)owned[0] + BYTES - 64)) < RANKS)
        usleep(100);
    for (uint32_t peer = 0; peer < RANKS; peer++)
        if (peer != rank)
            CHECK(tn_board_attach(board, peer, shown[peer]) == TN_OK);
    atomic_fetch_add((_Atomic uint32_t *)((char *)owned[0] + BYTES - 64), 1);
    while (atomic_load((_Atomic uint32_t *)((char *)owned[0] + BYTES - 64)) < 2 * RANKS)
        usleep(100);
    uint32_t next[RANKS] = {0}, behind = 0, from, length, value[TN_BOARD_MESSAGE / 4];
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        CHECK(say(board, (1u << RANKS) - 1 - (1u << rank), &turn, 4) == TN_OK);
        for (behind = RANKS - 1; behind;) {
            int status = tn_board_take(board, &from, value, &length);
            if (status == TN_AGAIN) {
                CHECK(tn_board_wait(board, 30 * SECOND) == TN_OK);
                continue;
            }
            CHECK(status == TN_OK && length == 4 && value[0] == next[from]);
            next[from]++;
            behind = 0;
            for (uint32_t peer = 0; peer < RANKS; peer++)
                behind += peer != rank && next[peer] <= turn;
        }
    }
    tn_board_close(board);
}

static void test_processes(void)
{
    pid_t children[RANKS];
    int status;
    make_memory();
    CHECK(tn_board_bytes(RANKS) <= BYTES - 64);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if ((children[rank] = fork()) == 0) {
            play(rank);
            _exit(0);
        }
    for (uint32_t rank = 0; rank < RANKS; rank++)
        CHECK(waitpid(children[rank], &status, 0) == children[rank] && status == 0);
    free_memory();
}

int main(void)
{
    test_what_is_said_is_heard();
    test_bad_arguments();
    test_full();
    test_one_does_not_read();
    test_hostile();
    test_processes();
    return 0;
}
