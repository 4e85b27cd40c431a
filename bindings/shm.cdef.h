/* What two engines on one host exchange before they share memory. Mirrors
 * native/include/transport_native.h. */
struct tn_shm_connection;
struct tn_shm_offer {
    uint64_t token_address;
    uint8_t token[...];
    uint64_t directory_bytes;
    ...;
};
int tn_shm_connection_open(struct tn_engine *engine, struct tn_shm_connection **out);
int tn_shm_connection_offer(struct tn_shm_connection *connection, struct tn_shm_offer *offer,
                            int fds[2]);
int tn_shm_connection_accept(struct tn_shm_connection *connection, int pid,
                             const struct tn_shm_offer *offer, const int fds[2]);
int tn_shm_connection_process_vm(struct tn_shm_connection *connection, char *text, size_t capacity);
int tn_shm_connection_attach(struct tn_shm_connection *connection, struct tn_peer *peer);
void tn_shm_connection_close(struct tn_shm_connection *connection);
