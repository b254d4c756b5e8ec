/* Backend for corosync's closed process groups (libcpg). Not part of the package's binary: `zenjun bench` compiles it with
 * load_core.c when it is asked for this peer, because the headers are not everywhere. */
#include "load.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include <corosync/corotypes.h>
#include <corosync/cpg.h>

static cpg_handle_t handle;
static int fd = -1;
static struct iovec message;

static void on_message(cpg_handle_t h, const struct cpg_name *group, uint32_t node, uint32_t pid, void *bytes, size_t size)
{
    (void)h, (void)group, (void)node, (void)pid;
    zl_deliver(bytes, size);
}

static void on_change(cpg_handle_t h, const struct cpg_name *group, const struct cpg_address *members, size_t members_count,
                      const struct cpg_address *left, size_t left_count, const struct cpg_address *joined, size_t joined_count)
{
    char text[80];

    (void)h, (void)group, (void)members, (void)joined, (void)joined_count;
    zl_members((uint32_t)members_count);
    if (left_count) {
        snprintf(text, sizeof text, "node %u left, reason %u", left[0].nodeid, left[0].reason);
        zl_event(text);
    }
}

static void on_ring(cpg_handle_t h, struct cpg_ring_id ring, uint32_t members, const uint32_t *list)
{
    uint64_t mask = 0;

    (void)h, (void)ring;
    for (uint32_t i = 0; i < members; i++)
        if (list[i] >= 1 && list[i] <= ZL_IDS_MAX)
            mask |= 1ull << (list[i] - 1u);
    zl_stations(mask);
}

static int open_cpg(const struct zl_options *o, uint64_t end)
{
    cpg_model_v1_data_t model = {.model = CPG_MODEL_V1,
                                 .cpg_deliver_fn = on_message,
                                 .cpg_confchg_fn = on_change,
                                 .cpg_totem_confchg_fn = on_ring,
                                 .flags = CPG_MODEL_V1_DELIVER_INITIAL_TOTEM_CONF};
    struct cpg_name group = {.length = (uint32_t)strlen(o->group)};
    cs_error_t e;

    if (group.length < 1 || group.length > CPG_MAX_NAME_LENGTH - 1)
        return -1;
    memcpy(group.value, o->group, group.length);
    message = (struct iovec){malloc(o->size), o->size};
    if (!message.iov_base) {
        fprintf(stderr, "load: no memory\n");
        return -1;
    }
    zl_pattern(message.iov_base, o->size);
    while ((e = cpg_model_initialize(&handle, CPG_MODEL_V1, (cpg_model_data_t *)&model, NULL)) != CS_OK && zl_now() < end)
        poll(NULL, 0, 50);
    while (e == CS_OK && (e = cpg_join(handle, &group)) == CS_ERR_TRY_AGAIN && zl_now() < end) {
        poll(NULL, 0, 20);
        e = CS_OK;
    }
    if (e == CS_OK)
        e = cpg_fd_get(handle, &fd);
    if (e != CS_OK)
        fprintf(stderr, "load: libcpg: error %d\n", (int)e);
    return e == CS_OK ? 0 : -1;
}

static uint8_t *slot(void) { return message.iov_base; }

static int commit(void)
{
    cs_error_t e = cpg_mcast_joined(handle, CPG_TYPE_AGREED, &message, 1);

    if (e == CS_OK)
        return 1;
    return e == CS_ERR_TRY_AGAIN ? 0 : -1;
}

static int turn(uint64_t until)
{
    if (!zl_poll(fd, POLLIN, until))
        return 0;
    cs_error_t e = cpg_dispatch(handle, CS_DISPATCH_ALL);

    return e == CS_OK || e == CS_ERR_TRY_AGAIN ? 0 : -1;
}

static void close_cpg(void)
{
    cpg_finalize(handle);
    free(message.iov_base);
}

int main(int argc, char **argv)
{
    static const struct zl_backend cpg = {"corosync", open_cpg, slot, commit, turn, close_cpg};

    return zl_run(argc - 1, argv + 1, &cpg);
}
