/* What of DLPack's stable ABI is produced here: https://dmlc.github.io/dlpack */
#ifndef TN_ABI_DLPACK_H
#define TN_ABI_DLPACK_H

#include <stddef.h>
#include <stdint.h>

struct tn_dl_tensor { /* DLTensor */
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

struct tn_dl_managed { /* DLManagedTensor */
    struct tn_dl_tensor tensor;
    void *manager_ctx;
    void (*deleter)(struct tn_dl_managed *self);
};

_Static_assert(offsetof(struct tn_dl_tensor, ndim) == 16, "DLTensor");
_Static_assert(offsetof(struct tn_dl_tensor, shape) == 24, "DLTensor");
_Static_assert(sizeof(struct tn_dl_tensor) == 48, "DLTensor");
_Static_assert(sizeof(struct tn_dl_managed) == 64, "DLManagedTensor");

#endif
