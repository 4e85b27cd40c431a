/* Short messages among the processes of one machine. Mirrors native/include/transport/board.h. */
#define TN_BOARD_MESSAGE ...
#define TN_BOARD_RANKS ...

struct tn_board;
uint64_t tn_board_bytes(uint32_t ranks);
int tn_board_open(void *own, uint32_t rank, uint32_t ranks, struct tn_board **out);
int tn_board_attach(struct tn_board *board, uint32_t rank, const void *theirs);
int tn_board_post(struct tn_board *board, uint64_t to, const void *bytes, uint32_t length,
                  uint64_t *missed);
int tn_board_take(struct tn_board *board, uint32_t *rank, void *bytes, uint32_t *length);
int tn_board_wait(struct tn_board *board, uint64_t timeout_ns);
void tn_board_close(struct tn_board *board);
