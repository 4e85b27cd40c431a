/* A process's life as others see it: held while it runs, ended however it ends. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/life.h"
#include "tests/check.h"

static struct tn_life *life;

static void *hold(void *argument)
{
    tn_life_begin(life);
    close(*(int *)argument);
    for (;;)
        pause();
    return NULL;
}

/* A child whose second thread holds it, and which does `then` to itself. */
static pid_t child_that(void (*then)(void))
{
    int ends[2];
    char none;
    CHECK(!pipe(ends));
    tn_life_init(life);
    CHECK(tn_life_look(life) == TN_LIFE_UNTOLD);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pthread_t thread;
        close(ends[0]);
        CHECK(pthread_create(&thread, NULL, hold, &ends[1]) == 0);
        while (tn_life_look(life) != TN_LIFE_HELD)
            usleep(100);
        then();
        for (;;)
            pause();
    }
    close(ends[1]);
    CHECK(read(ends[0], &none, 1) == 0); /* closed once it is held */
    close(ends[0]);
    return child;
}

static void nothing(void)
{
}

static void leave(void)
{
    _exit(0);
}

static void become_another(void)
{
    execl("/bin/sleep", "sleep", "60", (char *)NULL);
    _exit(1);
}

static void await_end(void)
{
    for (int i = 0; i < 600000 && tn_life_look(life) == TN_LIFE_HELD; i++)
        usleep(100);
    CHECK(tn_life_look(life) == TN_LIFE_ENDED);
}

static void test_killed(void)
{
    pid_t child = child_that(nothing);
    CHECK(tn_life_look(life) == TN_LIFE_HELD);
    CHECK(kill(child, SIGKILL) == 0);
    siginfo_t ended;
    CHECK(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT) ==
          0); /* its pid is still its own */
    CHECK(tn_life_look(life) == TN_LIFE_ENDED);
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(tn_life_look(life) == TN_LIFE_ENDED);
}

static void test_exits(void)
{
    pid_t child = child_that(leave);
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(tn_life_look(life) == TN_LIFE_ENDED);
}

static void test_becomes_another_program(void)
{
    pid_t child = child_that(become_another);
    await_end();
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static void test_ends_in_order(void)
{
    tn_life_init(life);
    tn_life_begin(life);
    CHECK(tn_life_look(life) == TN_LIFE_HELD);
    tn_life_end(life);
    CHECK(tn_life_look(life) == TN_LIFE_UNTOLD);
}

int main(void)
{
    void *list = NULL;
    size_t size;
    if (syscall(SYS_get_robust_list, 0, &list, &size) != 0 || !list)
        return 77; /* an emulator that does not pass it on */
    life = mmap(NULL, sizeof(*life), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(life != MAP_FAILED);
    test_killed();
    test_exits();
    test_becomes_another_program();
    test_ends_in_order();
    return 0;
}
