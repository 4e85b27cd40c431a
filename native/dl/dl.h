/* Opens foreign libraries at run time and fills function tables from them. A library stays loaded
 * for the life of the process: closing one that started threads or registered handlers is not safe.
 */
#ifndef TN_DL_DL_H
#define TN_DL_DL_H

#include <stdbool.h>
#include <stddef.h>

struct tn_dl_symbol {
    const char *name;
    size_t offset; /* of the function pointer in the table */
    bool required;
};

/* `names` ends with NULL and is tried in order, symbols bound now and kept out of the global scope.
 * TN_UNAVAILABLE with the loader's reason for the last one. */
int tn_dl_open(const char *const *names, void **out);
/* A library that this process has loaded and whose file name begins so, whoever loaded it and from
 * where; NULL: there is none. */
void *tn_dl_loaded(const char *beginning);
/* The file that a library's symbol comes from; "" if unknown. */
void tn_dl_file(void *library, const char *symbol, char *out, size_t bytes);
/* Absent optional symbols stay NULL; an absent required one is TN_UNAVAILABLE and named. */
int tn_dl_resolve(void *library, const char *library_name, const struct tn_dl_symbol *symbols,
                  size_t count, void *table);

#endif
