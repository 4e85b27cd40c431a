/* What the kernel says of runnable threads, read as it writes it. */
#include <unistd.h>

#include "engine/engine.h"
#include "tests/check.h"

int main(void)
{
    CHECK(tn_crowd_fits("0.00 0.01 0.05 1/200 1234\n", 2));
    CHECK(tn_crowd_fits("0.00 0.01 0.05 2/200 1234\n", 2));
    CHECK(!tn_crowd_fits("0.00 0.01 0.05 3/200 1234\n", 2));
    CHECK(!tn_crowd_fits("12.50 0.01 0.05 130/2000 1234\n", 128));
    CHECK(tn_crowd_fits("", 1) && tn_crowd_fits("9 9 9", 1) && tn_crowd_fits("9 9 9 9", 1));
    CHECK(tn_crowd_fits("9 9 9 x/3", 1));
    for (int i = 0; i < 1000; i++)
        tn_crowd_has_room(); /* no descriptor stays */
    int fd = dup(1);
    CHECK(fd >= 0 && fd < 100);
    close(fd);
    return 0;
}
