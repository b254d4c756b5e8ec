/* Messages of several PDUs, put together in memory that grows with what has really come: a station that announces 16 MiB and sends
 * one piece costs one piece. Pages come from the system and go back to it whole, so what was needed once is not held forever. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "zj_int.h"

#define UNIT (16u << 10)      /* bytes, whole pages */
#define IDLE_NS 1000000000ull /* memory that has not been used for so long is given back */

static void give_back(zj_core *c, struct assembly *a)
{
    if (a->cap)
        munmap(a->whole, a->cap);
    c->assembly.bytes -= a->cap;
    a->whole = NULL;
    a->cap = 0;
}

/* Room for `need` bytes of a message of a->total. Twice what there was, but no more than the message can use: what is copied, and
 * what is reserved beyond what came, stay in proportion to what came. 0: the system refuses. */
static int grow(zj_core *c, struct assembly *a, uint32_t need)
{
    uint32_t cap = 2 * a->cap > need ? 2 * a->cap : need;
    if (need <= a->cap)
        return 1;
    if (c->assembly.refused)
        return 0;
    if (cap > a->total)
        cap = a->total;
    cap = (cap + UNIT - 1) / UNIT * UNIT;
    void *whole = a->cap ? mremap(a->whole, a->cap, cap, MREMAP_MAYMOVE)
                         : mmap(NULL, cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED)
        return 0;
    c->assembly.bytes += cap - a->cap;
    a->whole = whole;
    a->cap = cap;
    return 1;
}

int assemble(zj_core *c, struct assembly *a, const uint8_t *f, struct zj_message *out, int keep)
{
    uint32_t total = get32(f + ZJW_FRAGMENT_TOTAL), offset = get32(f + ZJW_FRAGMENT_OFFSET);
    if (!offset) {
        a->total = total;
        a->done = 0;
    }
    if (total > c->cfg.message_max || total != a->total || offset != a->done) {
        a->total = a->done = 0; /* a source that does this is broken; its other messages are not */
        return PART;
    }
    if (keep) {
        if (!grow(c, a, offset + out->size)) {
            c->assembly.starved = a;
            c->assembly.need = offset + out->size;
            c->count.memory_refused++;
            return STARVED;
        }
        memcpy(a->whole + offset, out->data, out->size);
        a->used = 1;
    }
    a->done += out->size;
    if (a->done < total)
        return PART;
    out->data = a->whole;
    out->size = total;
    a->total = a->done = 0;
    return WHOLE;
}

int assembly_starves(zj_core *c)
{
    if (c->assembly.starved && grow(c, c->assembly.starved, c->assembly.need))
        c->assembly.starved = NULL;
    return c->assembly.starved != NULL;
}

void assembly_forget(zj_core *c, struct assembly *a)
{
    a->total = a->done = 0;
    if (c->assembly.starved == a)
        c->assembly.starved = NULL;
}

void assembly_tidy(zj_core *c, uint64_t now)
{
    if (!c->assembly.bytes || now < c->assembly.tidy_at)
        return;
    for (uint32_t i = 0; i < ZJ_ORDERINGS * c->n; i++) {
        struct assembly *a = &c->st[i / ZJ_ORDERINGS].parts[i % ZJ_ORDERINGS];
        if (!a->used && !a->done && c->assembly.starved != a)
            give_back(c, a);
        a->used = 0;
    }
    c->assembly.tidy_at = now + IDLE_NS;
}

void assembly_end(zj_core *c, uint32_t h)
{
    for (uint32_t k = 0; k < ZJ_ORDERINGS; k++)
        give_back(c, &c->st[h].parts[k]);
}

uint64_t zj_assembling(const zj_core *c) { return c->assembly.bytes; }

int zj_starves(const zj_core *c) { return (c->is_open || c->flush.on) && c->assembly.starved; }

void zj_refuse_memory(zj_core *c, uint32_t yes) { c->assembly.refused = yes != 0; }
