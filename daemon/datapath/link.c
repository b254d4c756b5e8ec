/* The link: one packet socket with a TPACKET_V2 ring on one interface, and batched sends on the same socket.
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

void link_init(struct dp *d)
{
    struct dp_link *l = &d->link;
    l->fd = -1;
    for (uint32_t i = 0; i < DP_TX_BATCH; i++) {
        l->parts[i][0] = (struct iovec){l->header, sizeof l->header};
        l->messages[i].msg_hdr.msg_iov = l->parts[i];
        l->parts[i][2] = (struct iovec){l->seals[i], DP_SEAL_BYTES};
        l->messages[i].msg_hdr.msg_iovlen = d->cfg.sealed ? 3 : 2;
    }
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
    const uint32_t slot = align(align(align(sizeof(struct tpacket2_hdr)) + (uint32_t)sizeof(struct sockaddr_ll) + 16u) + ETH_HLEN + l->mtu + SLOT_SLACK);
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

int dp_link_open(struct dp *d, const char *ifname, uint32_t *ifindex, uint8_t mac[6], uint32_t *mtu)
{
    struct dp_link *l = &d->link;
    dp_link_close(d);
    /* Protocol 0: the socket receives nothing before it is bound, so nothing comes past the filter or from another interface. */
    const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int error = read_interface(fd, ifname, l);
    if (error == 0)
        error = attach_filter(fd, &d->cfg);
    if (error)
        goto fail;
    const int yes = 1, buffer = d->cfg.send_bytes ? (int)d->cfg.send_bytes : SEND_BUFFER_BYTES;
    /* Both may be refused: an older kernel, no CAP_NET_ADMIN. A socket bound to one EtherType sees no outgoing frames anyway. */
    (void)setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof yes);
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer))
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    error = map_ring(fd, &d->cfg, l);
    if (error)
        goto fail;
    struct packet_mreq membership = {.mr_ifindex = (int)l->ifindex, .mr_type = PACKET_MR_MULTICAST, .mr_alen = ETH_ALEN};
    memcpy(membership.mr_address, d->cfg.group_mac, ETH_ALEN);
    const struct sockaddr_ll address = {.sll_family = AF_PACKET,
                                        .sll_protocol = htons((uint16_t)d->cfg.ethertype),
                                        .sll_ifindex = (int)l->ifindex};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    if (setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &membership, sizeof membership) ||
        bind(fd, (const struct sockaddr *)&address, sizeof address) || epoll_ctl(d->epoll, EPOLL_CTL_ADD, fd, &event)) {
        error = -errno;
        goto fail;
    }
    l->fd = fd;
    l->watched = 1;
    memcpy(l->header, d->cfg.group_mac, ETH_ALEN);
    l->header[12] = (uint8_t)(d->cfg.ethertype >> 8);
    l->header[13] = (uint8_t)d->cfg.ethertype;
    if (ifindex)
        *ifindex = l->ifindex;
    if (mac)
        memcpy(mac, l->header + ETH_ALEN, ETH_ALEN);
    if (mtu)
        *mtu = l->mtu;
    return 0;
fail:
    if (l->ring)
        munmap(l->ring, l->ring_bytes);
    l->ring = NULL;
    l->ring_bytes = 0;
    close(fd);
    return error;
}

static void unwatch(struct dp *d)
{
    if (d->link.watched)
        (void)epoll_ctl(d->epoll, EPOLL_CTL_DEL, d->link.fd, NULL);
    d->link.watched = 0;
}

void link_mute(struct dp *d) { unwatch(d); }

void link_unmute(struct dp *d)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    if (d->link.fd < 0 || d->link.watched || d->link.error)
        return;
    if (epoll_ctl(d->epoll, EPOLL_CTL_ADD, d->link.fd, &event) == 0)
        d->link.watched = 1;
    else
        link_fail(d, -errno); /* nothing would ever wake us for it */
}

void dp_link_close(struct dp *d)
{
    struct dp_link *l = &d->link;
    if (l->fd >= 0) {
        (void)dp_link_drops(d, NULL);
        unwatch(d); /* before close: a descriptor that is still registered may be a stranger's by the time it is looked at */
        if (l->ring)
            munmap(l->ring, l->ring_bytes);
        close(l->fd);
    }
    l->fd = -1;
    l->ring = NULL;
    l->ring_bytes = 0;
    l->error = 0;
    l->retry_at = l->retry_ns = 0;
    l->tries = 0;
    d->link_news = 0;
}

void link_fail(struct dp *d, int error)
{
    if (d->link.fd < 0 || d->link.error)
        return;
    /* A dead interface stays readable with an error: without this the loop would spin until somebody reopens the link. */
    unwatch(d);
    d->link.error = error;
    d->link_news = 1;
}

void link_event(struct dp *d, uint32_t events)
{
    if (!(events & (EPOLLERR | EPOLLHUP)) || d->link.fd < 0)
        return;
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(d->link.fd, SOL_SOCKET, SO_ERROR, &error, &size))
        error = errno;
    if (error)
        link_fail(d, -error);
}

int dp_link_error(struct dp *d) { return d->link.error; }

uint64_t dp_link_ring(const struct dp *d) { return d->link.ring_bytes; }

int dp_link_drops(struct dp *d, uint64_t *drops)
{
    if (d->link.fd >= 0) {
        struct tpacket_stats s = {0};
        socklen_t size = sizeof s;
        if (getsockopt(d->link.fd, SOL_PACKET, PACKET_STATISTICS, &s, &size))
            return -errno;
        d->counters.rx_kernel_drops += s.tp_drops; /* reading resets them */
    }
    if (drops)
        *drops = d->counters.rx_kernel_drops;
    return 0;
}

uint32_t link_receive(struct dp *d, uint64_t now, uint32_t *drained)
{
    struct dp_link *l = &d->link;
    uint32_t frames = 0;
    *drained = 1;
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
        d->counters.rx_losing += (status & TP_STATUS_LOSING) != 0;
        const uint32_t length = h->tp_snaplen;
        if (length < h->tp_len || status & TP_STATUS_COPY) {
            d->counters.rx_truncated++;
        } else if (length >= ETH_HLEN && (uint32_t)h->tp_mac + length <= l->slot_bytes) {
            const uint8_t *frame = slot + h->tp_mac;
            if (d->cfg.sealed && !seal_fits(d, frame + ETH_HLEN, length - ETH_HLEN))
                d->counters.rx_unsealed++;
            else
                (void)d->api->rx(d->core, now, frame + ETH_HLEN, length - ETH_HLEN, frame + ETH_ALEN);
        }
        __atomic_store_n(&h->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        slot = next;
    }
    if (frames) {
        d->counters.rx_frames += frames;
        d->counters.rx_batches++;
    }
    return frames;
}

static void wait_for_queue(struct dp *d, uint64_t now)
{
    struct dp_link *l = &d->link;
    d->counters.tx_busy++;
    l->retry_ns = l->retry_ns ? min64(2 * l->retry_ns, DP_BUSY_MAX_NS) : DP_BUSY_FIRST_NS;
    l->retry_at = now + l->retry_ns;
}

static int is_link_error(int error) { return error == ENETDOWN || error == ENXIO || error == ENODEV; }

uint32_t link_transmit(struct dp *d, uint64_t now, uint32_t *more)
{
    struct dp_link *l = &d->link;
    uint32_t total = 0;
    if (l->fd < 0 || l->error || (l->retry_at && now < l->retry_at))
        return 0;
    for (uint32_t batch = 0; batch < DP_TX_BATCHES;) {
        const uint32_t count = d->api->tx(d->core, l->frames, DP_TX_BATCH);
        if (count == 0)
            return total;
        for (uint32_t i = 0; i < count; i++) {
            l->parts[i][1] = (struct iovec){(void *)(uintptr_t)l->frames[i].data, l->frames[i].size};
            if (d->cfg.sealed)
                seal_put(d, l->seals[i], l->frames[i].data, l->frames[i].size);
        }
        const int sent = sendmmsg(l->fd, l->messages, count, MSG_DONTWAIT);
        if (sent > 0) {
            uint64_t bytes = 0;
            for (uint32_t i = 0; i < (uint32_t)sent; i++)
                bytes += l->messages[i].msg_len;
            d->counters.tx_batches++;
            d->counters.tx_frames += (uint32_t)sent;
            d->counters.tx_bytes += bytes;
            l->retry_at = l->retry_ns = 0;
            l->tries = 0;
            d->api->tx_done(d->core, now, (uint32_t)sent);
            total += (uint32_t)sent;
            /* After a short batch the next call names the reason. */
            batch += (uint32_t)sent == count;
            continue;
        }
        const int error = sent < 0 ? errno : EAGAIN;
        if (error == EINTR)
            continue;
        /* A queue that stays full for so long may be one that swallows just this frame (a veth whose peer has a smaller MTU says so
         * in this way): the next in line may be the word that keeps this station a member. */
        if ((error == EAGAIN || error == ENOBUFS) && ++l->tries < DP_BUSY_TRIES) {
            wait_for_queue(d, now);
            return total;
        }
        l->tries = 0;
        if (is_link_error(error)) {
            link_fail(d, -error);
            return total;
        }
        /* The frame will not go through next time either: drop it, retransmission or the engine will notice. */
        if (error == EMSGSIZE)
            d->counters.tx_too_long++;
        else
            d->counters.tx_errors++;
        d->api->tx_done(d->core, now, 1);
        total++;
    }
    *more = 1;
    return total;
}

int dp_link_send(struct dp *d, const uint8_t *pdu, uint32_t size)
{
    struct dp_link *l = &d->link;
    if (l->fd < 0)
        return -ENOTCONN;
    if (l->error)
        return l->error;
    uint8_t seal[DP_SEAL_BYTES];
    struct iovec parts[3] = {{l->header, sizeof l->header}, {(void *)(uintptr_t)pdu, size}, {seal, sizeof seal}};
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = d->cfg.sealed ? 3 : 2};
    if (d->cfg.sealed)
        seal_put(d, seal, pdu, size);
    ssize_t sent;
    do
        sent = sendmsg(l->fd, &message, MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        d->counters.tx_frames++;
        d->counters.tx_bytes += (uint64_t)sent;
        return 0;
    }
    const int error = errno;
    if (error == EAGAIN || error == ENOBUFS)
        d->counters.tx_busy++;
    else if (error == EMSGSIZE)
        d->counters.tx_too_long++;
    else if (is_link_error(error))
        link_fail(d, -error);
    else
        d->counters.tx_errors++;
    return -error;
}
