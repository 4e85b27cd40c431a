/* What devices tell by themselves, over the double of libibverbs with two of them: ports that go
 * down and come back, GIDs that move and vanish, queue pairs and devices that fail. */
#include <string.h>
#include <unistd.h>

#include "providers/verbs/verbs.h"
#include "tests/verbs_pair.h"

#define MEMORY (8u * MIB)

static void open_pair(struct end *a, struct end *b)
{
    verbs_pair_open_shaped(a, b, MEMORY, (struct end_shape){.lanes = 2, .more = "fake1"});
}

static struct tn_transfer *write_all(struct end *a)
{
    struct tn_range range = end_range(a, 0, 0, MEMORY);
    return end_submit(a, TN_OP_WRITE, &a->theirs.memory, &range, 1, "there");
}

static void expect_there(struct end *a, struct end *b, struct tn_transfer *sent)
{
    char text[16];
    end_expect_note(b, text, sizeof(text));
    end_finish(sent, TN_OK, "rc");
    CHECK(memcmp(a->memory, b->memory, MEMORY) == 0);
}

/* A rail goes down under a transfer: its unfinished pieces go over the other; it is used again when
 * it is back. */
static void test_a_port_goes_down_and_comes_back(void)
{
    struct end a, b;
    open_pair(&a, &b);
    for (unsigned round = 0; round < 3; round++) {
        end_fill(a.memory, MEMORY, round);
        expect_there(&a, &b, write_all(&a));
        end_wait_ready(&a, 3);
        end_wait_ready(&b, 3);
        end_fill(a.memory, MEMORY, 100 + round);
        double_set("fake1:1.delay_us", 20000);
        struct tn_transfer *sent = write_all(&a);
        double_set("fake1:1.state", IBV_PORT_DOWN);
        expect_there(&a, &b, sent);
        end_wait_ready(&a, 1);
        double_set("fake1:1.delay_us", 0);
        long before = double_get("fake1.requests");
        expect_there(&a, &b, write_all(&a));
        CHECK(double_get("fake1.requests") == before);
        double_set("fake1:1.state", IBV_PORT_ACTIVE);
        end_wait_ready(&a, 3);
    }
    verbs_pair_close(&a, &b);
}

/* I2: the other port of a device is somebody else's business. */
static void test_another_port(void)
{
    struct end a, b;
    double_set("ports", 2);
    open_pair(&a, &b);
    expect_there(&a, &b, write_all(&a));
    end_wait_ready(&a, 3);
    double_set("fake1:2.state", IBV_PORT_DOWN);
    double_set("fake1:2.raise", IBV_EVENT_PORT_ERR);
    for (int i = 0; i < 20; i++) {
        expect_there(&a, &b, write_all(&a));
        CHECK(atomic_load(&a.link->ready) == 3);
    }
    double_set("fake1:2.state", IBV_PORT_ACTIVE);
    verbs_pair_close(&a, &b);
    double_set("ports", 1);
}

static uint32_t row_of(struct tn_verbs_rail *rail)
{
    union ibv_gid gid;
    return tn_verbs_rail_gid(rail, &gid);
}

/* A8: after a flap the address lies in another row of the table. */
static void test_a_gid_moves(void)
{
    struct end a, b;
    open_pair(&a, &b);
    expect_there(&a, &b, write_all(&a));
    end_wait_ready(&a, 3);
    CHECK(row_of(a.verbs->rails[1]) == 1);
    char text[64];
    const uint8_t *gid = a.verbs->rails[1]->gid.raw;
    snprintf(text, sizeof(text), "::ffff:%u.%u.%u.%u", gid[12], gid[13], gid[14], gid[15]);
    double_text("fake1:1.gid.1", "");
    double_text("fake1:1.gid.3", text);
    uint64_t until = tn_now() + LONG;
    while (row_of(a.verbs->rails[1]) != 3) {
        CHECK_TEXT(tn_now() < until, "the row is found");
        usleep(1000);
    }
    end_wait_ready(&a, 3);
    end_wait_ready(&b, 3);
    for (int i = 0; i < 5; i++)
        expect_there(&a, &b, write_all(&a));
    double_text("fake1:1.gid.3", "");
    double_text("fake1:1.gid.1", text);
    end_wait_ready(&a, 3);
    verbs_pair_close(&a, &b);
}

static void expect_event(struct end *end, const char *part)
{
    static uint8_t buffer[TN_MAX_CONTROL];
    struct tn_event event;
    uint64_t until = tn_now() + LONG;
    while (tn_engine_next_event(end->engine, &event, buffer) != 1 ||
           event.kind != TN_EVENT_PROVIDER) {
        CHECK_TEXT(tn_now() < until, "an event in time");
        usleep(1000);
    }
    CHECK(event.cookie == TN_PROVIDER_VERBS);
    CHECK_TEXT(strstr(event.text, part), event.text);
}

/* A GID that is gone takes its rail out, and the control plane is told. */
static void test_a_gid_vanishes(void)
{
    struct end a, b;
    open_pair(&a, &b);
    expect_there(&a, &b, write_all(&a));
    char text[64];
    const uint8_t *gid = a.verbs->rails[1]->gid.raw;
    snprintf(text, sizeof(text), "::ffff:%u.%u.%u.%u", gid[12], gid[13], gid[14], gid[15]);
    double_text("fake1:1.gid.1", "");
    expect_event(&a, "has lost the GID");
    end_wait_ready(&a, 1);
    expect_there(&a, &b, write_all(&a));
    double_text("fake1:1.gid.1", text); /* it returns */
    end_wait_ready(&a, 3);
    expect_there(&a, &b, write_all(&a));
    verbs_pair_close(&a, &b);
}

/* A device that dies does so for good; the other carries on. */
static void test_a_device_fails(void)
{
    struct end a, b;
    open_pair(&a, &b);
    expect_there(&a, &b, write_all(&a));
    end_wait_ready(&a, 3);
    struct tn_transfer *sent = write_all(&a);
    double_set("fake1.fatal", 1);
    expect_there(&a, &b, sent);
    expect_event(&a, "fake1 failed");
    expect_there(&a, &b, write_all(&a));
    CHECK(atomic_load(&a.link->ready) == 1);
    double_set("fake1.fatal", 0);
    end_close(&a);
    end_close(&b);
}

int main(void)
{
    if (!double_open())
        return 77;
    double_set("devices", 2);
    test_a_port_goes_down_and_comes_back();
    test_another_port();
    test_a_gid_moves();
    test_a_gid_vanishes();
    test_a_device_fails();
    return 0;
}
