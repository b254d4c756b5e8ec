/* One link: a packet socket with a TPACKET_V2 ring on one interface, and batched sends on the same socket. Knows no other link.
 *
 * V2, not V3: a V3 block is handed over when it is full or its time-out is over, and that time-out would be the latency of a
 * quiet cluster. What V3 saves, the rest between batches (turn.c) saves as well.
 */
#include "internal.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

#define BLOCK_BYTES (64u * 1024u)
#define RING_BYTES_MIN (256u * 1024u)
#define SEND_BUFFER_BYTES (1024 * 1024)
/* Room in a slot beyond header and frame: a tag that the kernel left in place, and the trailers some switches add. */
#define SLOT_SLACK 32u

void link_init(struct dp_link *l, int epoll, uint64_t event)
{
    l->fd = -1;
    l->epoll = epoll;
    l->event = event;
}

/* Accept what is for us (host, broadcast, multicast), untagged or with a priority tag only, of our EtherType and cluster. The
 * kernel takes tags off before the filter runs and marks frames of VLANs that nobody here has as OTHERHOST. A load beyond the
 * frame's end makes the program return 0, so frames too short to name a cluster are dropped as well. */
uint32_t dp_filter(uint32_t ethertype, uint32_t cluster, uint8_t *out, uint32_t max)
{
    const struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_PKTTYPE)),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, PACKET_MULTICAST, 9, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 2, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_VLAN_TAG)),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x0fff, 5, 0),
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 2 * ETH_ALEN),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ethertype, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ETH_HLEN),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, cluster, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    const uint32_t count = sizeof program / sizeof *program;
    if (out && max >= sizeof program)
        memcpy(out, program, sizeof program);
    return count;
}

static int attach_filter(int fd, const struct dp_config *cfg)
{
    struct sock_filter program[16];
    const uint32_t count = dp_filter(cfg->ethertype, cfg->cluster, (uint8_t *)program, sizeof program);
    const struct sock_fprog p = {.len = (unsigned short)count, .filter = program};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &p, sizeof p) ? -errno : 0;
}

static int read_interface(int fd, const char *ifname, struct dp_link *l)
{
    struct ifreq r;
    memset(&r, 0, sizeof r);
    if (strlen(ifname) >= sizeof r.ifr_name)
        return -ENODEV;
    strcpy(r.ifr_name, ifname);
    if (ioctl(fd, SIOCGIFINDEX, &r))
        return -errno;
    l->ifindex = (uint32_t)r.ifr_ifindex;
    if (ioctl(fd, SIOCGIFFLAGS, &r))
        return -errno;
    if (!(r.ifr_flags & IFF_UP))
        return -ENETDOWN;
    if (ioctl(fd, SIOCGIFMTU, &r))
        return -errno;
    if (r.ifr_mtu <= 0)
        return -EINVAL;
    l->mtu = (uint32_t)r.ifr_mtu;
    if (ioctl(fd, SIOCGIFHWADDR, &r))
        return -errno;
    if (r.ifr_hwaddr.sa_family != ARPHRD_ETHER)
        return -EAFNOSUPPORT;
    memcpy(l->header + ETH_ALEN, r.ifr_hwaddr.sa_data, ETH_ALEN);
    return 0;
}

static uint32_t align(uint32_t size) { return (size + TPACKET_ALIGNMENT - 1u) & ~(TPACKET_ALIGNMENT - 1u); }

/* The largest ring the kernel gives, from the size configured downwards. */
static int map_ring(int fd, const struct dp_config *cfg, struct dp_link *l)
{
    const int version = TPACKET_V2;
    if (setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version))
        return -errno;
    const uint32_t before = align(align(sizeof(struct tpacket2_hdr)) + (uint32_t)sizeof(struct sockaddr_ll) + 16u);
    const uint32_t slot = align(before + ETH_HLEN + l->mtu + SLOT_SLACK);
    uint32_t block = BLOCK_BYTES;
    while (block < slot)
        block *= 2;
    uint64_t bytes = max64(cfg->ring_bytes, max64(RING_BYTES_MIN, block));
    for (;;) {
        const uint32_t blocks = (uint32_t)(bytes / block), per_block = block / slot;
        const struct tpacket_req request = {
            .tp_block_size = block, .tp_frame_size = slot, .tp_block_nr = blocks, .tp_frame_nr = blocks * per_block};
        if (setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) == 0) {
            const uint64_t size = (uint64_t)blocks * block;
            void *ring = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (ring != MAP_FAILED) {
                l->ring = ring;
                l->ring_bytes = size;
                l->block_bytes = block;
                l->slot_bytes = slot;
                l->per_block = per_block;
                l->blocks = blocks;
                l->block = l->slot = 0;
                return 0;
            }
            const int error = -errno;
            const struct tpacket_req none = {0};
            if (error != -ENOMEM || setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &none, sizeof none))
                return error;
        } else if (errno != ENOMEM) {
            return -errno;
        }
        if (bytes / 2 < max64(RING_BYTES_MIN, block))
            return -ENOMEM;
        bytes /= 2;
    }
}

int link_open(struct dp_link *l, const struct dp_config *cfg, const char *ifname)
{
    link_close(l);
    /* Protocol 0: the socket receives nothing before it is bound, so nothing comes past the filter or from another interface. */
    const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int error = read_interface(fd, ifname, l);
    if (error == 0)
        error = attach_filter(fd, cfg);
    if (error)
        goto fail;
    const int yes = 1, buffer = cfg->send_bytes ? (int)cfg->send_bytes : SEND_BUFFER_BYTES;
    /* Both may be refused: an older kernel, no CAP_NET_ADMIN. A socket bound to one EtherType sees no outgoing frames anyway. */
    (void)setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof yes);
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer))
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    error = map_ring(fd, cfg, l);
    if (error)
        goto fail;
    struct packet_mreq membership = {.mr_ifindex = (int)l->ifindex, .mr_type = PACKET_MR_MULTICAST, .mr_alen = ETH_ALEN};
    memcpy(membership.mr_address, cfg->group_mac, ETH_ALEN);
    const struct sockaddr_ll address = {.sll_family = AF_PACKET,
                                        .sll_protocol = htons((uint16_t)cfg->ethertype),
                                        .sll_ifindex = (int)l->ifindex};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = l->event};
    if (setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &membership, sizeof membership) ||
        bind(fd, (const struct sockaddr *)&address, sizeof address) || epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &event)) {
        error = -errno;
        goto fail;
    }
    l->fd = fd;
    l->watched = 1;
    memcpy(l->header, cfg->group_mac, ETH_ALEN);
    l->header[12] = (uint8_t)(cfg->ethertype >> 8);
    l->header[13] = (uint8_t)cfg->ethertype;
    return 0;
fail:
    if (l->ring)
        munmap(l->ring, l->ring_bytes);
    l->ring = NULL;
    l->ring_bytes = 0;
    close(fd);
    return error;
}

static void unwatch(struct dp_link *l)
{
    if (l->watched)
        (void)epoll_ctl(l->epoll, EPOLL_CTL_DEL, l->fd, NULL);
    l->watched = 0;
}

void link_mute(struct dp_link *l) { unwatch(l); }

void link_unmute(struct dp_link *l)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = l->event};
    if (l->fd < 0 || l->watched || l->error)
        return;
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->fd, &event) == 0)
        l->watched = 1;
    else
        link_fail(l, -errno); /* nothing would ever wake us for it */
}

void link_close(struct dp_link *l)
{
    if (l->fd >= 0) {
        link_count_drops(l);
        unwatch(l); /* before close: a descriptor that is still registered may be a stranger's by the time it is looked at */
        if (l->ring)
            munmap(l->ring, l->ring_bytes);
        close(l->fd);
    }
    l->fd = -1;
    l->ring = NULL;
    l->ring_bytes = 0;
    l->error = 0;
    l->error_is_new = 0;
    link_rested(l);
}

void link_fail(struct dp_link *l, int error)
{
    if (l->fd < 0 || l->error)
        return;
    /* A dead interface stays readable with an error: without this the loop would spin until it is opened again. */
    unwatch(l);
    l->error = error;
    l->error_is_new = 1;
}

void link_event(struct dp_link *l, uint32_t events)
{
    if (!(events & (EPOLLERR | EPOLLHUP)) || l->fd < 0)
        return;
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &size))
        error = errno;
    if (error)
        link_fail(l, -error);
}

void link_count_drops(struct dp_link *l)
{
    struct tpacket_stats s = {0};
    socklen_t size = sizeof s;
    if (l->fd >= 0 && getsockopt(l->fd, SOL_PACKET, PACKET_STATISTICS, &s, &size) == 0)
        l->counters.rx_kernel_drops += s.tp_drops; /* reading resets them */
}

/* A PDU that came, whole or in pieces, in a frame with this Ethernet header; 1: the core has taken it. */
static int pass_on(struct dp_link *l, const struct dp_above *above, uint64_t now, const uint8_t *frame, const struct zj_frame *pdu)
{
    l->of_streams += pdu->size >= ZJW_SIZEOF_HEADER && is_of_stream(pdu->data);
    if (is_pair(pdu)) {
        pairs_receive(above, (uint32_t)(l->event - EVENT_LINK), now, pdu, frame);
        return 0;
    }
    return above->api->rx(above->core, now, pdu->data, pdu->size, frame + ETH_ALEN) == ZJ_DROP_NONE;
}

/* What is no PDU, and counted: as it came, and what the guard has made of it. */
static void take_other(struct dp_link *l, const struct dp_above *above, uint64_t now, const uint8_t *frame, const struct zj_frame *whole,
                       const struct zj_frame *body, int refusal)
{
    const uint32_t link = (uint32_t)(l->event - EVENT_LINK);
    struct zj_frame pdu;
    l->counters.rx_refused[refusal]++;
    switch (refusal) {
    case DP_R_OWN:
        if (sealed_is_own(above->guard, whole))
            hearing_own(above->hearing, link, now);
        return;
    case DP_R_LINKS:
        hearing_links(above->hearing, link, whole, body, now);
        return;
    case DP_R_PROBE:
        hearing_probe(above->hearing, link, whole, body, now);
        return;
    case DP_R_PIECE:
        l->of_streams++;
        if (above->hearing->several)
            hearing_piece(above->hearing, link, whole, now);
        if (pieces_take(above->pieces, whole, body, now, &pdu))
            (void)pass_on(l, above, now, frame, &pdu);
        return;
    default:
        return;
    }
}

/* One frame, with its Ethernet header. */
static void receive_frame(struct dp_link *l, const struct dp_above *above, uint64_t now, const uint8_t *frame, uint32_t length)
{
    const struct zj_frame whole = {.data = frame + ETH_HLEN, .size = length - ETH_HLEN};
    const uint32_t link = (uint32_t)(l->event - EVENT_LINK), several = above->hearing->several;
    struct zj_frame pdu = whole;
    if (several && hearing_is_double(above->hearing, link, &whole, now)) {
        l->counters.rx_double++;
        hearing_copy(above->hearing, link, &whole, now);
        if (above->pairs->open)
            pairs_learn(above, link, hearing_source(above->hearing, &whole), frame + ETH_ALEN);
        return;
    }
    const int refusal = guard_is_plain(above->guard, &pdu) ? guard_open_plain(above->guard, &pdu) : guard_open(above->guard, &pdu, now);
    if (refusal)
        take_other(l, above, now, frame, &whole, &pdu, refusal);
    else if (pass_on(l, above, now, frame, &pdu) && several && pdu.size >= ZJW_SIZEOF_HEADER)
        hearing_accepted(above->hearing, link, &whole, &pdu, now);
    else if (several && above->guard->sealed)
        hearing_piece(above->hearing, link, &whole, now); /* a pair's, or of no use now: its second copy is no replay all the same */
}

uint32_t link_receive(struct dp_link *l, const struct dp_above *above, uint64_t now, uint32_t *drained)
{
    uint32_t frames = 0;
    l->of_streams = 0;
    if (!l->ring)
        return 0;
    uint8_t *slot = l->ring + (uint64_t)l->block * l->block_bytes + (uint64_t)l->slot * l->slot_bytes;
    for (;;) {
        struct tpacket2_hdr *h = (struct tpacket2_hdr *)(void *)slot;
        const uint32_t status = __atomic_load_n(&h->tp_status, __ATOMIC_ACQUIRE);
        if (!(status & TP_STATUS_USER))
            break;
        if (frames == DP_RX_BATCH) {
            *drained = 0;
            break;
        }
        if (++l->slot == l->per_block) {
            l->slot = 0;
            if (++l->block == l->blocks)
                l->block = 0;
        }
        uint8_t *next = l->ring + (uint64_t)l->block * l->block_bytes + (uint64_t)l->slot * l->slot_bytes;
        __builtin_prefetch(next);
        __builtin_prefetch(next + 64);
        __builtin_prefetch(next + 128);
        frames++;
        l->counters.rx_losing += (status & TP_STATUS_LOSING) != 0;
        const uint32_t length = h->tp_snaplen;
        if (length < h->tp_len || status & TP_STATUS_COPY) {
            l->counters.rx_truncated++;
        } else if (length >= ETH_HLEN && (uint32_t)h->tp_mac + length <= l->slot_bytes) {
            receive_frame(l, above, now, slot + h->tp_mac, length);
        }
        __atomic_store_n(&h->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        slot = next;
    }
    if (frames) {
        l->counters.rx_frames += frames;
        l->counters.rx_batches++;
    }
    return frames;
}

/* ---- sending ---- */
void link_wait(struct dp_link *l, uint64_t now)
{
    l->retry_ns = l->retry_ns ? min64(2 * l->retry_ns, DP_BUSY_MAX_NS) : DP_BUSY_FIRST_NS;
    l->retry_at = now + l->retry_ns;
}

static int is_link_error(int error) { return error == ENETDOWN || error == ENXIO || error == ENODEV; }

/* The kernel refused the frame in front, of a PDU of so many bytes. 1: it is dropped; 0: it stays, and the link waits, has failed, or
 * wants it in pieces. */
static int refused(struct dp_link *l, uint64_t now, int error, uint32_t size)
{
    if (l->base && size > l->base && (error == EMSGSIZE || (error == ENOBUFS && l->tries >= DP_SWALLOWED_TRIES))) {
        l->counters.tx_too_long++;
        l->too_large = 1;
        link_rested(l);
        return 0;
    }
    /* A queue that stays full for so long may be one that swallows just this frame (a veth whose peer has a smaller MTU says so
     * in this way): the next in line may be the word that keeps this station a member. */
    if ((error == EAGAIN || error == ENOBUFS) && ++l->tries < DP_BUSY_TRIES) {
        l->counters.tx_busy++;
        link_wait(l, now);
        return 0;
    }
    l->tries = 0;
    if (is_link_error(error)) {
        link_fail(l, -error);
        return 0;
    }
    /* The frame will not go through next time either: drop it, retransmission or the engine will notice. */
    if (error == EMSGSIZE)
        l->counters.tx_too_long++;
    else
        l->counters.tx_errors++;
    return 1;
}

int link_ready(const struct dp_link *l, uint64_t now) { return l->fd >= 0 && !l->error && now >= l->retry_at; }

void link_rested(struct dp_link *l)
{
    l->retry_at = l->retry_ns = 0;
    l->tries = 0;
}

/* The Ethernet header of a frame: to all, or to one station, then made in `own`. */
static uint8_t *header_to(struct dp_link *l, const uint8_t *to, uint8_t own[ETH_HLEN])
{
    if (!to)
        return l->header;
    memcpy(own, to, ETH_ALEN);
    memcpy(own + ETH_ALEN, l->header + ETH_ALEN, ETH_HLEN - ETH_ALEN);
    return own;
}

uint32_t link_transmit(struct dp_link *l, struct dp_batch *b, uint32_t first, uint32_t end, uint64_t now)
{
    uint32_t done = first;
    for (uint32_t i = first; i < end; i++)
        b->parts[i][0] = (struct iovec){header_to(l, b->to[i], b->header[i]), sizeof l->header};
    while (done < end) {
        const int sent = sendmmsg(l->fd, b->messages + done, end - done, MSG_DONTWAIT);
        if (sent > 0) {
            for (uint32_t i = 0; i < (uint32_t)sent; i++)
                l->counters.tx_bytes += b->messages[done + i].msg_len;
            l->counters.tx_batches++;
            l->counters.tx_frames += (uint32_t)sent;
            link_rested(l);
            done += (uint32_t)sent;
            continue; /* after a short batch the next call names the reason */
        }
        const int error = sent < 0 ? errno : EAGAIN;
        if (error == EINTR)
            continue;
        if (!refused(l, now, error, b->frames[done].size))
            break;
        done++;
    }
    return done - first;
}

int link_send(struct dp_link *l, const uint8_t *to, const struct iovec *parts, uint32_t count)
{
    if (l->fd < 0)
        return -ENOTCONN;
    if (l->error)
        return l->error;
    uint8_t header[sizeof l->header];
    memcpy(header, l->header, sizeof header);
    if (to)
        memcpy(header, to, ETH_ALEN);
    struct iovec all[1 + DP_GUARD_PARTS] = {{header, sizeof header}};
    memcpy(all + 1, parts, count * sizeof *parts);
    const struct msghdr message = {.msg_iov = all, .msg_iovlen = 1 + count};
    ssize_t sent;
    do
        sent = sendmsg(l->fd, &message, MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        l->counters.tx_frames++;
        l->counters.tx_bytes += (uint64_t)sent;
        return 0;
    }
    const int error = errno;
    if (error == EAGAIN || error == ENOBUFS)
        l->counters.tx_busy++;
    else if (error == EMSGSIZE)
        l->counters.tx_too_long++;
    else if (is_link_error(error))
        link_fail(l, -error);
    else
        l->counters.tx_errors++;
    return -error;
}
