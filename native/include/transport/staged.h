/* staged: GPU memory by way of pinned host memory, over whichever other provider reaches the peer.
 */
#ifndef TRANSPORT_STAGED_H
#define TRANSPORT_STAGED_H

#include "transport/status.h"

struct tn_staged_link;
int tn_staged_link_open(struct tn_engine *engine, struct tn_staged_link **out);
int tn_staged_link_attach(struct tn_staged_link *link,
                          struct tn_peer *peer);        /* the peer owns it then */
void tn_staged_link_close(struct tn_staged_link *link); /* only if it was not attached */

#endif
