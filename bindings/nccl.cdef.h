/* Communicators of NCCL or RCCL, and marks in streams. Mirrors native/include/transport/nccl.h. */
#define TN_NCCL_ID_BYTES ...
struct tn_nccl_facts {
    bool rccl;
    int32_t version;
    char file[...], missing[...];
    ...;
};
int tn_nccl_library(bool rccl, const char *path, const struct tn_nccl_facts **out);
bool tn_nccl_loaded(bool rccl);
int tn_nccl_unique_id(uint8_t *out);

struct tn_nccl;
struct tn_mark;
int tn_nccl_open(int32_t device, int32_t ranks, int32_t rank, const uint8_t *id,
                 struct tn_nccl **out);
int tn_nccl_state(struct tn_nccl *comm);
int tn_nccl_shrink(struct tn_nccl *comm, const int32_t *left, uint32_t count, bool abort,
                   struct tn_nccl **out);
int tn_nccl_split(struct tn_nccl *comm, int32_t color, int32_t key, struct tn_nccl **out);
int tn_nccl_revoke(struct tn_nccl *comm);
int tn_nccl_abort(struct tn_nccl *comm);
int tn_nccl_finalize(struct tn_nccl *comm);
int tn_nccl_end(struct tn_nccl *comm);
void tn_nccl_free(struct tn_nccl *comm);

enum tn_nccl_kind {
    TN_NCCL_ALL_REDUCE = ...,
    TN_NCCL_BROADCAST = ...,
    TN_NCCL_REDUCE = ...,
    TN_NCCL_ALL_GATHER = ...,
    TN_NCCL_REDUCE_SCATTER = ...,
    TN_NCCL_SEND = ...,
    TN_NCCL_RECV = ...,
    TN_NCCL_COPY_BEFORE = ...,
    TN_NCCL_COPY_AFTER = ...,
};
struct tn_nccl_op {
    uint32_t kind;
    int32_t type, reduction;
    int32_t peer;
    uint64_t source, target, count;
    ...;
};
int tn_nccl_run(struct tn_nccl *comm, const struct tn_nccl_op *ops, uint32_t count, uint64_t stream,
                uint64_t until, struct tn_mark **out);
int tn_nccl_scale_open(struct tn_nccl *comm, const void *factor, int32_t type, int32_t *reduction);
int tn_nccl_scale_close(struct tn_nccl *comm, int32_t reduction);
int tn_nccl_enroll(struct tn_nccl *comm, uint64_t address, uint64_t bytes, void **handle);
int tn_nccl_expel(struct tn_nccl *comm, void *handle);

int tn_mark_open(int32_t device, uint64_t stream, struct tn_mark **out);
int tn_mark_passed(struct tn_mark *mark);
int tn_mark_wait_on(struct tn_mark *mark, uint64_t stream);
void tn_mark_close(struct tn_mark *mark);
