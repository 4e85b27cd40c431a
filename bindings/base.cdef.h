/* Constants, statuses, errors, time. Mirrors native/include/transport_native.h. */
#define TN_KEY_BYTES ...
#define TN_INCARNATION_BYTES ...
#define TN_MAX_RAILS ...
#define TN_MAX_KEYS ...
#define TN_MAX_NOTIFY ...
#define TN_MAX_CONTROL ...
#define TN_TEXT_BYTES ...
#define TN_NO_SEGMENT ...
#define TN_NO_DEADLINE ...

enum tn_status {
    TN_PENDING = ...,
    TN_OK = ...,
    TN_AGAIN = ...,
    TN_INVALID = ...,
    TN_UNAVAILABLE = ...,
    TN_NOMEM = ...,
    TN_SYSTEM = ...,
    TN_PEER_LOST = ...,
    TN_PEER_REFUSED = ...,
    TN_VERSION = ...,
    TN_REMOTE_ACCESS = ...,
    TN_STALE = ...,
    TN_DEADLINE = ...,
    TN_CANCELLED = ...,
    TN_PROTOCOL = ...,
    TN_CLOSED = ...,
    TN_VERBS = ...,
    TN_NO_PATH = ...,
    TN_FLUSHED = ...,
    TN_CUDA = ...,
    TN_HIP = ...,
    TN_NCCL = ...,
};
enum tn_access { TN_READ = ..., TN_WRITE = ... };
enum tn_op { TN_OP_READ = ..., TN_OP_WRITE = ... };
enum tn_provider_id {
    TN_PROVIDER_SHM = ...,
    TN_PROVIDER_VERBS = ...,
    TN_PROVIDER_TCP = ...,
    TN_PROVIDER_GPU_IPC = ...,
    TN_PROVIDER_STAGED = ...,
    TN_PROVIDER_FIRST_FOREIGN = ...,
    TN_MAX_PROVIDERS = ...,
};

struct tn_engine;
struct tn_peer;
struct tn_transfer;
struct tn_queue;

const char *tn_version(void);
const char *tn_last_error(void);
int tn_last_errno(void);
const char *tn_status_name(int status);
uint64_t tn_now(void);
