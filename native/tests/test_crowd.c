/* What the kernel says of runnable threads, read as it writes it. */
#include <stdio.h>
#include <unistd.h>

#include "base/sys.h"
#include "engine/engine.h"
#include "tests/check.h"

static void runnable(const struct tn_crowd *crowd, const char *count)
{
    char text[64];
    int length = snprintf(text, sizeof(text), "0.00 0.01 0.05 %s/200 1234\n", count);
    CHECK(pwrite(crowd->fd, text, (size_t)length, 0) == length);
}

/* One look that finds no room ends nobody's copying, a second one does; who has not begun does not
 * begin. */
static void test_manners(void)
{
    struct tn_crowd crowd = {.fd = tn_sys_memfd("loadavg"), .processors = 2};
    struct tn_manners manners = {0};
    runnable(&crowd, "3");
    CHECK(!tn_crowd_lets(&crowd, &manners) && !tn_crowd_lets(&crowd, &manners));
    runnable(&crowd, "2");
    CHECK(tn_crowd_lets(&crowd, &manners));
    runnable(&crowd, "3");
    usleep(1000);
    CHECK(tn_crowd_lets(&crowd, &manners) && !tn_crowd_lets(&crowd, &manners));
    CHECK(!tn_crowd_lets(&crowd, &manners));
    runnable(&crowd, "2");
    CHECK(tn_crowd_lets(&crowd, &manners));
    usleep(1000);
    runnable(&crowd, "3");
    CHECK(tn_crowd_lets(&crowd, &manners));
    runnable(&crowd, "2");
    CHECK(tn_crowd_lets(&crowd, &manners) && tn_crowd_lets(&crowd, &manners));
    tn_crowd_close(&crowd);
}

int main(void)
{
    test_manners();
    CHECK(tn_crowd_fits("0.00 0.01 0.05 1/200 1234\n", 2));
    CHECK(tn_crowd_fits("0.00 0.01 0.05 2/200 1234\n", 2));
    CHECK(!tn_crowd_fits("0.00 0.01 0.05 3/200 1234\n", 2));
    CHECK(!tn_crowd_fits("12.50 0.01 0.05 130/2000 1234\n", 128));
    CHECK(tn_crowd_fits("", 1) && tn_crowd_fits("9 9 9", 1) && tn_crowd_fits("9 9 9 9", 1));
    CHECK(tn_crowd_fits("9 9 9 x/3", 1));
    struct tn_crowd crowd;
    for (int i = 0; i < 1000; i++) {
        tn_crowd_open(&crowd);
        tn_crowd_has_room(&crowd, 0);
        tn_crowd_close(&crowd); /* no descriptor stays */
    }
    CHECK(tn_crowd_has_room(&crowd, 0));
    int fd = dup(1);
    CHECK(fd >= 0 && fd < 100);
    close(fd);
    return 0;
}
