/* What is asked of a socket. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/status.h"
#include "base/sys.h"
#include "providers/tcp/state.h"

/* The socket tells, not the provider it carries: an engine without shm may be reached by a unix
 * socket. */
bool tn_link_is_unix(int fd)
{
    int domain = AF_UNSPEC;
    socklen_t length = sizeof(domain);
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX;
}

/* A unix socket counts as writable only while three quarters of its buffer are empty, so with the
 * default of 208 KiB each chunk would stall several times; as far as net.core.wmem_max allows. TCP
 * sizes its buffers better than we could. */
#define UNIX_BUFFER (1 << 20)

#define LONGEST_IDLE 32767 /* seconds: MAX_TCP_KEEPIDLE of Linux */

static int set(int fd, int level, int option, uint64_t value, uint64_t most, const char *name)
{
    int limited = (int)(value > most ? most : value ? value : 1);
    if (setsockopt(fd, level, option, &limited, sizeof(limited)))
        return tn_fail_errno("setting %s", name);
    return TN_OK;
}

#define SET(fd, level, option, value, most) set(fd, level, option, value, most, #option)

/* Our own heartbeats find a silent peer, and say more about it. The kernel's watch, twice as
 * patient, is for what they do not see: bytes that are left in the socket when this process closes
 * it, or is stopped. */
static int watch_over(int fd, uint64_t liveness_ns)
{
    uint64_t idle = liveness_ns / 1000000000;
    bool done = !SET(fd, SOL_SOCKET, SO_KEEPALIVE, 1, 1) &&
                !SET(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle, LONGEST_IDLE) &&
                !SET(fd, IPPROTO_TCP, TCP_KEEPINTVL, idle / 4, LONGEST_IDLE) &&
                !SET(fd, IPPROTO_TCP, TCP_KEEPCNT, 4, 4) &&
                !SET(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, liveness_ns / 500000, INT32_MAX);
    return done ? TN_OK : TN_SYSTEM;
}

/* What lies in a socket's queue and was never sent is lost to the other streams: where one of them
 * has lost packets and is slow, the transfer waits for what it took in better times. */
#define MOST_UNSENT TN_LINK_COPY

static int prepare_tcp(int fd, const struct tn_host *host)
{
    uint64_t half = host->stream_buffer / 2; /* the kernel doubles it: socket(7) */
    bool done = !SET(fd, IPPROTO_TCP, TCP_NODELAY, 1, 1) &&
                !SET(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, MOST_UNSENT, INT32_MAX) &&
                (!half || (!SET(fd, SOL_SOCKET, SO_SNDBUF, half, INT32_MAX / 2) &&
                           !SET(fd, SOL_SOCKET, SO_RCVBUF, half, INT32_MAX / 2)));
    return done ? watch_over(fd, host->liveness_ns) : TN_SYSTEM;
}

int tn_link_prepare_socket(int fd, bool unix_socket, const struct tn_host *host)
{
    if (tn_sys_nonblocking(fd) != TN_OK)
        return TN_SYSTEM;
    return unix_socket ? SET(fd, SOL_SOCKET, SO_SNDBUF, UNIX_BUFFER, UNIX_BUFFER)
                       : prepare_tcp(fd, host);
}
