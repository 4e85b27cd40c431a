#include "dl/nccl_dl.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "dl/dl.h"

enum { optional = false, required = true };

static const struct tn_dl_symbol symbols[] = {
#define TN_NCCL_ENTRY(need, result, field, name, arguments) \
    {name, offsetof(struct tn_nccl_lib, field), need},
    TN_NCCL_SYMBOLS(TN_NCCL_ENTRY)
#undef TN_NCCL_ENTRY
};
enum { SYMBOLS = sizeof(symbols) / sizeof(*symbols) };

static const char *const nccl_names[] = {"libnccl.so.2", "libnccl.so", NULL};
static const char *const rccl_names[] = {"librccl.so.1", "librccl.so", NULL};

const char *tn_nccl_lib_name(size_t offset)
{
    for (size_t i = 0; i < SYMBOLS; i++)
        if (symbols[i].offset == offset)
            return symbols[i].name;
    return "";
}

/* Plug-ins of NCCL are called libnccl-net.so and the like. */
static void *loaded(bool rccl)
{
    return tn_dl_loaded(rccl ? "librccl.so" : "libnccl.so");
}

bool tn_nccl_lib_loaded(bool rccl)
{
    return loaded(rccl) != NULL;
}

static void note_missing(struct tn_nccl_lib *lib)
{
    for (size_t i = 0; i < SYMBOLS; i++) {
        const void *found;
        memcpy(&found, (const char *)lib + symbols[i].offset, sizeof(found));
        size_t used = strlen(lib->missing);
        if (!found)
            snprintf(lib->missing + used, sizeof(lib->missing) - used, "%s%s", used ? " " : "",
                     symbols[i].name);
    }
}

int tn_nccl_lib_open(bool rccl, const char *path, struct tn_nccl_lib *out)
{
    const char *only[] = {path, NULL};
    void *library = *path ? NULL : loaded(rccl);
    int status = library ? TN_OK
                         : tn_dl_open(*path  ? only
                                      : rccl ? rccl_names
                                             : nccl_names,
                                      &library);
    if (status != TN_OK)
        return status;
    struct tn_nccl_lib lib = {.rccl = rccl};
    tn_dl_file(library, "ncclGetVersion", lib.file, sizeof(lib.file));
    if (!*lib.file) /* it has not even that: it is called as it was asked for */
        snprintf(lib.file, sizeof(lib.file), "%s",
                 *path  ? path
                 : rccl ? rccl_names[0]
                        : nccl_names[0]);
    status = tn_dl_resolve(library, lib.file, symbols, SYMBOLS, &lib);
    if (status != TN_OK)
        return status;
    note_missing(&lib);
    *out = lib;
    return TN_OK;
}
