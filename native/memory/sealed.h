/* Memory of fixed size that can be handed to other processes as a descriptor. */
#ifndef TN_MEMORY_SEALED_H
#define TN_MEMORY_SEALED_H

#include <stdbool.h>
#include <stdint.h>

struct tn_sealed {
    void *address;  /* mapped for reading and writing here */
    uint64_t bytes; /* a multiple of the page size */
    int fd;         /* readable and writable: never leaves as it is unless peers may write */
};

/* Zeroed memory, sealed against resizing. Unless `peers_write`, it is also sealed so that nobody
 * who holds a descriptor can write to it or map it for writing: a read-only descriptor alone does
 * not do that, since /proc/self/fd re-opens it. */
int tn_sealed_open(const char *name, uint64_t bytes, bool peers_write, struct tn_sealed *out);
/* As above; `huge`: enum tn_huge_pages. */
int tn_sealed_open_with(const char *name, uint64_t bytes, bool peers_write, uint32_t huge,
                        struct tn_sealed *out);
void tn_sealed_close(struct tn_sealed *sealed);

/* A new descriptor of the same memory that can only read. */
int tn_sealed_reader(const struct tn_sealed *sealed);

#endif
