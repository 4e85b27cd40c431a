/* Several engines in one process, joined in every way that needs no hardware, and threads that do
 * to them whatever their callers may: the data is verified, every transfer ends and becomes quiet,
 * and nothing is left behind. A failure prints the seed; TN_SEED runs it again. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define SIDES 3
#define WORKERS 4
#define JOBS 6
#define SLOT 131072u
#define ARENA (WORKERS * JOBS * SLOT)
#define PART 8192u
#define SHIFTING (WORKERS * JOBS * PART) /* bytes of the region that is closed and opened again */
#define SECOND UINT64_C(1000000000)
/* A sanitizer on a busy machine is slow; nothing should come near it. */
#define LONG (60 * SECOND)

struct job {
    pthread_mutex_t lock; /* transfer: who cancels it must not find it freed */
    struct tn_transfer *transfer, *abandoned;
    _Atomic bool busy;
    uint8_t *buffer;
    int from, to;
    bool write, shifting, notify;
    uint64_t offset, length, rows,
        stride;     /* of the remote rows; the local ones lie close together */
    uint64_t epoch; /* of the shifting region */
};

struct side {
    struct tn_engine *engine;
    struct tn_segment *segment;
    uint8_t *source, *arena, *shifting;
    struct tn_region *regions[4]; /* source, arena, shifting, buffers */
    struct tn_remote remotes[3];
    uint64_t epoch;
    _Atomic uint64_t notified,
        read; /* notifications that arrived for certain, and that were read */
    pthread_t service;
};

static struct side sides[SIDES];
static struct job jobs[WORKERS * JOBS];
static uint8_t *buffers; /* of all jobs */
static struct tn_peer *peers[SIDES][SIDES];
static pthread_rwlock_t peers_lock = PTHREAD_RWLOCK_INITIALIZER; /* and shifting regions */
static _Atomic bool stop, stop_services;
static uint64_t seed;
static bool finished;

static void tell_seed(void)
{
    if (!finished)
        fprintf(stderr, "to repeat: TN_SEED=%llu\n", (unsigned long long)seed);
}

static uint32_t pick(uint64_t *state, uint32_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % below);
}

static uint8_t pattern(int side, uint64_t epoch, uint64_t offset)
{
    return (uint8_t)((offset * 31 + offset / 251) ^ (epoch * 89) ^ ((uint64_t)side * 57));
}

/* ---- opening, joining, closing
 * --------------------------------------------------------------------------------------- */

static void open_shifting(int number)
{
    struct side *side = &sides[number];
    side->epoch++;
    for (uint64_t i = 0; i < SHIFTING; i++)
        side->shifting[i] = pattern(number, side->epoch, i);
    CHECK(tn_region_open(side->engine, side->shifting, SHIFTING, TN_READ | TN_WRITE, side->segment,
                         &side->regions[2]) == TN_OK);
    tn_region_describe(side->regions[2], &side->remotes[2]);
}

static void open_side(int number)
{
    struct side *side = &sides[number];
    struct tn_engine_options options = {.incarnation = {(uint8_t)(number + 1)},
                                        .liveness_ns = LONG,
                                        .inline_bytes = 16384,
                                        .chunk_bytes = 32768,
                                        .notify_depth = 4,
                                        .max_regions = 64,
                                        .stream_window = 8,
                                        .order = {TN_PROVIDER_SHM, TN_PROVIDER_TCP},
                                        .providers = 2};
    memset(side, 0, sizeof(*side));
    CHECK(tn_engine_open(&options, &side->engine) == TN_OK);
    CHECK(tn_segment_open(side->engine, ARENA + SHIFTING, TN_READ | TN_WRITE, &side->segment) ==
          TN_OK);
    side->arena = tn_segment_address(side->segment);
    side->shifting = side->arena + ARENA;
    side->source = malloc(SLOT);
    for (uint64_t i = 0; i < SLOT; i++)
        side->source[i] = pattern(number, 0, i);
    CHECK(tn_region_open(side->engine, side->source, SLOT, TN_READ, NULL, &side->regions[0]) ==
          TN_OK);
    CHECK(tn_region_open(side->engine, side->arena, ARENA, TN_READ | TN_WRITE, side->segment,
                         &side->regions[1]) == TN_OK);
    CHECK(tn_region_open(side->engine, buffers, ARENA, TN_READ | TN_WRITE, NULL,
                         &side->regions[3]) == TN_OK);
    for (int i = 0; i < 2; i++)
        tn_region_describe(side->regions[i], &side->remotes[i]);
    open_shifting(number);
    CHECK(tn_peer_open_self(side->engine, (uint64_t)number, &peers[number][number]) == TN_OK);
}

static void tcp_pair(int fds[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    CHECK(connect(fds[0], (struct sockaddr *)&address, length) == 0);
    fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(fds[1] >= 0);
    close(listener);
}

/* Shared memory between the two ends; a peer that went down meanwhile takes no link any more. */
static void share_memory(struct tn_peer *ends[2], struct side *owners[2])
{
    struct tn_shm_connection *connections[2];
    struct tn_shm_offer offers[2];
    int fds[2][2];
    for (int i = 0; i < 2; i++) {
        CHECK(tn_shm_connection_open(owners[i]->engine, &connections[i]) == TN_OK);
        CHECK(tn_shm_connection_offer(connections[i], &offers[i], fds[i]) == TN_OK);
        for (int k = 0; k < 2; k++)
            fds[i][k] = fcntl(fds[i][k], F_DUPFD_CLOEXEC, 0);
    }
    for (int i = 0; i < 2; i++)
        CHECK(tn_shm_connection_accept(connections[i], getpid(), &offers[1 - i], fds[1 - i]) ==
              TN_OK);
    for (int i = 0; i < 2; i++)
        if (tn_shm_connection_attach(connections[i], ends[i]) != TN_OK)
            tn_shm_connection_close(connections[i]);
}

/* Sides 0 and 1 share memory, 1 and 2 have TCP, 0 and 2 a unix stream. Transfers may wait for this
 * to happen. */
static void join(int i, int j, struct tn_peer *ends[2])
{
    int fds[2];
    bool tcp = i + j == 3;
    if (tcp)
        tcp_pair(fds);
    else
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    if (i + j == 1)
        share_memory(ends, (struct side *[2]){&sides[i], &sides[j]});
    for (int k = 0; k < 2; k++) {
        int status = tn_peer_up(ends[k], fds[k], tcp ? TN_PROVIDER_TCP : TN_PROVIDER_SHM, 4);
        CHECK(status == TN_OK || tn_peer_state(ends[k]) < 0); /* somebody has put it down */
    }
}

static void new_peers(int i, int j, struct tn_peer *ends[2])
{
    uint8_t names[2][TN_INCARNATION_BYTES] = {{(uint8_t)(j + 1)}, {(uint8_t)(i + 1)}};
    CHECK(tn_peer_open(sides[i].engine, names[0], (uint64_t)j, &ends[0]) == TN_OK);
    CHECK(tn_peer_open(sides[j].engine, names[1], (uint64_t)i, &ends[1]) == TN_OK);
}

static void close_region(struct tn_region *region)
{
    CHECK(tn_region_close(region, LONG) == TN_OK);
    tn_region_release(region);
}

/* The first side gives everything back by itself; with the others it ends with the engine. */
static void close_sides(void)
{
    for (int i = 0; i < SIDES; i++) {
        for (int j = 0; j < SIDES; j++)
            tn_peer_release(peers[i][j]);
        for (int k = 0; k < 4 && i == 0; k++)
            close_region(sides[i].regions[k]);
        tn_engine_close(sides[i].engine);
    }
    for (int i = 0; i < SIDES; i++) {
        tn_segment_close(sides[i].segment);
        free(sides[i].source);
    }
}

/* ---- transfers
 * -------------------------------------------------------------------------------------------------------
 */

static void plan(struct job *job, uint64_t *random)
{
    job->from = (int)pick(random, SIDES);
    job->to = (int)pick(random, SIDES);
    job->shifting = pick(random, 4) == 0;
    /* In the shifting region some jobs read their part, and the others write theirs. */
    job->write = job->shifting ? (job - jobs) % 2 : pick(random, 2);
    job->notify = pick(random, 3) == 0;
    uint32_t room = job->shifting ? PART : SLOT;
    job->rows = pick(random, 3) ? 1 : 1 + pick(random, 40);
    job->length = 1 + pick(random, pick(random, 3) ? 4096 / (uint32_t)job->rows
                                                   : room / (uint32_t)job->rows - 1);
    job->stride = job->length + pick(random, (uint32_t)(room / job->rows - job->length) + 1);
    job->offset = pick(random, (uint32_t)(room - job->stride * (job->rows - 1) - job->length) + 1);
    for (uint64_t i = 0; job->write && i < job->length * job->rows; i++)
        job->buffer[i] = (uint8_t)pick(random, 256);
}

static void submit(struct job *job, uint64_t *random)
{
    static const uint32_t delays[] = {0, 20, 200, 2000, 20000, 5000000}; /* us */
    uint64_t number = (uint64_t)(job - jobs);
    uint64_t inside = job->shifting ? number * PART : job->write ? number * SLOT : 0;
    uint64_t delay = delays[pick(random, 6)] * UINT64_C(1000);
    struct tn_range range = {.length = job->length,
                             .rows = job->rows,
                             .local_stride = (int64_t)job->length,
                             .remote_stride = (int64_t)job->stride,
                             .remote_offset = job->offset + inside,
                             .local_address = (uintptr_t)job->buffer,
                             .local_region = pick(random, 2) ? sides[job->from].regions[3] : NULL};
    struct tn_batch batch = {.op = job->write ? TN_OP_WRITE : TN_OP_READ,
                             .providers = UINT32_MAX,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .notify = job->notify ? "note" : NULL,
                             .notify_length = 4,
                             .deadline_ns = delay ? tn_now() + delay : TN_NO_DEADLINE};
    struct tn_transfer *transfer;
    pthread_rwlock_rdlock(&peers_lock);
    job->epoch = sides[job->to].epoch;
    batch.remotes = &sides[job->to].remotes[job->shifting ? 2 : job->write ? 1 : 0];
    CHECK(tn_submit(peers[job->from][job->to], &batch, &transfer) == TN_OK);
    pthread_rwlock_unlock(&peers_lock);
    pthread_mutex_lock(&job->lock);
    job->transfer = transfer;
    pthread_mutex_unlock(&job->lock);
}

static void verify(const struct job *job)
{
    uint64_t number = (uint64_t)(job - jobs);
    for (uint64_t row = 0; row < job->rows; row++) {
        const uint8_t *local = job->buffer + row * job->length;
        uint64_t at = job->offset + row * job->stride, shift = job->shifting ? number * PART : 0;
        if (job->write && !job->shifting)
            CHECK(memcmp(sides[job->to].arena + number * SLOT + at, local, job->length) == 0);
        for (uint64_t i = 0; !job->write && i < job->length; i++)
            CHECK(local[i] == pattern(job->to, job->shifting ? job->epoch : 0, shift + at + i));
    }
}

static struct tn_transfer *take(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    struct tn_transfer *transfer = job->transfer;
    job->transfer = NULL;
    pthread_mutex_unlock(&job->lock);
    return transfer;
}

static void finish(struct job *job)
{
    struct tn_result result;
    tn_transfer_result(job->transfer, &result);
    int status = result.status;
    bool stale = status == TN_STALE && job->shifting;
    CHECK_TEXT(stale || status == TN_OK || status == TN_DEADLINE || status == TN_CANCELLED ||
                   status == TN_PEER_LOST || status == TN_CLOSED,
               result.text);
    if (status == TN_OK) {
        CHECK(tn_transfer_quiet(job->transfer) == 1);
        if (job->notify)
            atomic_fetch_add(&sides[job->to].notified, 1);
        verify(job);
    }
    CHECK_TEXT(tn_transfer_wait_quiet(job->transfer, LONG) == 1, "it is never quiet");
    tn_transfer_release(take(job));
    atomic_store(&job->busy, false);
}

static void wait_by_queue(struct job *job, struct tn_queue *queue)
{
    uint64_t cookie = 0;
    if (tn_transfer_watch(job->transfer, queue, 1 + (uintptr_t)job) != TN_PENDING)
        return;
    for (uint64_t end = tn_now() + LONG; cookie != 1 + (uintptr_t)job;) {
        CHECK_TEXT(tn_now() < end, "the queue is never told");
        struct pollfd ready = {.fd = tn_queue_fd(queue), .events = POLLIN};
        if (!tn_queue_reap(queue, &cookie, 1) && !tn_queue_arm(queue))
            poll(&ready, 1, (int)(LONG / 1000000));
    }
    CHECK(tn_transfer_status(job->transfer) != TN_PENDING);
}

static void release_abandoned(struct job *job)
{
    CHECK(tn_transfer_quiet(job->abandoned) == 1);
    tn_transfer_release(job->abandoned);
    job->abandoned = NULL;
    atomic_store(&job->busy, false);
}

static void abandon(struct job *job)
{
    job->abandoned = take(job);
    if (tn_transfer_abandon(job->abandoned, (uintptr_t)job) == TN_OK)
        release_abandoned(job);
}

/* ---- threads
 * ---------------------------------------------------------------------------------------------------------
 */

static void wait_somehow(struct job *job, struct tn_queue *queues[SIDES], uint64_t *random)
{
    uint64_t end = tn_now() + LONG;
    switch (pick(random, 4)) {
    case 0:
        wait_by_queue(job, queues[job->from]);
        break;
    case 1:
        while (tn_transfer_wait(job->transfer, pick(random, 200000)) == TN_PENDING &&
               tn_now() < end)
            ;
        break;
    default:
        tn_transfer_wait(job->transfer, LONG);
    }
    CHECK_TEXT(tn_transfer_status(job->transfer) != TN_PENDING, "it never ends");
    finish(job);
}

static void *work(void *argument)
{
    struct job *mine = argument;
    uint64_t random = seed + (uint64_t)(mine - jobs) * 7919;
    struct tn_queue *queues[SIDES];
    for (int i = 0; i < SIDES; i++)
        CHECK(tn_queue_open(sides[i].engine, &queues[i]) == TN_OK);
    while (!atomic_load(&stop)) {
        struct job *job = &mine[pick(&random, JOBS)];
        if (atomic_load(&job->busy))
            continue;
        atomic_store(&job->busy, true);
        plan(job, &random);
        submit(job, &random);
        if (pick(&random, 8))
            wait_somehow(job, queues, &random);
        else
            abandon(job);
    }
    for (int i = 0; i < SIDES; i++)
        tn_queue_close(queues[i]);
    return NULL;
}

/* Reads notifications and events as an application and a control plane would. */
static void *serve(void *argument)
{
    struct side *side = argument;
    struct tn_notification notification;
    struct tn_event event;
    uint8_t *buffer = malloc(TN_MAX_CONTROL);
    while (!atomic_load(&stop_services)) {
        tn_notification_wait(side->engine, 2000000);
        while (tn_notification_poll(side->engine, &notification)) {
            CHECK(notification.length == 4 && memcmp(notification.payload, "note", 4) == 0);
            atomic_fetch_add(&side->read, 1);
        }
        while (tn_engine_next_event(side->engine, &event, buffer))
            if (event.kind == TN_EVENT_RETIRED)
                release_abandoned(
                    (struct job *)(uintptr_t)event.cookie); // NOLINT: cookies are ours
    }
    free(buffer);
    return NULL;
}

static void *kill_jobs(void *argument)
{
    uint64_t random = seed + 99;
    (void)argument;
    while (!atomic_load(&stop)) {
        struct job *job = &jobs[pick(&random, WORKERS * JOBS)];
        pthread_mutex_lock(&job->lock);
        if (job->transfer)
            tn_transfer_cancel(job->transfer);
        pthread_mutex_unlock(&job->lock);
        usleep(pick(&random, 500));
        if (pick(&random, 300))
            continue;
        pthread_rwlock_rdlock(&peers_lock);
        tn_peer_down(peers[pick(&random, SIDES)][pick(&random, SIDES)], TN_PEER_LOST, "sabotage");
        pthread_rwlock_unlock(&peers_lock);
    }
    return NULL;
}

/* One end goes down, and the other must notice; new ones are there at once and connected a little
 * later. */
static void rejoin(int i, int j, uint64_t *random)
{
    struct tn_peer *old[2] = {peers[i][j], peers[j][i]}, *ends[2];
    new_peers(i, j, ends);
    pthread_rwlock_wrlock(&peers_lock);
    peers[i][j] = ends[0];
    peers[j][i] = ends[1];
    pthread_rwlock_unlock(&peers_lock);
    uint32_t first = pick(random, 2);
    tn_peer_down(old[first], pick(random, 2) ? TN_CLOSED : TN_PEER_LOST, "made anew");
    uint64_t end = tn_now() + LONG;
    while (tn_peer_state(old[1 - first]) == TN_OK && tn_now() < end)
        usleep(100);
    CHECK(tn_peer_state(old[1 - first]) != TN_OK);
    tn_peer_down(old[1 - first], TN_PEER_LOST, "never came up");
    tn_peer_release(old[0]);
    tn_peer_release(old[1]);
    usleep(pick(random, 3000));
    join(i, j, ends);
}

static void shift(int number, uint64_t *random)
{
    struct side *side = &sides[number];
    CHECK(tn_region_close(side->regions[2], LONG) == TN_OK);
    memset(side->shifting, 0xee, SHIFTING);
    usleep(pick(random, 1000));
    for (uint64_t i = 0; i < SHIFTING; i++)
        CHECK_TEXT(side->shifting[i] == 0xee, "somebody wrote to a closed region");
    tn_region_release(side->regions[2]);
    pthread_rwlock_wrlock(&peers_lock);
    open_shifting(number);
    pthread_rwlock_unlock(&peers_lock);
}

static void unrest(uint64_t duration)
{
    uint64_t random = seed + 5, end = tn_now() + duration;
    while (tn_now() < end) {
        uint32_t side = pick(&random, SIDES);
        if (pick(&random, 2))
            shift((int)side, &random);
        else
            rejoin((int)side, (int)(side + 1) % SIDES, &random);
        usleep(pick(&random, 20000));
    }
}

static void start_threads(pthread_t threads[WORKERS + 1])
{
    atomic_store(&stop, false);
    atomic_store(&stop_services, false);
    for (int i = 0; i < SIDES; i++)
        CHECK(pthread_create(&sides[i].service, NULL, serve, &sides[i]) == 0);
    for (int i = 0; i < WORKERS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, &jobs[i * JOBS]) == 0);
    CHECK(pthread_create(&threads[WORKERS], NULL, kill_jobs, NULL) == 0);
}

static void stop_threads(pthread_t threads[WORKERS + 1])
{
    atomic_store(&stop, true);
    for (int i = 0; i <= WORKERS; i++)
        pthread_join(threads[i], NULL);
    uint64_t end = tn_now() + LONG;
    for (int i = 0; i < SIDES; i++)
        while (atomic_load(&sides[i].read) < atomic_load(&sides[i].notified) && tn_now() < end)
            usleep(1000);
    atomic_store(&stop_services, true);
    for (int i = 0; i < SIDES; i++) {
        pthread_join(sides[i].service, NULL);
        CHECK_TEXT(sides[i].read >= sides[i].notified,
                   "a notification was acknowledged and never came");
    }
}

static void round_of(uint64_t duration)
{
    pthread_t threads[WORKERS + 1];
    for (int i = 0; i < SIDES; i++)
        open_side(i);
    for (int i = 0; i < SIDES; i++) {
        struct tn_peer *ends[2];
        int j = (i + 1) % SIDES;
        new_peers(i, j, ends);
        peers[i][j] = ends[0];
        peers[j][i] = ends[1];
        join(i, j, ends);
    }
    start_threads(threads);
    unrest(duration);
    stop_threads(threads);
    close_sides();
    for (int k = 0; k < WORKERS * JOBS; k++)
        if (jobs[k].abandoned)
            release_abandoned(&jobs[k]);
}

/* ---- what is left
 * ----------------------------------------------------------------------------------------------------
 */

static int entries(const char *path)
{
    int count = 0;
    DIR *directory = opendir(path);
    CHECK(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static int shared_mappings(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps);
    while (fgets(line, sizeof(line), maps))
        count += strstr(line, "memfd:transport") != NULL;
    fclose(maps);
    return count;
}

int main(void)
{
    const char *given = getenv("TN_SEED");
    seed = given ? strtoull(given, NULL, 10) : tn_now();
    atexit(tell_seed);
    buffers = malloc(ARENA);
    for (int k = 0; k < WORKERS * JOBS; k++) {
        pthread_mutex_init(&jobs[k].lock, NULL);
        jobs[k].buffer = buffers + (size_t)k * SLOT;
    }
    round_of(SECOND / 10); /* what the C library or a sanitizer keeps, it has from here on */
    usleep(100000);        /* a thread that was joined is listed until the kernel has ended it */
    int descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    for (int i = 0; i < 2; i++, seed++)
        round_of(SECOND);
    CHECK(entries("/proc/self/fd") == descriptors);
    for (uint64_t end = tn_now() + LONG; entries("/proc/self/task") > threads && tn_now() < end;)
        usleep(1000);
    CHECK(entries("/proc/self/task") <= threads);
    CHECK(shared_mappings() == 0);
    free(buffers);
    finished = true;
    return 0;
}
