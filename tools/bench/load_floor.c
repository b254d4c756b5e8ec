/* The measuring rod of `zenjun bench --floor`: what the frames and deliveries of a light load cost without a protocol.
 *
 * A station takes a message from its program, broadcasts it, answers another station's with one small frame to all, and gives a
 * message to its program when all stations have it: the frames, wake-ups and deliveries of level preack at three stations, and of
 * confirmations to all at more. Nothing is checked, ordered, kept or sent again. A TPACKET_V2 ring, one epoll, no time-outs; a
 * SEQPACKET socket to the program, so that a message is one call. The program is the load client (load_core.c) with the backend below.
 */
#define _GNU_SOURCE
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ETHERTYPE 0x88b6 /* local experimental 2: zenjun itself uses 1 */
#define IDS_MAX 64u
#define KEPT 256u        /* messages of a station under way at most, a power of two */
#define SLOT_BYTES 2048u
#define SLOTS 512u
#define BLOCK_BYTES (1u << 16)
#define BODY_MAX 1400u
#define RETRY_MS 20

static const uint8_t group_mac[6] = {0x03, 0x5a, 0x4a, 0x00, 0x00, 0x03};
static const uint32_t magic = 0x5a4c4631u;
enum kind { K_MESSAGE = 1, K_HAVE = 2 };

struct frame {
    uint8_t to[6], from[6];
    uint16_t ethertype, size; /* size: of the body */
    uint32_t magic, seq;
    uint8_t kind, source, pad[34];
};
_Static_assert(sizeof(struct frame) == 60, "fits the shortest frame");

struct kept { uint32_t seq, have, size; uint8_t body[BODY_MAX]; };

static struct {
    uint32_t id, stations, sent, slot;
    int fd, program, epoll;
    uint8_t mac[6];
    uint8_t *ring;
    struct kept *kept[IDS_MAX];
} f;

static int fail(const char *what)
{
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    return -1;
}

static int open_link(const char *interface)
{
    struct ifreq r = {0};
    struct packet_mreq group = {.mr_type = PACKET_MR_MULTICAST, .mr_alen = 6};
    struct tpacket_req q = {.tp_block_size = BLOCK_BYTES, .tp_frame_size = SLOT_BYTES, .tp_block_nr = SLOTS * SLOT_BYTES / BLOCK_BYTES,
                            .tp_frame_nr = SLOTS};
    struct sockaddr_ll a = {.sll_family = AF_PACKET, .sll_protocol = htons(ETHERTYPE)};
    int version = TPACKET_V2;

    if (strlen(interface) >= IFNAMSIZ) {
        errno = ENODEV;
        return fail(interface);
    }
    if ((f.fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0)) < 0)
        return fail("packet socket (CAP_NET_RAW is needed)");
    strcpy(r.ifr_name, interface);
    if (ioctl(f.fd, SIOCGIFHWADDR, &r))
        return fail(interface);
    memcpy(f.mac, r.ifr_hwaddr.sa_data, 6);
    if (ioctl(f.fd, SIOCGIFINDEX, &r))
        return fail(interface);
    a.sll_ifindex = group.mr_ifindex = r.ifr_ifindex;
    memcpy(group.mr_address, group_mac, 6);
    if (setsockopt(f.fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) ||
        setsockopt(f.fd, SOL_PACKET, PACKET_RX_RING, &q, sizeof q))
        return fail("receive ring");
    f.ring = mmap(NULL, SLOTS * SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, f.fd, 0);
    if (f.ring == MAP_FAILED)
        return fail("mapping the receive ring");
    if (setsockopt(f.fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &group, sizeof group) || bind(f.fd, (struct sockaddr *)&a, sizeof a))
        return fail("bind");
    return 0;
}

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    return a;
}

static int await_program(const char *path)
{
    const struct sockaddr_un a = address_of(path);
    const int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    unlink(path);
    if (listening < 0 || bind(listening, (const struct sockaddr *)&a, sizeof a) || listen(listening, 1))
        return fail(path);
    if ((f.program = accept4(listening, NULL, NULL, SOCK_CLOEXEC)) < 0)
        return fail(path);
    close(listening);
    return 0;
}

static int broadcast(enum kind kind, uint32_t source, uint32_t seq, const void *body, uint32_t size)
{
    uint8_t bytes[sizeof(struct frame) + BODY_MAX];
    struct frame h = {.ethertype = htons(ETHERTYPE), .size = (uint16_t)size, .magic = magic, .seq = seq, .kind = (uint8_t)kind,
                      .source = (uint8_t)source};

    memcpy(h.to, group_mac, 6);
    memcpy(h.from, f.mac, 6);
    memcpy(bytes, &h, sizeof h);
    if (size)
        memcpy(bytes + sizeof h, body, size);
    return send(f.fd, bytes, sizeof h + size, MSG_DONTWAIT) < 0 ? fail("send") : 0;
}

/* One station more has it; once all have, it goes to the program. */
static int count(uint32_t source, uint32_t seq, const void *body, uint32_t size)
{
    struct kept *k = &f.kept[source - 1][seq % KEPT];

    if (k->seq != seq)
        *k = (struct kept){.seq = seq};
    if (body) {
        memcpy(k->body, body, size);
        k->size = size;
        k->have++; /* its source */
    }
    k->have += !body || source != f.id;
    return k->have == f.stations && send(f.program, k->body, k->size, MSG_NOSIGNAL) < 0 ? fail("program") : 0;
}

static int receive(void)
{
    for (;; f.slot = (f.slot + 1) % SLOTS) {
        struct tpacket2_hdr *t = (void *)(f.ring + (size_t)f.slot * SLOT_BYTES);
        struct frame h;

        if (!(__atomic_load_n(&t->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
            return 0;
        const uint8_t *bytes = (uint8_t *)t + t->tp_mac;
        memcpy(&h, bytes, sizeof h);
        const int ours = t->tp_snaplen >= sizeof h && h.magic == magic && h.source >= 1 && h.source <= f.stations && h.size <= BODY_MAX &&
                         t->tp_snaplen >= sizeof h + h.size;
        if (ours && h.kind == K_MESSAGE &&
            (broadcast(K_HAVE, h.source, h.seq, NULL, 0) || count(h.source, h.seq, bytes + sizeof h, h.size)))
            return -1;
        if (ours && h.kind == K_HAVE && count(h.source, h.seq, NULL, 0))
            return -1;
        __atomic_store_n(&t->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    }
}

/* 1: the program has ended. */
static int take(void)
{
    uint8_t body[BODY_MAX];
    const ssize_t n = recv(f.program, body, sizeof body, MSG_DONTWAIT);

    if (n <= 0)
        return n == 0 || errno != EAGAIN;
    return broadcast(K_MESSAGE, f.id, ++f.sent, body, (uint32_t)n) || count(f.id, f.sent, body, (uint32_t)n);
}

int zl_floor_main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0);
    f.id = (uint32_t)strtoul(zl_argument(argc, argv, "--id", "0"), NULL, 10);
    f.stations = (uint32_t)strtoul(zl_argument(argc, argv, "--stations", "0"), NULL, 10);
    const char *path = zl_argument(argc, argv, "--target", "");
    if (f.stations < 2 || f.stations > IDS_MAX || f.id < 1 || f.id > f.stations || !*path || strlen(path) >= 108) {
        fprintf(stderr, "floor: wrong arguments\n");
        return 2;
    }
    for (uint32_t i = 0; i < f.stations; i++)
        if (!(f.kept[i] = calloc(KEPT, sizeof *f.kept[i])))
            return 1;
    if (open_link(zl_argument(argc, argv, "--interface", "eth0")) || await_program(path))
        return 1;
    f.epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event of_link = {.events = EPOLLIN, .data.u32 = 0}, of_program = {.events = EPOLLIN, .data.u32 = 1};
    if (f.epoll < 0 || epoll_ctl(f.epoll, EPOLL_CTL_ADD, f.fd, &of_link) || epoll_ctl(f.epoll, EPOLL_CTL_ADD, f.program, &of_program))
        return 1;
    for (;;) {
        struct epoll_event events[2];
        const int n = epoll_wait(f.epoll, events, 2, -1);

        for (int i = 0; i < n; i++)
            if (events[i].data.u32 ? take() : receive())
                return 0;
    }
}

/* ---- the backend of its program ---- */
static struct { int fd; uint32_t size; uint8_t *message; } bare;

static int open_bare(const struct zl_options *o, uint64_t end)
{
    const struct sockaddr_un a = address_of(o->target);

    bare.size = o->size;
    bare.message = malloc(o->size);
    bare.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (!bare.message || bare.fd < 0 || o->size > BODY_MAX)
        return -1;
    while (connect(bare.fd, (const struct sockaddr *)&a, sizeof a)) {
        if (zl_now() >= end)
            return fail(o->target);
        poll(NULL, 0, RETRY_MS);
    }
    zl_pattern(bare.message, bare.size);
    zl_members(o->stations); /* the parent waits until all are here */
    return 0;
}

static uint8_t *slot(void) { return bare.message; }

static int commit(void) { return send(bare.fd, bare.message, bare.size, MSG_NOSIGNAL) < 0 ? -1 : 1; }

static int turn(uint64_t until)
{
    uint8_t body[BODY_MAX];
    int taken = 0;

    for (;;) {
        const ssize_t n = recv(bare.fd, body, sizeof body, MSG_DONTWAIT);
        if (n > 0)
            zl_deliver(body, (size_t)n);
        else if (n == 0 || errno != EAGAIN)
            return -1;
        else if (taken || !until || !zl_poll(bare.fd, POLLIN, until))
            return 0;
        taken |= n > 0;
    }
}

static void close_bare(void)
{
    close(bare.fd);
    free(bare.message);
}

int zl_bare_main(int argc, char **argv)
{
    static const struct zl_backend backend = {"bare", open_bare, slot, commit, turn, close_bare};

    return zl_run(argc, argv, &backend);
}
