
/* GPU memory by way of pinned host memory. Mirrors native/include/transport_native.h. */
struct tn_staged_link;
int tn_staged_link_open(struct tn_engine *engine, struct tn_staged_link **out);
int tn_staged_link_attach(struct tn_staged_link *link, struct tn_peer *peer);
void tn_staged_link_close(struct tn_staged_link *link);
