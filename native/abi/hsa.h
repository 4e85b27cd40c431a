/* Of the HSA runtime: statuses of the functions that make a dma-buf of AMD's device memory. */
#ifndef TN_ABI_HSA_H
#define TN_ABI_HSA_H

enum {
    HSA_STATUS_SUCCESS = 0,
    HSA_STATUS_ERROR_OUT_OF_RESOURCES = 0x1008, /* hsa_init's without /dev/kfd */
    HSA_STATUS_ERROR_NOT_INITIALIZED = 0x100b,
};

#endif
