#include "dl/dl.h"

#include <dlfcn.h>
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
