/* Settings, faults and counters by name, from $FAKENCCL or a test. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fakes/fakenccl/fakenccl.h"

struct fake_knobs fake;
pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;
static bool ready;

/* clang-format off */
#define K(field) {#field, offsetof(struct fake_knobs, field)}
static const struct { const char *name; size_t at; } knobs[] = {
    K(version), K(async_error), K(hang), K(hang_init), K(hang_launch), K(hang_abort), K(hang_finalize), K(silent),
    K(init_us), K(launch_us), K(delay_us), K(fail_code),
    K(comms), K(scales), K(registered), K(launches), K(aborts), K(revokes), K(running),
};
/* clang-format on */

struct tally {
    char name[48];
    long calls;
    bool fails, hidden;
};
static struct tally tallies[64];

static void refuse(const char *name, const char *why)
{
    fprintf(stderr, "fakenccl: %s: %s\n", name, why);
    abort(); /* a test that sets nothing would test nothing */
}

static struct tally *tally(const char *name)
{
    size_t i = 0;
    while (i < sizeof(tallies) / sizeof(*tallies) && tallies[i].name[0] &&
           strcmp(tallies[i].name, name) != 0)
        i++;
    if (i == sizeof(tallies) / sizeof(*tallies))
        refuse(name, "more functions than expected");
    if (!tallies[i].name[0])
        snprintf(tallies[i].name, sizeof(tallies[i].name), "%s", name);
    return &tallies[i];
}

static long *known(const char *name)
{
    if (strncmp(name, "calls.", 6) == 0)
        return &tally(name + 6)->calls;
    for (size_t i = 0; i < sizeof(knobs) / sizeof(*knobs); i++)
        if (strcmp(knobs[i].name, name) == 0)
            return (long *)(void *)((char *)&fake + knobs[i].at);
    refuse(name, "no such knob");
    return NULL;
}

static void set_text(const char *name, const char *text)
{
    char *end;
    long value = strtol(text, &end, 0);
    if (strcmp(name, "fail") == 0)
        tally(text)->fails = true;
    else if (strcmp(name, "hide") == 0)
        tally(text)->hidden = true;
    else if (*end || !*text)
        refuse(name, "a number is needed");
    else
        *known(name) = value;
}

/* The lock is held. Knobs as at the beginning: $FAKENCCL holds words "name=value". */
static void reset(void)
{
    struct fake_knobs kept = fake;
    fake = (struct fake_knobs){.version = 23203, .fail_code = ncclInternalError};
    fake.comms = kept.comms;
    fake.scales = kept.scales;
    fake.registered = kept.registered;
    fake.running = kept.running;
    memset(tallies, 0, sizeof(tallies));
    const char *settings = getenv("FAKENCCL");
    char *words = strdup(settings ? settings : ""), *rest = words, *word;
    while ((word = strtok_r(rest, " \n", &rest))) {
        char *equals = strchr(word, '=');
        if (!equals)
            refuse(word, "name=value is needed");
        *equals = 0;
        set_text(word, equals + 1);
    }
    free(words);
    ready = true;
    pthread_cond_broadcast(&fake_changed);
}

static void enter(void)
{
    pthread_mutex_lock(&fake_lock);
    if (!ready)
        reset();
}

bool fake_shows(const char *name, long since)
{
    enter();
    bool shown = fake.version >= since && !tally(name)->hidden;
    pthread_mutex_unlock(&fake_lock);
    return shown;
}

int fake_begin(const char *name)
{
    enter();
    struct tally *mine = tally(name);
    mine->calls++;
    int error = mine->fails ? (int)fake.fail_code : 0;
    pthread_mutex_unlock(&fake_lock);
    return error;
}

void fake_say(const char *format, ...)
{
    if (!getenv("FAKENCCL_DEBUG"))
        return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void fake_nap(long us)
{
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

long fakenccl_ctl(const char *name, long value)
{
    enter();
    long *knob = known(name), old = *knob;
    *knob = value;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    return old;
}

long fakenccl_get(const char *name)
{
    enter();
    long value = *known(name);
    pthread_mutex_unlock(&fake_lock);
    return value;
}

void fakenccl_set(const char *name, const char *text)
{
    enter();
    set_text(name, text);
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

void fakenccl_reset(void)
{
    enter();
    reset();
    pthread_mutex_unlock(&fake_lock);
}
