#include "base/fork.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/status.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int *guarded;
static size_t count, capacity;
static uint32_t generation;

/* fork() runs while nobody changes the list, so that the child finds it whole. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    for (size_t i = 0; i < count; i++)
        close(guarded[i]);
    count = 0;
    generation++;
    pthread_mutex_unlock(&lock);
}

static void register_handlers(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

static int make_room(void)
{
    if (count < capacity)
        return TN_OK;
    size_t larger = capacity ? 2 * capacity : 64;
    int *moved = realloc(guarded, larger * sizeof(*moved));
    if (!moved)
        return tn_fail(TN_NOMEM, "no memory to remember %zu descriptors", larger);
    guarded = moved;
    capacity = larger;
    return TN_OK;
}

int tn_fork_guard(int fd)
{
    pthread_once(&once, register_handlers);
    pthread_mutex_lock(&lock);
    int status = make_room();
    if (status == TN_OK)
        guarded[count++] = fd;
    pthread_mutex_unlock(&lock);
    return status;
}

uint32_t tn_fork_generation(void)
{
    pthread_once(&once, register_handlers);
    return generation;
}

void tn_fork_forget(int fd)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        if (guarded[i] == fd) {
            guarded[i] = guarded[--count];
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}
