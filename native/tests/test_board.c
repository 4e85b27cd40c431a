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

static void *owned[RANKS];
static const void *shown[RANKS]; /* the same memory, as others see it */

static void make_memory(void)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        int fd = tn_sys_memfd("board");
        CHECK(fd >= 0 && ftruncate(fd, TN_BOARD_BYTES) == 0);
        owned[rank] = mmap(NULL, TN_BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        shown[rank] = mmap(NULL, TN_BOARD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(owned[rank] != MAP_FAILED && shown[rank] != MAP_FAILED);
        close(fd);
    }
}

static void free_memory(void)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        munmap(owned[rank], TN_BOARD_BYTES);
        munmap((void *)shown[rank], TN_BOARD_BYTES);
    }
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
    CHECK(tn_board_post(two[0], 2, "one", 3) == TN_OK);
    CHECK(tn_board_post(two[0], 1, "to who is not there", 19) == TN_AGAIN);
    CHECK(tn_board_post(two[0], 2, "", 0) == TN_OK);
    CHECK(tn_board_post(two[1], 1, "three", 5) == TN_OK);
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
    CHECK(tn_board_post(two[0], 2, bytes, sizeof(bytes)) == TN_INVALID);
    CHECK(tn_board_post(two[0], 4, bytes, 1) == TN_INVALID);
    CHECK(tn_board_attach(two[0], 0, shown[0]) == TN_INVALID);
    CHECK(tn_board_attach(two[0], 2, shown[1]) == TN_INVALID);
    CHECK(tn_board_open(owned[2], 2, 2, &none) == TN_INVALID);
    CHECK(tn_board_open(owned[2], 0, TN_BOARD_RANKS + 1, &none) == TN_INVALID);
    CHECK(tn_board_open((char *)owned[2] + 8, 0, 2, &none) == TN_INVALID);
    close_two(two);
}

/* A ring that is full takes nothing more, and loses nothing; one that joins later missed nothing
 * that was for it. */
static void test_full(void)
{
    struct tn_board *two[2], *late;
    uint32_t said = 0, heard = 0, rank, length, value;
    open_two(two);
    while (tn_board_post(two[0], 2, &said, sizeof(said)) == TN_OK)
        said++;
    CHECK(said > 64 && said < 4096);
    for (int i = 0; i < 500; i++) {
        CHECK(tn_board_take(two[1], &rank, &value, &length) == TN_OK && value == heard++);
        CHECK(tn_board_post(two[0], 2, &said, sizeof(said)) == TN_OK);
        said++;
        CHECK(tn_board_post(two[0], 2, &said, sizeof(said)) == TN_AGAIN);
    }
    late = open_board(1, 2);
    CHECK(tn_board_attach(late, 0, shown[0]) == TN_OK);
    expect_nothing(late);
    tn_board_close(late);
    close_two(two);
}

/* The first two words are how much was said, and whether the owner sleeps. */
static void test_hostile(void)
{
    struct tn_board *two[2];
    char bytes[TN_BOARD_MESSAGE];
    uint32_t rank, length;
    open_two(two);
    CHECK(tn_board_post(two[0], 2, "x", 1) == TN_OK);
    memset((char *)owned[0] + 64, 0xff, TN_BOARD_BYTES - 64); /* lengths, and how far it has read */
    CHECK(tn_board_take(two[1], &rank, bytes, &length) == TN_OK && length == TN_BOARD_MESSAGE);
    *(uint32_t *)owned[0] += 100000;
    CHECK(tn_board_wait(two[1], SECOND) == TN_OK);
    CHECK(tn_board_take(two[1], &rank, bytes, &length) == TN_INVALID && rank == 0);
    expect_nothing(two[1]);
    close_two(two);
}

/* Each says a number to all and waits for everybody's, again and again. */
static void play(uint32_t rank)
{
    struct tn_board *board = open_board(rank, RANKS);
    atomic_fetch_add((_Atomic uint32_t *)((char *)owned[0] + TN_BOARD_BYTES - 64), 1);
    while (atomic_load((_Atomic uint32_t *)((char *)owned[0] + TN_BOARD_BYTES - 64)) < RANKS)
        usleep(100);
    for (uint32_t peer = 0; peer < RANKS; peer++)
        if (peer != rank)
            CHECK(tn_board_attach(board, peer, shown[peer]) == TN_OK);
    atomic_fetch_add((_Atomic uint32_t *)((char *)owned[0] + TN_BOARD_BYTES - 64), 1);
    while (atomic_load((_Atomic uint32_t *)((char *)owned[0] + TN_BOARD_BYTES - 64)) < 2 * RANKS)
        usleep(100);
    uint32_t next[RANKS] = {0}, behind = 0, from, length, value[TN_BOARD_MESSAGE / 4];
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        CHECK(tn_board_post(board, (1u << RANKS) - 1 - (1u << rank), &turn, 4) == TN_OK);
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
    test_hostile();
    test_processes();
    return 0;
}
