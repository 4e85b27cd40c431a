/* Two ends in this process, joined over the software double of libibverbs, and its knobs. */
#ifndef TN_TESTS_VERBS_PAIR_H
#define TN_TESTS_VERBS_PAIR_H

#include "tests/verbs_end.h"

/* Sets a knob of the double, or reads a counter without changing it. */
long double_set(const char *name, long value);
long double_get(const char *name);
void double_text(const char *name, const char *text); /* a knob that is no number */
/* The access flags of a registration by its key, -1: none. */
long double_access(uint32_t key);
/* NULL, after saying why, where the double is not built: the test is skipped. */
const char *double_open(void);

void verbs_pair_open(struct end *a, struct end *b, size_t bytes);
void verbs_pair_open_shaped(struct end *a, struct end *b, size_t bytes, struct end_shape shape);
/* The steps of that: engines with memory that know of each other; then, when both have accepted, a
 * connection. */
void verbs_pair_meet(struct end *a, struct end *b, size_t bytes, struct end_shape shape);
void verbs_pair_up(struct end *a, struct end *b);
/* Closes both and checks that the double has nothing left. */
void verbs_pair_close(struct end *a, struct end *b);

/* One transfer from a region of `end` to any remote region, with its key table. */
struct tn_transfer *verbs_pair_move(struct end *end, uint32_t op, struct tn_region *local,
                                    uint64_t local_offset, struct tn_region *remote,
                                    uint64_t remote_offset, uint64_t length);

unsigned long open_descriptors(void);
unsigned long mapped_ranges(void);

#endif
