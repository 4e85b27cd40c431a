/* What the two ends of a staged link tell each other over the peer's stream. Either may begin
 * transfers: it (the mover) works, and its peer (the owner) copies between its GPU and slots of
 * pinned memory when it is asked to. The mover reads and writes those slots as any other region,
 * and says which is used for what.
 *
 *   mover                           owner
 *   OPEN                     --->   pins memory, once
 *                            <---   SLOTS a region of TN_STAGED_SLOTS slots; or REFUSE why
 *   FETCH slot, rows         --->   copies rows of a region into the slot, one behind the other
 *                            <---   DONE
 *   (reads the slot)
 *   (writes the slot)
 *   STORE slot, rows         --->   copies the slot into rows of a region
 *                            <---   DONE
 *
 * One FETCH or STORE of a slot is under way at a time. Integers are little-endian, as those of all
 * machines are that this library runs on. */
#ifndef TN_PROVIDERS_STAGED_MESSAGE_H
#define TN_PROVIDERS_STAGED_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "transport_native.h"

enum tn_staged_type {
    TN_STAGED_OPEN = 1,
    TN_STAGED_SLOTS_ARE,
    TN_STAGED_REFUSE,
    TN_STAGED_FETCH,
    TN_STAGED_STORE,
    TN_STAGED_DONE,
};

#define TN_STAGED_SLOTS 8
#define TN_STAGED_MOST_BYTES (UINT64_C(64) << 20) /* of a slot */

struct tn_staged_head {
    uint32_t type; /* enum tn_staged_type */
    uint32_t slot;
};

struct tn_staged_slots {
    struct tn_staged_head head;
    struct tn_remote region; /* its length is a multiple of TN_STAGED_SLOTS */
};

struct tn_staged_row {
    uint64_t offset, length; /* in the region */
};

struct tn_staged_work {
    struct tn_staged_head head;
    uint64_t number, generation; /* of the region */
    uint8_t key[TN_KEY_BYTES];
    uint32_t count;
    uint32_t
        first; /* 1: of this transfer; the owner looks whether the memory is still the region's */
    struct tn_staged_row rows[];
};

/* REFUSE, DONE */
struct tn_staged_answer {
    struct tn_staged_head head;
    int32_t status, error;
    char text[192];
};

#define TN_STAGED_ROWS \
    ((TN_MAX_LINK_MESSAGE - sizeof(struct tn_staged_work)) / sizeof(struct tn_staged_row))

/* Whether it is a whole message of a known type, whose numbers are in range. */
bool tn_staged_message_check(const void *bytes, size_t length);
/* All bytes of the rows; checked before. */
uint64_t tn_staged_work_bytes(const struct tn_staged_work *work);

#endif
