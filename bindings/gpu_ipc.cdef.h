
/* What two engines on one host exchange before GPUs copy between them. Mirrors
 * native/include/transport_native.h. */
struct tn_ipc_link;
int tn_ipc_link_open(struct tn_engine *engine, struct tn_ipc_link **out);
int tn_ipc_link_offer(struct tn_ipc_link *link, int *fd);
int tn_ipc_link_accept(struct tn_ipc_link *link, int pid, int fd);
int tn_ipc_link_attach(struct tn_ipc_link *link, struct tn_peer *peer);
void tn_ipc_link_close(struct tn_ipc_link *link);
