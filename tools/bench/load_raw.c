/* The measuring rod of `zenjun bench --raw`: what bare AF_PACKET does on the same segment, without any protocol.
 *
 * All senders broadcast frames of one length flat out in batches of sendmmsg; every station walks a TPACKET_V3 ring. Nothing is
 * ordered, confirmed or sent again. Each frame carries the highest number its sender has seen of every station, and a sender
 * keeps at most `window` frames ahead of the slowest station's: enough to keep the receive rings from overflowing, and no frame
 * more than the load itself as long as all send. Same lines on standard input and output as the load client (load.h).
 */
#define _GNU_SOURCE
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define ETHERTYPE 0x88b6 /* local experimental 2: zenjun itself uses 1 */
#define IDS_MAX 8u
#define BATCH 64u
#define BLOCK_BYTES (1u << 18)
#define RING_BYTES (32u << 20)
#define RETIRE_MS 1u     /* a block not full is handed over after this */
#define CREDIT_EVERY 64u /* a station that does not send itself reports once in so many frames received */
#define STALL_NS 1000000ull
#define LENGTH_MAX 16000u

static const uint8_t group_mac[6] = {0x03, 0x5a, 0x4a, 0x00, 0x00, 0x02};
static const uint32_t magic = 0x5a4c5231u;

struct frame {
    uint8_t to[6], from[6];
    uint16_t ethertype, id;
    uint32_t magic, seq; /* seq: number of data frames sent before this one; a credit frame is no data frame */
    uint32_t seen[IDS_MAX];
    uint8_t data, pad[3];
};
_Static_assert(sizeof(struct frame) == 60, "fits the shortest frame");

static struct {
    uint32_t id, stations, senders, length, window;
    int fd, ifindex;
    uint8_t mac[6];
    uint8_t *ring;
    uint32_t block;
    uint64_t received, in_window, lost, unreported;
    uint32_t next[IDS_MAX];       /* of each station: number expected next */
    uint32_t seen_mine[IDS_MAX];  /* by each station: my number it expects next */
    uint32_t sent;
    uint64_t credits, busy;
    struct zl_go go;
} raw;

static int fail(const char *what)
{
    fprintf(stderr, "raw: %s: %s\n", what, strerror(errno));
    return -1;
}

static int open_link(const char *interface)
{
    struct ifreq r = {0};
    struct packet_mreq group = {.mr_type = PACKET_MR_MULTICAST, .mr_alen = 6};
    struct tpacket_req3 q = {.tp_block_size = BLOCK_BYTES, .tp_frame_size = 2048, .tp_block_nr = RING_BYTES / BLOCK_BYTES,
                             .tp_frame_nr = RING_BYTES / 2048, .tp_retire_blk_tov = RETIRE_MS};
    struct sockaddr_ll a = {.sll_family = AF_PACKET, .sll_protocol = htons(ETHERTYPE)};
    int version = TPACKET_V3;

    if (strlen(interface) >= IFNAMSIZ) {
        errno = ENODEV;
        return fail(interface);
    }
    if ((raw.fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0)) < 0)
        return fail("packet socket (CAP_NET_RAW is needed)");
    strcpy(r.ifr_name, interface);
    if (ioctl(raw.fd, SIOCGIFHWADDR, &r))
        return fail(interface);
    memcpy(raw.mac, r.ifr_hwaddr.sa_data, 6);
    if (ioctl(raw.fd, SIOCGIFINDEX, &r))
        return fail(interface);
    a.sll_ifindex = group.mr_ifindex = raw.ifindex = r.ifr_ifindex;
    memcpy(group.mr_address, group_mac, 6);
    if (setsockopt(raw.fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) ||
        setsockopt(raw.fd, SOL_PACKET, PACKET_RX_RING, &q, sizeof q))
        return fail("receive ring");
    raw.ring = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, raw.fd, 0);
    if (raw.ring == MAP_FAILED)
        return fail("mapping the receive ring");
    if (setsockopt(raw.fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &group, sizeof group) || bind(raw.fd, (struct sockaddr *)&a, sizeof a))
        return fail("bind");
    return 0;
}

static void on_frame(const uint8_t *bytes, uint32_t size, uint64_t now)
{
    struct frame f;

    if (size < sizeof f)
        return;
    memcpy(&f, bytes, sizeof f);
    if (f.magic != magic || f.id < 1 || f.id > raw.stations || f.id == raw.id)
        return;
    raw.seen_mine[f.id - 1] = f.seen[raw.id - 1];
    if (!f.data)
        return;
    raw.lost += f.seq - raw.next[f.id - 1]; /* frames of one sender arrive in order on a bridge */
    raw.next[f.id - 1] = f.seq + 1;
    raw.received++;
    raw.unreported++;
    if (now >= raw.go.w0 && now < raw.go.w1)
        raw.in_window++;
}

/* Walk the blocks the kernel has handed over; 1 if there was one. */
static int receive(void)
{
    int any = 0;

    for (;;) {
        struct tpacket_block_desc *d = (void *)(raw.ring + (size_t)raw.block * BLOCK_BYTES);

        if (!(__atomic_load_n(&d->hdr.bh1.block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
            return any;
        struct tpacket3_hdr *h = (void *)((uint8_t *)d + d->hdr.bh1.offset_to_first_pkt);
        uint64_t now = zl_now(); /* once per block of some 160 frames */

        for (uint32_t i = 0; i < d->hdr.bh1.num_pkts; i++) {
            on_frame((uint8_t *)h + h->tp_mac, h->tp_snaplen, now);
            h = (void *)((uint8_t *)h + h->tp_next_offset);
        }
        __atomic_store_n(&d->hdr.bh1.block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        raw.block = (raw.block + 1) % (RING_BYTES / BLOCK_BYTES);
        any = 1;
    }
}

static void fill(uint8_t *to, int data)
{
    struct frame f = {.ethertype = htons(ETHERTYPE), .id = (uint16_t)raw.id, .magic = magic, .seq = raw.sent, .data = (uint8_t)data};

    memcpy(f.to, group_mac, 6);
    memcpy(f.from, raw.mac, 6);
    memcpy(f.seen, raw.next, sizeof f.seen);
    memcpy(to, &f, sizeof f);
    raw.sent += (uint32_t)data;
}

static int send_credit(void)
{
    uint8_t frame[sizeof(struct frame)];

    fill(frame, 0);
    raw.unreported = 0;
    raw.credits++;
    return send(raw.fd, frame, sizeof frame, MSG_DONTWAIT) < 0 && errno != ENOBUFS && errno != EAGAIN ? fail("send") : 0;
}

static uint32_t room(void)
{
    uint32_t ahead = 0;

    for (uint32_t i = 0; i < raw.stations; i++)
        if (i != raw.id - 1 && raw.sent - raw.seen_mine[i] > ahead)
            ahead = raw.sent - raw.seen_mine[i];
    return ahead < raw.window ? raw.window - ahead : 0;
}

static int send_batch(uint32_t count, uint8_t *bytes, struct mmsghdr *messages)
{
    uint32_t done = 0;

    for (uint32_t i = 0; i < count; i++)
        fill(bytes + (size_t)i * raw.length, 1);
    raw.unreported = 0;
    while (done < count) {
        int n = sendmmsg(raw.fd, messages + done, count - done, 0);

        if (n > 0)
            done += (uint32_t)n;
        else if (errno == ENOBUFS || errno == EAGAIN || errno == EINTR)
            raw.busy++;
        else
            return fail("sendmmsg");
    }
    return 0;
}

static int run(uint8_t *bytes, struct mmsghdr *messages)
{
    int sender = raw.id <= raw.senders;
    uint64_t stalled = 0;

    while (zl_now() < raw.go.t0) {
        receive();
        zl_poll(raw.fd, POLLIN, raw.go.t0);
    }
    for (;;) {
        int any = receive();
        uint64_t now = zl_now();
        uint32_t may = sender && now < raw.go.w1 ? room() : 0;

        if (now >= raw.go.end)
            return 0;
        if (may) {
            stalled = 0;
            if (send_batch(may < BATCH ? may : BATCH, bytes, messages))
                return -1;
        } else {
            if (!stalled)
                stalled = now;
            /* whoever does not send, or may not, still says what it has seen */
            if ((raw.unreported >= CREDIT_EVERY || (sender && now - stalled > STALL_NS && now < raw.go.w1)) && send_credit())
                return -1;
            if (now - stalled > STALL_NS)
                stalled = now;
            if (!any)
                zl_poll(raw.fd, POLLIN, now + STALL_NS / 2);
        }
    }
}

int zl_raw_main(int argc, char **argv)
{
    int go = 0, broken;

    prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
    raw.id = (uint32_t)strtoul(zl_argument(argc, argv, "--id", "0"), NULL, 10);
    raw.stations = (uint32_t)strtoul(zl_argument(argc, argv, "--stations", "0"), NULL, 10);
    raw.senders = (uint32_t)strtoul(zl_argument(argc, argv, "--senders", "0"), NULL, 10);
    raw.length = (uint32_t)strtoul(zl_argument(argc, argv, "--length", "1500"), NULL, 10);
    raw.window = (uint32_t)strtoul(zl_argument(argc, argv, "--window", "512"), NULL, 10);
    if (raw.stations < 2 || raw.stations > IDS_MAX || raw.id < 1 || raw.id > raw.stations || raw.senders < 1 ||
        raw.senders > raw.stations || raw.length < sizeof(struct frame) || raw.length > LENGTH_MAX || raw.window < 1) {
        fprintf(stderr, "raw: wrong arguments\n");
        return 2;
    }
    if (open_link(zl_argument(argc, argv, "--interface", "eth0")))
        return 1;
    uint8_t *bytes = malloc((size_t)BATCH * raw.length);
    static struct mmsghdr messages[BATCH];
    static struct iovec parts[BATCH];

    if (!bytes)
        return 1;
    zl_pattern(bytes, (size_t)BATCH * raw.length);
    for (uint32_t i = 0; i < BATCH; i++) {
        parts[i] = (struct iovec){bytes + (size_t)i * raw.length, raw.length};
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    printf("READY raw\n");
    fflush(stdout);
    while (!go) {
        go = zl_wait_go(&raw.go, zl_now() + STALL_NS * 1000u);
        if (go < 0)
            return 1;
    }
    broken = run(bytes, messages);

    struct tpacket_stats_v3 stats = {0};
    socklen_t size = sizeof stats;

    if (getsockopt(raw.fd, SOL_PACKET, PACKET_STATISTICS, &stats, &size))
        fail("statistics");
    printf("RESULT {\"id\":%u,\"broken\":%s,\"window_frames\":%" PRIu64 ",\"received\":%" PRIu64 ",\"sent\":%" PRIu32 ",\"lost\":%" PRIu64
           ",\"ring_drops\":%u,\"credits\":%" PRIu64 ",\"busy\":%" PRIu64 "}\n",
           raw.id, broken ? "true" : "false", raw.in_window, raw.received, raw.sent, raw.lost, stats.tp_drops, raw.credits, raw.busy);
    fflush(stdout);
    zl_wait_end();
    munmap(raw.ring, RING_BYTES);
    close(raw.fd);
    free(bytes);
    return 0;
}
