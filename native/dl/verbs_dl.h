/* libibverbs as a table of functions, opened at first use. */
#ifndef TN_DL_VERBS_DL_H
#define TN_DL_VERBS_DL_H

#include "abi/verbs.h"

/* X(required or optional, result, name without ibv_, arguments) */
/* clang-format off */
#define TN_VERBS_SYMBOLS(X) \
    X(required, struct ibv_device **, get_device_list, (int *count)) \
    X(required, void, free_device_list, (struct ibv_device **list)) \
    X(required, const char *, get_device_name, (struct ibv_device *device)) \
    X(required, struct ibv_context *, open_device, (struct ibv_device *device)) \
    X(required, int, close_device, (struct ibv_context *context)) \
    X(required, int, query_device, (struct ibv_context *context, struct ibv_device_attr *attr)) \
    X(required, int, query_port, \
      (struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)) \
    X(required, int, query_gid, \
      (struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)) \
    X(optional, int, query_pkey, \
      (struct ibv_context *context, uint8_t port, int index, uint16_t *pkey)) \
    X(required, struct ibv_pd *, alloc_pd, (struct ibv_context *context)) \
    X(required, int, dealloc_pd, (struct ibv_pd *pd)) \
    X(required, struct ibv_mr *, reg_mr, \
      (struct ibv_pd *pd, void *address, size_t length, int access)) \
    X(required, int, dereg_mr, (struct ibv_mr *mr)) \
    X(required, struct ibv_comp_channel *, create_comp_channel, (struct ibv_context *context)) \
    X(required, int, destroy_comp_channel, (struct ibv_comp_channel *channel)) \
    X(required, struct ibv_cq *, create_cq, \
      (struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, \
       int vector)) \
    X(required, int, destroy_cq, (struct ibv_cq *cq)) \
    X(required, int, get_cq_event, \
      (struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)) \
    X(required, void, ack_cq_events, (struct ibv_cq *cq, unsigned int events)) \
    X(required, struct ibv_qp *, create_qp, (struct ibv_pd *pd, struct ibv_qp_init_attr *attr)) \
    X(required, int, modify_qp, (struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)) \
    X(required, int, destroy_qp, (struct ibv_qp *qp)) \
    X(optional, int, query_qp, \
      (struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)) \
    X(optional, int, get_async_event, \
      (struct ibv_context *context, struct ibv_async_event *event)) \
    X(optional, void, ack_async_event, (struct ibv_async_event *event)) \
    X(optional, int, fork_init, (void)) \
    X(optional, enum ibv_fork_status, is_fork_initialized, (void)) \
    X(optional, struct ibv_mr *, reg_mr_iova2, \
      (struct ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned int access)) \
    X(optional, struct ibv_mr *, reg_dmabuf_mr, \
      (struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access))
/* clang-format on */

struct tn_verbs_lib {
#define TN_VERBS_FIELD(need, result, name, arguments) result(*name) arguments;
    TN_VERBS_SYMBOLS(TN_VERBS_FIELD)
#undef TN_VERBS_FIELD
};

/* `path` NULL or "": libibverbs.so.1. Loaded once per process and path; the table lives as long as
 * the process. TN_UNAVAILABLE with the reason and what to install. */
int tn_verbs_lib_open(const char *path, const struct tn_verbs_lib **out);
/* Before the first registration: makes fork() safe where the kernel does not do so by itself. Once
 * per library. A failure is a status with a text; RDMA works all the same as long as nobody forks.
 */
int tn_verbs_lib_protect_fork(const struct tn_verbs_lib *lib);
/* Number of devices, 0 too where the kernel has no RDMA support, or a negative status. `*out` is
 * NULL or to be released. */
int tn_verbs_lib_devices(const struct tn_verbs_lib *lib, struct ibv_device ***out);

#endif
