/* Short messages among the processes of one machine, through memory that each owns and all others
 * map read-only. To say something is a copy, and a system call only where somebody sleeps. */
#ifndef TRANSPORT_BOARD_H
#define TRANSPORT_BOARD_H

#include <stdint.h>

#include "transport/status.h"

#define TN_BOARD_MESSAGE 1008u /* bytes of a message at most */
#define TN_BOARD_RANKS 64u

struct tn_board;
uint64_t tn_board_bytes(uint32_t ranks); /* of the memory of each, aligned to 64 */
/* `own` is cleared; it stays until tn_board_close. Not to be shown to others before. */
int tn_board_open(void *own, uint32_t rank, uint32_t ranks, struct tn_board **out);
/* From now on what that rank says is heard; its memory, mapped here, stays until tn_board_close. */
int tn_board_attach(struct tn_board *board, uint32_t rank, const void *theirs);
/* To the ranks whose bits are set in `to`, which have attached this memory. `missed` are those of
 * them that got nothing: they are not attached here, or have too much left to read. */
int tn_board_post(struct tn_board *board, uint64_t to, const void *bytes, uint32_t length,
                  uint64_t *missed);
/* The next message to this rank, of whichever rank, in the order in which that one said it;
 * TN_BOARD_MESSAGE bytes of room. TN_AGAIN: there is none. TN_INVALID: what `rank` shows cannot be;
 * it is not looked at any more. */
int tn_board_take(struct tn_board *board, uint32_t *rank, void *bytes, uint32_t *length);
/* TN_OK once there is something to take; TN_PENDING when the time is over, or on a signal. One
 * thread at a time, and none that takes meanwhile. */
int tn_board_wait(struct tn_board *board, uint64_t timeout_ns);
void tn_board_close(struct tn_board *board);

#endif
