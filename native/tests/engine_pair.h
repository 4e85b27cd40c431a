/* Two whole engines in one process, joined by a socket pair. */
#ifndef TN_TESTS_ENGINE_PAIR_H
#define TN_TESTS_ENGINE_PAIR_H

#include <stddef.h>
#include <stdint.h>

#include "transport_native.h"

#define MIB (1024u * 1024u)
#define SECOND UINT64_C(1000000000)
#define LONG (60 * SECOND) /* a busy machine is slow; nothing should come near it */

struct side {
    struct tn_engine *engine;
    struct tn_peer *peer; /* the other side; its cookie is 11 at the first side, 22 at the second */
    uint8_t *memory;
    struct tn_region *region;
    struct tn_remote remote; /* of this side's memory */
};

struct tn_engine *pair_engine(uint8_t mark, uint32_t depth);
void pair_open_side(struct side *side, uint8_t mark, size_t bytes, uint32_t depth);
void pair_open_peer(struct side *side, uint8_t other); /* of the engine with that mark: 1 or 2 */
void pair_join(struct side *a, struct side *b, uint32_t depth); /* peers that are open come up */
void pair_open(struct side *a, struct side *b, size_t bytes, uint32_t depth);
void pair_close_side(struct side *side);

/* A transfer of the first bytes of `remote`; of `bytes` times `rows` bytes, all rows in the same
 * place. */
struct tn_transfer *pair_rows(struct side *from, const struct tn_remote *remote, uint32_t op,
                              void *local, uint64_t bytes, uint64_t rows);
struct tn_transfer *pair_start(struct side *from, const struct tn_remote *remote, uint32_t op,
                               void *local, uint64_t bytes, const char *notify, uint64_t deadline);
/* One that can be started; nothing has begun. */
struct tn_transfer *pair_prepare(struct side *from, const struct tn_remote *remote, uint32_t op,
                                 void *local, uint64_t bytes, const char *notify);
void pair_finish(struct tn_transfer *transfer, int expected);
int pair_next_event(struct tn_engine *engine, struct tn_event *event, void *buffer);

#endif
