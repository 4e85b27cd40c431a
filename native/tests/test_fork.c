/* A forked child keeps none of the guarded descriptors, and all of the others. */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fork.h"
#include "check.h"

static int status_in_child(const int *fds, int count)
{
    pid_t child = fork();
    if (child == 0) {
        int open = 0;
        for (int i = 0; i < count; i++)
            open |= (fcntl(fds[i], F_GETFD) >= 0) << i;
        _exit(open);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_guarded_descriptors_stay_behind(void)
{
    int fds[4];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0 &&
          socketpair(AF_UNIX, SOCK_STREAM, 0, fds + 2) == 0);
    CHECK(tn_fork_guard(fds[0]) == TN_OK && tn_fork_guard(fds[1]) == TN_OK &&
          tn_fork_guard(fds[2]) == TN_OK);
    CHECK(status_in_child(fds, 4) == 8);
    tn_fork_forget(fds[1]);
    CHECK(status_in_child(fds, 4) == 8 + 2);
    for (int i = 0; i < 4; i++)
        CHECK(fcntl(fds[i], F_GETFD) >= 0); /* the parent keeps all */
    tn_fork_forget(fds[0]);
    tn_fork_forget(fds[2]);
    for (int i = 0; i < 4; i++)
        close(fds[i]);
}

static void test_many(void)
{
    for (int fd = 1000; fd < 2000; fd++)
        CHECK(tn_fork_guard(fd) == TN_OK); /* not open: closing them does nothing */
    for (int fd = 1000; fd < 2000; fd++)
        tn_fork_forget(fd);
    int end = 1;
    CHECK(status_in_child(&end, 1) == 1);
}

int main(void)
{
    test_guarded_descriptors_stay_behind();
    test_many();
    return 0;
}
