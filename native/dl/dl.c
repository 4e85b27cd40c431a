#define _GNU_SOURCE /* dladdr, dl_iterate_phdr */
#include "dl/dl.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

int tn_dl_open(const char *const *names, void **out)
{
    const char *reason = "no name given";
    for (; *names; names++) {
        dlerror();
        void *library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
        if (library) {
            *out = library;
            return TN_OK;
        }
        reason = dlerror();
    }
    return tn_fail(TN_UNAVAILABLE, "%s", reason ? reason : "the loader gave no reason");
}

struct search {
    const char *beginning;
    char path[4096];
};

static int look(struct dl_phdr_info *info, size_t bytes, void *context)
{
    (void)bytes;
    struct search *search = context;
    const char *slash = strrchr(info->dlpi_name, '/');
    if (!slash || strncmp(slash + 1, search->beginning, strlen(search->beginning)) != 0)
        return 0;
    snprintf(search->path, sizeof(search->path), "%s", info->dlpi_name);
    return 1;
}

void *tn_dl_loaded(const char *beginning)
{
    struct search search = {.beginning = beginning};
    if (!dl_iterate_phdr(look, &search))
        return NULL;
    return dlopen(search.path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
}

void tn_dl_file(void *library, const char *symbol, char *out, size_t bytes)
{
    Dl_info info;
    void *address = dlsym(library, symbol);
    bool known = address && dladdr(address, &info) && info.dli_fname;
    snprintf(out, bytes, "%s", known ? info.dli_fname : "");
}

int tn_dl_resolve(void *library, const char *library_name, const struct tn_dl_symbol *symbols,
                  size_t count, void *table)
{
    for (size_t i = 0; i < count; i++) {
        dlerror();
        void *address = dlsym(library, symbols[i].name);
        if (!address && symbols[i].required)
            return tn_fail(
                TN_UNAVAILABLE,
                "%s lacks the function %s: it is too old, or another library of that name",
                library_name, symbols[i].name);
        /* ISO C has no cast from object to function pointer; POSIX promises that the bytes are the
         * same. */
        memcpy((char *)table + symbols[i].offset, &address, sizeof(address));
    }
    return TN_OK;
}
