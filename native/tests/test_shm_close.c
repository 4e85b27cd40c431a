/* What happens when a region is closed, or its owner dies, while others use it. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/shm_pair.h"

#define BOTH (TN_READ | TN_WRITE)
#define AREA 65536

static bool have_process_vm;

static const char *says(struct shm_pair *pair)
{
    static char text[TN_TEXT_BYTES];
    tn_shm_connection_process_vm(pair->connection, text, sizeof(text));
    return text;
}

static void test_closed_is_stale(enum shm_kind kind)
{
    struct shm_options options = {0};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote old = shm_make(pair, kind, BOTH, AREA, 1);
    uint8_t local[64];
    CHECK(shm_move(pair, TN_OP_READ, &old, 0, local, sizeof(local)) == TN_OK);
    struct shm_request end = {.command = SHM_CLOSE};
    CHECK(shm_tell(pair, end, NULL) == TN_OK);
    CHECK(shm_move(pair, TN_OP_READ, &old, 0, local, sizeof(local)) == TN_STALE);
    CHECK(shm_move(pair, TN_OP_WRITE, &old, 0, local, sizeof(local)) == TN_STALE);
    struct shm_request verify = {.command = SHM_VERIFY, .length = AREA, .seed = 1};
    CHECK(shm_tell(pair, verify, NULL) == TN_OK);
    shm_pair_close(pair);
}

/* ---- late writes, torn reads -----------------------------------------------------------------
 * The owner gives the same memory to one region after the other. Two threads of another process
 * write to it, or read it, without pause. Between two regions the memory belongs to somebody else:
 * not one byte of theirs may come then, and not one byte of his may be handed out. */
static struct arena {
    _Atomic uint64_t turn;   /* odd: `remote` is being changed */
    struct tn_remote remote; /* the region to write to now */
    _Atomic uint64_t late;   /* bytes that came after close */
    _Atomic uint64_t dirty;  /* regions that were written to before */
    _Atomic uint64_t worked; /* transfers before */
    _Atomic uint32_t over;
} *arena;

static void publish(const struct tn_remote *remote)
{
    atomic_fetch_add(&arena->turn, 1);
    arena->remote = *remote;
    atomic_fetch_add(&arena->turn, 1);
}

static uint64_t count_other(const uint8_t *bytes, uint8_t value)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < AREA; i++)
        count += bytes[i] != value;
    return count;
}

static void one_owner_after_another(struct fake_host *owner, struct tn_region *place,
                                    uint64_t milliseconds)
{
    uint8_t *bytes = (uint8_t *)(uintptr_t)place->remote.address;
    uint64_t end = tn_now() + milliseconds * 1000000, late = end + UINT64_C(60000000000);
    /* On a busy machine the intruders may not have come to it until then. */
    for (uint64_t round = 0; tn_now() < (atomic_load(&arena->worked) ? end : late); round++) {
        struct tn_region *region;
        memset(bytes, 0, AREA);
        CHECK(tn_regions_add(owner->host.regions, bytes, AREA, BOTH, place->segment, &region) ==
              TN_OK);
        publish(&region->remote);
        usleep((useconds_t)(round * 37 % 400));
        tn_regions_revoke(region);
        while (!tn_regions_unguarded(region))
            sched_yield();
        atomic_fetch_add(&arena->dirty, count_other(bytes, 0) != 0);
        tn_regions_remove(region);
        memset(bytes, 0x5A, AREA);
        usleep(200);
        atomic_fetch_add(&arena->late, count_other(bytes, 0x5A));
    }
    atomic_store(&arena->over, 1);
}

static bool current(uint64_t *last, struct tn_remote *remote)
{
    uint64_t turn = atomic_load(&arena->turn);
    if (turn % 2 || turn == *last)
        return false;
    memcpy(remote, &arena->remote, sizeof(*remote));
    if (atomic_load(&arena->turn) != turn)
        return false;
    *last = turn;
    return true;
}

/* Each has a half for itself. */
struct intruder {
    struct shm_pair *pair;
    uint32_t op;
    uint64_t offset;
    uint64_t torn;
    uint8_t bytes[AREA / 2];
};

static int move_once(struct intruder *intruder, const struct tn_remote *remote)
{
    struct tn_range range = {.local_address = (uintptr_t)intruder->bytes,
                             .remote_offset = intruder->offset,
                             .length = AREA / 2,
                             .rows = 1};
    struct tn_transfer *transfer = shm_begin(intruder->pair, intruder->op, remote, 1, &range, 1);
    CHECK(transfer && fake_quiet(transfer));
    int status = fake_status(transfer);
    tn_transfer_unreference(transfer);
    atomic_fetch_add(&arena->worked, status == TN_OK);
    for (uint64_t i = 0; i < AREA / 2 && status == TN_OK && intruder->op == TN_OP_READ; i++)
        intruder->torn += intruder->bytes[i] != 0;
    return status;
}

static void *intrude(void *argument)
{
    struct intruder *intruder = argument;
    struct tn_remote remote;
    uint64_t last = 0;
    memset(intruder->bytes, 0xA5, sizeof(intruder->bytes));
    while (!atomic_load(&arena->over)) {
        if (!current(&last, &remote)) {
            sched_yield();
            continue;
        }
        int status = TN_OK;
        while (status == TN_OK)
            status = move_once(intruder, &remote);
        CHECK(status == TN_STALE);
    }
    return NULL;
}

static void run_intruders(struct shm_pair *pair, uint32_t op, struct intruder *intruders)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        memset(&intruders[i], 0, sizeof(intruders[i]));
        intruders[i].pair = pair;
        intruders[i].op = op;
        intruders[i].offset = (uint64_t)i * AREA / 2;
        CHECK(!pthread_create(&threads[i], NULL, intrude, &intruders[i]));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

static void test_intruders(enum shm_kind kind, uint32_t op)
{
    static struct intruder intruders[2];
    struct shm_options options = {.inline_bytes = AREA, .own = one_owner_after_another};
    uint8_t byte;
    memset(arena, 0, sizeof(*arena));
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remote = shm_make(pair, kind, BOTH, AREA, 1);
    CHECK(shm_move(pair, TN_OP_READ, &remote, 0, &byte, 1) == TN_OK); /* maps it */
    struct shm_request own = {.command = SHM_OWN, .number = 400};
    shm_send(pair, &own);
    run_intruders(pair, op, intruders);
    CHECK(arena->late == 0);
    CHECK((arena->dirty > 0) == (op == TN_OP_WRITE));
    CHECK(intruders[0].torn + intruders[1].torn == 0);
    CHECK(arena->worked > 0);
    shm_pair_close(pair);
}

/* ---- owners that end ----------------------------------------------------------------------- */
static void test_killed_owner(void)
{
    struct shm_options options = {0};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remote = shm_make(pair, SHM_PRIVATE, BOTH, AREA, 1);
    uint8_t local[64];
    CHECK(shm_move(pair, TN_OP_READ, &remote, 0, local, sizeof(local)) == TN_OK);
    CHECK(pair->fake.downs == 0);
    shm_kill(pair);
    CHECK(shm_move(pair, TN_OP_READ, &remote, 0, local, sizeof(local)) == TN_PEER_LOST);
    CHECK(shm_move(pair, TN_OP_WRITE, &remote, 0, local, sizeof(local)) == TN_PEER_LOST);
    CHECK(fake_down(&pair->fake) == TN_PEER_LOST);
    shm_pair_close(pair);
}

/* The process and its pid live on, but they are not the peer any more. */
static void test_owner_becomes_another_program(void)
{
    struct shm_options options = {0};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remote = shm_make(pair, SHM_PRIVATE, BOTH, AREA, 1);
    uint8_t local[64];
    struct tn_region *ours;
    CHECK(tn_regions_add(pair->fake.host.regions, local, sizeof(local), BOTH, NULL, &ours) ==
          TN_OK);
    struct shm_request announce = {.command = SHM_ANNOUNCE, .number = ours->remote.number};
    CHECK(shm_tell(pair, announce, NULL) == TN_OK);
    tn_regions_revoke(ours);
    CHECK(!tn_regions_unguarded(ours));
    struct shm_request request = {.command = SHM_EXEC};
    shm_send(pair, &request);
    struct pollfd wait = {.fd = pair->socket, .events = POLLIN};
    CHECK(poll(&wait, 1, 60000) == 1); /* its end is closed on exec */
    CHECK_TEXT(shm_move(pair, TN_OP_READ, &remote, 0, local, sizeof(local)) == TN_PEER_LOST,
               pair->why);
    CHECK(tn_regions_unguarded(ours));
    shm_pair_close(pair);
}

/* A write to our memory that was begun and does not end. */
struct stuck {
    struct shm_pair *pair;
    struct tn_region *region;
    uint8_t bytes[64];
};

static void begin_stuck(struct stuck *stuck, const struct shm_options *options)
{
    struct tn_region *other;
    stuck->pair = shm_pair_open(options);
    struct tn_regions *regions = stuck->pair->fake.host.regions;
    CHECK(tn_regions_add(regions, stuck->bytes, 64, BOTH, NULL, &stuck->region) == TN_OK);
    CHECK(tn_regions_add(regions, stuck->bytes, 64, BOTH, NULL, &other) == TN_OK);
    struct shm_request announce = {.command = SHM_ANNOUNCE, .number = stuck->region->remote.number};
    CHECK(shm_tell(stuck->pair, announce, NULL) == TN_OK);
    tn_regions_revoke(stuck->region);
    tn_regions_revoke(other);
    CHECK(!tn_regions_unguarded(stuck->region));
    CHECK(!tn_shm_link_ops.revoke(stuck->pair->connection, stuck->region));
    CHECK(tn_regions_unguarded(other));
    CHECK(tn_shm_link_ops.revoke(stuck->pair->connection, other));
}

static void test_stuck_until_death(bool no_pid)
{
    struct shm_options options = {.no_pid = no_pid};
    struct stuck stuck;
    begin_stuck(&stuck, &options);
    shm_kill(stuck.pair);
    CHECK(tn_regions_unguarded(stuck.region));
    CHECK(tn_shm_link_ops.revoke(stuck.pair->connection, stuck.region));
    shm_pair_close(stuck.pair);
}

/* We have given the peer up as lost, it has not heard of it: its write may still go on. */
static void test_stuck_outlives_the_link(bool no_pid)
{
    struct shm_options options = {.no_pid = no_pid};
    struct stuck stuck;
    begin_stuck(&stuck, &options);
    tn_shm_link_ops.close(stuck.pair->connection, TN_PEER_LOST, "silent for too long");
    tn_shm_link_ops.free(stuck.pair->connection);
    stuck.pair->connection = NULL;
    CHECK(!tn_regions_unguarded(stuck.region));
    shm_kill(stuck.pair);
    CHECK(tn_regions_unguarded(stuck.region));
    shm_pair_close(stuck.pair);
}

/* A peer that closes its connection writes no more, though its process lives. */
static void test_stuck_until_let_go(void)
{
    struct shm_options options = {0};
    struct stuck stuck;
    begin_stuck(&stuck, &options);
    struct shm_request request = {.command = SHM_LET_GO};
    CHECK(shm_tell(stuck.pair, request, NULL) == TN_OK);
    CHECK(tn_regions_unguarded(stuck.region));
    shm_pair_close(stuck.pair);
}

/* ---- what cannot be reached says why -------------------------------------------------------- */
static void hidden_owner(void)
{
    struct shm_options options = {.hidden = true};
    struct shm_pair *pair = shm_pair_open(&options);
    uint8_t local[64];
    CHECK(!tn_shm_connection_process_vm(pair->connection, pair->why, sizeof(pair->why)));
    CHECK_TEXT(strstr(says(pair), "dumpable") || strstr(says(pair), "Yama"), says(pair));
    struct tn_remote hidden = shm_make(pair, SHM_PRIVATE, BOTH, AREA, 1);
    CHECK(shm_move(pair, TN_OP_READ, &hidden, 0, local, sizeof(local)) == TN_NO_PATH);
    CHECK_TEXT(strstr(pair->why, says(pair)), pair->why);
    struct tn_remote mapped = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1);
    CHECK_TEXT(shm_move(pair, TN_OP_READ, &mapped, 0, local, sizeof(local)) == TN_OK, pair->why);
    CHECK(shm_move(pair, TN_OP_WRITE, &mapped, 0, local, sizeof(local)) == TN_OK);
    shm_pair_close(pair);
}

/* Gives privileges up, so it needs a process of its own. */
static void test_hidden_owner(void)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        hidden_owner();
        exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void test_no_pid(void)
{
    struct shm_options options = {.no_pid = true};
    struct shm_pair *pair = shm_pair_open(&options);
    uint8_t local[64];
    CHECK(!tn_shm_connection_process_vm(pair->connection, pair->why, sizeof(pair->why)));
    CHECK_TEXT(strstr(says(pair), "pid namespace"), says(pair));
    struct tn_remote remote = shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1);
    CHECK(shm_move(pair, TN_OP_WRITE, &remote, 0, local, sizeof(local)) == TN_OK);
    shm_pair_close(pair);
}

static int accept_with(struct shm_pair *pair, uint64_t directory_bytes, int first, int second)
{
    struct tn_shm_offer offer = pair->offer;
    int fds[2] = {dup(first), dup(second)};
    offer.directory_bytes = directory_bytes;
    int status = tn_shm_connection_accept(pair->connection, pair->owner, &offer, fds);
    for (int i = 0; i < 2 && status != TN_OK; i++) /* taken all the same */
        CHECK(fds[i] < 0 || fcntl(fds[i], F_GETFD) < 0);
    return status;
}

static void test_foreign_offers(void)
{
    struct shm_options options = {.no_accept = true};
    struct shm_pair *pair = shm_pair_open(&options);
    uint64_t bytes = pair->offer.directory_bytes;
    int *good = pair->offer_fds, pipes[2];
    CHECK(!pipe(pipes));
    CHECK(accept_with(pair, bytes, pipes[0], good[1]) == TN_PROTOCOL);
    CHECK(accept_with(pair, bytes, good[0], pipes[0]) == TN_PROTOCOL);
    CHECK(accept_with(pair, bytes, good[1], good[0]) == TN_PROTOCOL);
    CHECK(accept_with(pair, bytes + 4096, good[0], good[1]) == TN_PROTOCOL);
    CHECK(accept_with(pair, bytes, -1, -1) == TN_PROTOCOL);
    CHECK(tn_shm_connection_attach(pair->connection, NULL) == TN_INVALID);
    pair->offer.token[3] ^= 1; /* process_vm reaches somebody, but not the peer */
    CHECK(accept_with(pair, bytes, good[0], good[1]) == TN_OK);
    CHECK(!tn_shm_connection_process_vm(pair->connection, pair->why, sizeof(pair->why)));
    CHECK(accept_with(pair, bytes, good[0], good[1]) == TN_INVALID); /* once only */
    close(pipes[0]);
    close(pipes[1]);
    shm_pair_close(pair);
}

int main(void)
{
    struct shm_options options = {0};
    arena = mmap(NULL, sizeof(*arena), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(arena != MAP_FAILED);
    struct shm_pair *probe = shm_pair_open(&options);
    have_process_vm =
        tn_shm_connection_process_vm(probe->connection, probe->why, sizeof(probe->why));
    shm_pair_close(probe);
    for (int kind = have_process_vm ? SHM_PRIVATE : SHM_SEGMENT; kind <= SHM_SEGMENT; kind++) {
        test_closed_is_stale((enum shm_kind)kind);
        test_intruders((enum shm_kind)kind, TN_OP_WRITE);
        test_intruders((enum shm_kind)kind, TN_OP_READ);
    }
    for (int no_pid = 0; no_pid <= 1; no_pid++) {
        test_stuck_until_death(no_pid);
        test_stuck_outlives_the_link(no_pid);
    }
    test_stuck_until_let_go();
    test_no_pid();
    test_foreign_offers();
    if (have_process_vm) {
        test_killed_owner();
        test_owner_becomes_another_program();
        test_hidden_owner();
    }
    return 0;
}
