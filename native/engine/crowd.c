/* Whether a thread more would find a processor idle. Where all are busy a second thread for one
 * copy gains nothing and takes turns with the first, or with another process's only one, in slices
 * of milliseconds. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"

/* The fourth field of /proc/loadavg (proc(5)): runnable threads, the reader's own among them, and
 * all that there are. Nothing that could be read means room. */
bool tn_crowd_fits(const char *loadavg, long processors)
{
    const char *field = loadavg;
    for (int i = 0; i < 3 && field; i++) {
        field = strchr(field, ' ');
        field = field ? field + 1 : NULL;
    }
    char *end;
    long runnable = field ? strtol(field, &end, 10) : 0;
    return !field || *end != '/' || runnable <= processors;
}

bool tn_crowd_has_room(void)
{
    char text[128] = "";
    int fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    return length <= 0 || tn_crowd_fits(text, sysconf(_SC_NPROCESSORS_ONLN));
}
