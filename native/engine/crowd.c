/* Whether a thread more would find a processor idle. Where all are busy a second thread for one
 * copy gains nothing and takes turns with the first, or with another process's only one, in slices
 * of milliseconds. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"

#define BETWEEN_LOOKS_NS 400000u

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

/* To open the file, and to count the processors, takes ten times as long as to read it. */
void tn_crowd_open(struct tn_crowd *crowd)
{
    crowd->fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    crowd->processors = sysconf(_SC_NPROCESSORS_ONLN);
}

bool tn_crowd_has_room(const struct tn_crowd *crowd, long threads)
{
    char text[128] = "";
    ssize_t length = crowd->fd < 0 ? 0 : pread(crowd->fd, text, sizeof(text) - 1, 0);
    return length <= 0 || tn_crowd_fits(text, crowd->processors - threads);
}

/* One look finds what runs for a few us as well. Who has begun goes on until a second look, a
 * chunk later, finds no room either. */
bool tn_crowd_lets(const struct tn_crowd *crowd, struct tn_manners *manners)
{
    uint64_t now = tn_now();
    if (now < manners->look_at && !manners->doubt)
        return true;
    bool room = tn_crowd_has_room(crowd, 0);
    manners->doubt = !room && manners->look_at && !manners->doubt;
    manners->look_at = room || manners->doubt ? now + BETWEEN_LOOKS_NS : 0;
    return room || manners->doubt;
}

void tn_crowd_close(struct tn_crowd *crowd)
{
    if (crowd->fd >= 0)
        close(crowd->fd);
    crowd->fd = -1;
}
