/* The double of libibverbs between processes: they see one fabric, whatever becomes of each. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fake_verbs.h"

#define ROUNDS 30
#define WORDS 512 /* where words for atomics lie */

static char fabric[64];
static const char *program;
static bool slow; /* processes start slowly under this tool */

static void talk(int fd, const void *ours, void *theirs, size_t bytes)
{
    CHECK(send(fd, ours, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
    CHECK(recv(fd, theirs, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

static void join(struct fake_end *end, int fd)
{
    char ready = 'r';
    fake_end_qp_open(end);
    talk(fd, &end->ours, &end->theirs, sizeof(end->ours));
    fake_end_connect(end);
    talk(fd, &ready, &ready, 1);
}

/* The other process: this program again, told what to play. Not a mere fork, which the thread
 * sanitizer does not follow. */
static pid_t spawn(int *fd, const char *play)
{
    int fds[2];
    char number[16];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    snprintf(number, sizeof(number), "%d", fds[1]);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        fcntl(fds[1], F_SETFD, 0);
        execl(program, program, play, number, NULL);
        _exit(1);
    }
    close(fds[1]);
    *fd = fds[0];
    return child;
}

static void reap(pid_t child, int expected_signal)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(expected_signal ? WIFSIGNALED(status) && WTERMSIG(status) == expected_signal
                          : status == 0);
}

static void until_closed(int fd)
{
    char byte;
    while (recv(fd, &byte, 1, 0) > 0)
        ;
}

/* ---- what is asked of a process that does nothing about it */
static void idle(struct fake_end *end, int fd)
{
    for (uint64_t i = 0; i < 8; i++)
        CHECK(fake_end_receive(end, i, 0, 0) == 0);
    uint8_t ready = 1;
    CHECK(send(fd, &ready, 1, 0) == 1);
    until_closed(fd);
    for (uint64_t i = 0; i < 8; i++) {
        struct ibv_wc wc = fake_end_wait(end);
        CHECK(wc.wr_id == i && wc.status == IBV_WC_SUCCESS && wc.imm_data == i + 100);
        CHECK(end->memory[4096 * (i + 1)] == i + 1);
    }
}

static uint64_t fetch_add(struct fake_end *end, uint64_t by)
{
    struct fake_work work;
    uint64_t before;
    struct {
        uint64_t address, first, second;
        uint32_t key;
    } part = {end->theirs.address + WORDS, by, 0, end->theirs.rkey};
    fake_work_init(&work, end, 1, 0, 0, 8);
    work.wr.opcode = (enum ibv_wr_opcode)6;
    memcpy(&work.wr.wr, &part, sizeof(part));
    CHECK(fake_work_do(&work, end) == IBV_WC_SUCCESS);
    memcpy(&before, end->memory, 8);
    return before;
}

static void test_one_that_stands_still_is_served(void)
{
    struct fake_end end;
    struct fake_work work;
    uint8_t ready;
    int fd, status;
    pid_t child = spawn(&fd, "idle");
    fake_end_open(&end, "fake0", 1);
    join(&end, fd);
    CHECK(memcmp(&end.ours.gid, &end.theirs.gid, 16) != 0 && end.ours.qp != end.theirs.qp);
    CHECK(recv(fd, &ready, 1, MSG_WAITALL) == 1);
    CHECK(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child);
    for (uint64_t i = 0; i < 8; i++) {
        memset(end.memory, (int)i + 1, 4096);
        fake_work_init(&work, &end, i, 0, 4096 * (i + 1), 4096);
        work.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, work.wr.imm_data = (uint32_t)i + 100;
        CHECK(fake_work_do(&work, &end) == IBV_WC_SUCCESS);
        fake_work_init(&work, &end, i, 8192, 4096 * (i + 1), 4096);
        work.wr.opcode = IBV_WR_RDMA_READ;
        CHECK(fake_work_do(&work, &end) == IBV_WC_SUCCESS && end.memory[8192] == i + 1);
    }
    for (uint64_t i = 0; i < 5; i++)
        CHECK(fetch_add(&end, 10) == 10 * i);
    CHECK(kill(child, SIGCONT) == 0);
    close(fd);
    reap(child, 0);
    fake_end_close(&end);
}

/* ---- events cross over */
static void sleeper(struct fake_end *end, int fd)
{
    struct ibv_cq *cq;
    void *context;
    for (uint64_t i = 0; i < 20; i++) {
        uint8_t ready = 1;
        CHECK(end->context->ops.req_notify_cq(end->cq, 0) == 0);
        CHECK(fake_end_receive(end, i, 0, 0) == 0 && send(fd, &ready, 1, 0) == 1);
        CHECK(end->lib->get_cq_event(end->channel, &cq, &context) == 0); /* sleeps */
        end->lib->ack_cq_events(cq, 1);
        CHECK(fake_end_wait(end).wr_id == i);
    }
    struct ibv_async_event event;
    CHECK(end->lib->get_async_event(end->context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == end->qp);
    end->lib->ack_async_event(&event);
}

static void test_a_sleeper_is_woken(void)
{
    struct fake_end end;
    struct fake_work work;
    uint8_t ready;
    int fd;
    pid_t child = spawn(&fd, "sleeper");
    fake_end_open(&end, "fake0", 1);
    join(&end, fd);
    for (uint64_t i = 0; i < 20; i++) {
        CHECK(recv(fd, &ready, 1, MSG_WAITALL) == 1);
        fake_work_init(&work, &end, i, 0, 0, 8);
        work.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        CHECK(fake_work_do(&work, &end) == IBV_WC_SUCCESS);
    }
    work.wr.opcode = IBV_WR_RDMA_WRITE;
    work.wr.wr.rdma.rkey ^= 1;
    CHECK(fake_work_do(&work, &end) == IBV_WC_REM_ACCESS_ERR);
    reap(child, 0);
    close(fd);
    fake_end_close(&end);
}

/* ---- the dead */
static void test_the_dead_answer_nothing(void)
{
    struct fake_end end;
    struct fake_work work;
    uint8_t ready;
    int fd;
    pid_t child = spawn(&fd, "idle");
    fake_end_open(&end, "fake0", 1);
    join(&end, fd);
    CHECK(recv(fd, &ready, 1, MSG_WAITALL) == 1);
    CHECK(kill(child, SIGKILL) == 0);
    siginfo_t info;
    CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0); /* dead, and not waited for */
    fake_work_init(&work, &end, 1, 0, 0, 8);
    CHECK(fake_work_do(&work, &end) == IBV_WC_RETRY_EXC_ERR);
    reap(child, SIGKILL);
    close(fd);
    fake_end_close(&end);
}

/* Writes with a number in each immediate, and atomics, as fast as it can. */
static void hammer(struct fake_end *end, int fd)
{
    struct fake_work work;
    (void)fd;
    for (uint32_t i = 0;; i++) {
        fake_work_init(&work, end, i, 0, 4096, 2000);
        work.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, work.wr.imm_data = i;
        CHECK(fake_work_do(&work, end) == IBV_WC_SUCCESS);
        fetch_add(end, 1);
    }
}

/* Takes what comes, and gives each receive back, until nothing has come for a while. */
static uint32_t take(struct fake_end *end, uint32_t most)
{
    struct ibv_wc wc;
    uint32_t next = 0;
    uint64_t until = tn_now() + UINT64_C(60000000000);
    while (next < most) {
        CHECK(tn_now() < until);
        if (end->context->ops.poll_cq(end->cq, 1, &wc) == 0) {
            sched_yield();
            continue;
        }
        CHECK(wc.status == IBV_WC_SUCCESS && wc.imm_data == next); /* each once, in order */
        CHECK(fake_end_receive(end, 0, 0, 0) == 0);
        next++;
    }
    return next;
}

/* At the end each posted receive has come back once, and each number was seen once: whatever the
 * dead one was about to do is done or not, never half. */
static void settle(struct fake_end *end, uint32_t next)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK(end->lib->modify_qp(end->qp, &attr, IBV_QP_STATE) == 0);
    for (unsigned i = 0; i < FAKE_END_DEPTH; i++) {
        struct ibv_wc wc = fake_end_wait(end);
        if (wc.status == IBV_WC_SUCCESS)
            CHECK(wc.imm_data == next++);
        else
            CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
    }
    struct ibv_wc more;
    CHECK(end->context->ops.poll_cq(end->cq, 1, &more) == 0);
    uint64_t added;
    memcpy(&added, end->memory + WORDS, 8);
    CHECK(added <= next && added + 1 >= next);
}

static void test_killed_at_any_moment(void)
{
    struct fake_end end;
    int rounds = slow ? 5 : ROUNDS;
    fake_end_open(&end, "fake0", 1);
    for (int round = 0; round < rounds; round++) {
        int fd;
        memset(end.memory + WORDS, 0, 8);
        pid_t child = spawn(&fd, "hammer");
        fake_end_qp_open(&end);
        for (unsigned i = 0; i < FAKE_END_DEPTH; i++)
            CHECK(fake_end_receive(&end, 0, 0, 0) == 0);
        talk(fd, &end.ours, &end.theirs, sizeof(end.ours));
        fake_end_connect(&end);
        char ready = 'r';
        talk(fd, &ready, &ready, 1);
        uint32_t seen = take(&end, 20u + (unsigned)(round * 7 % 31));
        CHECK(kill(child, SIGKILL) == 0);
        reap(child, SIGKILL);
        close(fd);
        settle(&end, seen);
        fake_end_qp_close(&end);
        struct ibv_mr *mr = end.lib->reg_mr(end.pd, end.memory, 4096, 0);
        CHECK(mr && end.lib->dereg_mr(mr) == 0); /* waits for nobody who is dead */
    }
    fake_end_close(&end);
}

/* More processes, one after another, than live ones have room. */
static void no_play(struct fake_end *end, int fd)
{
    (void)end;
    until_closed(fd);
}

static void test_places_of_the_dead_are_used_again(void)
{
    struct fake_end end;
    fake_end_open(&end, "fake0", 1);
    for (int i = 0; i < (slow ? 5 : 100); i++) {
        struct fake_work work;
        int fd;
        pid_t child = spawn(&fd, "no_play");
        join(&end, fd);
        fake_work_init(&work, &end, 1, 0, 0, 8);
        CHECK(fake_work_do(&work, &end) == IBV_WC_SUCCESS);
        if (i % 2)
            CHECK(kill(child, SIGKILL) == 0);
        close(fd);
        reap(child, i % 2 ? SIGKILL : 0);
        fake_end_qp_close(&end);
    }
    fake_end_close(&end);
}

static void play_part(const char *name, int fd)
{
    static const struct {
        const char *name;
        void (*play)(struct fake_end *end, int fd);
    } parts[] = {{"idle", idle}, {"sleeper", sleeper}, {"hammer", hammer}, {"no_play", no_play}};
    struct fake_end end;
    fake_end_open(&end, "fake0", 1);
    join(&end, fd);
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        if (strcmp(name, parts[i].name) == 0)
            parts[i].play(&end, fd);
    fake_end_close(&end);
}

/* A child that inherits an opened double is a process of its own in it. */
static void test_forked_with_the_double_open(void)
{
    struct fake_end end;
    struct fake_work work;
    int fds[2];
    fake_end_open(&end, "fake0", 1);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    close(fds[child ? 1 : 0]);
    if (!child) {
        play_part("no_play", fds[1]);
        _exit(0);
    }
    join(&end, fds[0]);
    CHECK(end.ours.qp != end.theirs.qp);
    memset(end.memory, 7, 8);
    fake_work_init(&work, &end, 1, 0, 64, 8);
    CHECK(fake_work_do(&work, &end) == IBV_WC_SUCCESS && end.memory[64] == 0);
    close(fds[0]);
    reap(child, 0);
    fake_end_close(&end);
}

static void make_fabric(void)
{
    const char *folder = getenv("TMPDIR");
    snprintf(fabric, sizeof(fabric), "%.40s/fabric-XXXXXX", folder ? folder : "/tmp");
    int file = mkstemp(fabric);
    CHECK(file >= 0 && setenv("FAKEVERBS_FABRIC", fabric, 1) == 0);
    close(file);
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (getenv("TN_EMULATED")) {
        puts("skipped: the emulator cannot copy between processes");
        return 77;
    }
    if (argc == 3) {
        play_part(argv[1], atoi(argv[2]));
        return 0;
    }
    const char *variant = getenv("TN_VARIANT");
    bool follows_no_fork = variant && strcmp(variant, "tsan") == 0; /* of several threads */
    slow = follows_no_fork || getenv("TN_SLOW");
    make_fabric();
    if (!fake_verbs_load())
        return 77;
    test_one_that_stands_still_is_served();
    test_a_sleeper_is_woken();
    test_the_dead_answer_nothing();
    test_killed_at_any_moment();
    test_places_of_the_dead_are_used_again();
    if (!follows_no_fork)
        test_forked_with_the_double_open();
    unlink(fabric);
    return 0;
}
