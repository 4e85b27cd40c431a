/* Devices, which of them this process sees, and contexts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fakes/fakegpu/fakegpu.h"

struct fake_device fake_devices[FAKE_DEVICES];
static int seen[FAKE_DEVICES], n_seen;
static bool initialized;
static FAKE_LOCAL int current = -1;

/* The lock is held. Names and addresses as at the beginning. */
void fake_devices_reset(void)
{
    for (int i = 0; i < FAKE_DEVICES; i++) {
        struct fake_device *device = &fake_devices[i];
        snprintf(device->name, sizeof(device->name), "Fake GPU %d", i);
        snprintf(device->pci, sizeof(device->pci), "0000:%02X:00.0", 0x1b + 0x10 * i);
        memset(&device->uuid, 0xf0 + i, sizeof(device->uuid));
        device->error = 0;
    }
}

static void uuid_text(const struct fake_device *device, char out[64])
{
    const unsigned char *b = (const unsigned char *)device->uuid.bytes;
    snprintf(out, 64, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

/* A number, or the beginning of a uuid; -1 ends the list as it does in CUDA. */
static int by_name(const char *word)
{
    char *end, text[64];
    long number = strtol(word, &end, 10);
    if (!*end && *word)
        return number >= 0 && number < fake.devices ? (int)number : -1;
    for (int i = 0; i < fake.devices; i++) {
        uuid_text(&fake_devices[i], text);
        if (strncmp(text, word, strlen(word)) == 0)
            return i;
    }
    return -1;
}

/* The lock is held. */
static void look(void)
{
    const char *list = NULL;
    for (int i = 0; i < 3 && !list && fake_front.visible[i]; i++)
        list = getenv(fake_front.visible[i]);
    n_seen = 0;
    if (!list) {
        for (int i = 0; i < fake.devices && i < FAKE_DEVICES; i++)
            seen[n_seen++] = i;
        return;
    }
    char *words = strdup(list), *rest = words, *word;
    while ((word = strtok_r(rest, ", ", &rest)) && n_seen < FAKE_DEVICES) {
        int device = by_name(word);
        if (device < 0)
            break;
        seen[n_seen++] = device;
    }
    free(words);
}

bool fake_is_initialized(void)
{
    return initialized;
}

int fake_init(void)
{
    pthread_mutex_lock(&fake_lock);
    look(); /* again at every call: a test may have changed what is there */
    initialized = n_seen > 0;
    pthread_mutex_unlock(&fake_lock);
    return initialized ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

int fake_device_count(int *count)
{
    *count = n_seen;
    return n_seen ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

struct fake_device *fake_device(int ordinal)
{
    return ordinal >= 0 && ordinal < n_seen ? &fake_devices[seen[ordinal]] : NULL;
}

int fake_device_number(const struct fake_device *device)
{
    return (int)(device - fake_devices);
}

/* ---- contexts */
int fake_current(void)
{
    return current < 0 && fake_front.starts_by_itself ? 0 : current;
}

void fake_make_current(int ordinal)
{
    current = ordinal;
}

/* Its address is what a program sees. */
void *fake_context(int ordinal)
{
    return ordinal < 0 ? NULL : (void *)fake_device(ordinal);
}

int fake_context_ordinal(void *context)
{
    for (int i = 0; i < n_seen; i++)
        if (fake_device(i) == context)
            return i;
    return -1;
}

int fake_enable_peer(int peer)
{
    struct fake_device *device = fake_device(fake_current()), *other = fake_device(peer);
    if (!device || !other)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (other == device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!fake.peers)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    pthread_mutex_lock(&fake_lock);
    unsigned bit = 1u << fake_device_number(other);
    bool before = device->peers & bit;
    device->peers |= bit;
    fake.peer_links += !before;
    pthread_mutex_unlock(&fake_lock);
    return before ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}
