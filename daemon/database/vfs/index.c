/* The writer's copy of the wal-index, taken at a moment when it describes the reader's snapshot.
 *
 * The header of the wal-index says which frames of the WAL are committed. The reader's snapshot is that header at the moment when its
 * read transaction began, but SQLite does not tell it. So: read the live header, begin the reader's transaction, read the live header
 * again. If it is the same, it was the same when the transaction began, for it never returns to what it was: a commit raises the
 * change counter, and a reset of the WAL draws a new salt. Then the number of frames that are backfilled is copied, and the header
 * compared once more: a reset writes the header first, and sets that number to 0 afterwards.
 *
 * The reader's lock keeps what the copy refers to: frames up to the header's last one are not overwritten, and pages in the database's
 * file do not become newer than the snapshot. If all frames are backfilled the copy needs no regions, and the writer reads the file
 * alone.
 */
#include "internal.h"

SQLITE_EXTENSION_INIT3

enum { INDEX_VERSION = 3007000, HEADER_READS_MAX = 1000 };

static uint32_t u32_at(const unsigned char *p, size_t at)
{
    uint32_t v;
    memcpy(&v, p + at, sizeof v);
    return v;
}

static void u32_put(unsigned char *p, size_t at, uint32_t v) { memcpy(p + at, &v, sizeof v); }

static uint32_t header_frames(const unsigned char *h) { return u32_at(h, 16); }

static uint32_t header_page_bytes(const unsigned char *h)
{
    uint16_t v;
    memcpy(&v, h + 14, sizeof v);
    return v == 1 ? 65536 : v;
}

/* Version, the flag "initialised", and the checksum over what is before it. */
static int header_valid(const unsigned char *h)
{
    uint32_t s1 = 0, s2 = 0;
    for (size_t at = 0; at < 40; at += 8) {
        s1 += u32_at(h, at) + s2;
        s2 += u32_at(h, at + 4) + s1;
    }
    return h[12] && u32_at(h, 0) == INDEX_VERSION && s1 == u32_at(h, 40) && s2 == u32_at(h, 44);
}

/* The region that a frame, counted from 1, is in. */
static uint32_t frame_region(uint32_t frame) { return (frame + REGION_FRAMES - FIRST_FRAMES - 1) / REGION_FRAMES; }

/* Frames in the regions before this one. */
static uint32_t frames_before(uint32_t region) { return region == 0 ? 0 : FIRST_FRAMES + (region - 1) * REGION_FRAMES; }

/* Region *i* of the shared wal-index, as the reader's connection has it mapped. SQLITE_NOTFOUND: there is none. */
static int shared_region(sqlite3_file *reader, uint32_t i, const volatile unsigned char **out)
{
    void volatile *p = NULL;
    int rc = reader->pMethods->xShmMap(reader, (int)i, REGION_BYTES, 0, &p);
    if (rc == SQLITE_READONLY) /* mapped, but not to be written */
        rc = SQLITE_OK;
    *out = p;
    return rc != SQLITE_OK ? rc : p ? SQLITE_OK : SQLITE_NOTFOUND;
}

/* The live header, both copies equal. SQLITE_NOTFOUND: none, or it is being written all the time. */
int zb_peek(sqlite3_file *reader, unsigned char header[HEADER_BYTES])
{
    const volatile unsigned char *p;
    int rc = shared_region(reader, 0, &p);
    if (rc != SQLITE_OK)
        return rc;
    for (int i = 0; i < HEADER_READS_MAX; i++) {
        unsigned char second[HEADER_BYTES];
        memcpy(header, (const void *)(uintptr_t)p, HEADER_BYTES);
        __sync_synchronize();
        memcpy(second, (const void *)(uintptr_t)(p + HEADER_BYTES), HEADER_BYTES);
        __sync_synchronize();
        if (memcmp(header, second, HEADER_BYTES) == 0 && header_valid(header))
            return SQLITE_OK;
    }
    return SQLITE_NOTFOUND;
}

/* The header is still the same. SQLITE_NOTFOUND: it is not. */
static int still(sqlite3_file *reader, const unsigned char header[HEADER_BYTES], size_t at, size_t size)
{
    unsigned char now[HEADER_BYTES];
    const int rc = zb_peek(reader, now);
    return rc != SQLITE_OK ? rc : memcmp(now + at, header + at, size) == 0 ? SQLITE_OK : SQLITE_NOTFOUND;
}

/* Makes room for region *i*, zeroed if it is new. */
int zb_region(struct index_copy *x, uint32_t i)
{
    if (i >= x->count) {
        const uint32_t count = i + 1;
        unsigned char **regions = sqlite3_realloc64(x->regions, count * sizeof *regions);
        if (!regions)
            return SQLITE_NOMEM;
        x->regions = regions;
        uint32_t *have = sqlite3_realloc64(x->have, count * sizeof *have);
        if (!have)
            return SQLITE_NOMEM;
        x->have = have;
        for (; x->count < count; x->count++) {
            x->regions[x->count] = NULL;
            x->have[x->count] = 0;
        }
    }
    if (!x->regions[i]) {
        x->regions[i] = sqlite3_malloc64(REGION_BYTES);
        if (!x->regions[i])
            return SQLITE_NOMEM;
        memset(x->regions[i], 0, REGION_BYTES);
    }
    return SQLITE_OK;
}

/* No frame of the copy is known to be right. */
void zb_forget(struct index_copy *x)
{
    for (uint32_t i = 0; i < x->count; i++)
        x->have[i] = 0;
}

void zb_free(struct index_copy *x)
{
    for (uint32_t i = 0; i < x->count; i++)
        sqlite3_free(x->regions[i]);
    sqlite3_free(x->regions);
    sqlite3_free(x->have);
    memset(x, 0, sizeof *x);
}

/* Removes from a region what is behind frame *upto* in it. The applier may be writing these entries while the region is copied, slots
 * of the hash table before or after page numbers; the writer would find slots of frames that it is about to write itself. */
static void clear_behind(unsigned char *region, uint32_t i, uint32_t upto)
{
    const size_t numbers = i == 0 ? PREFIX_BYTES : 0, hash = REGION_FRAMES * sizeof(uint32_t);
    uint16_t *slots = (uint16_t *)(void *)(region + hash);
    for (size_t s = 0; s < HASH_SLOTS; s++)
        if (slots[s] > upto)
            slots[s] = 0;
    const size_t from = numbers + upto * sizeof(uint32_t);
    memset(region + from, 0, hash - from);
}

/* Copies what is new of the regions with the frames *first* to *last*. */
static int copy_regions(struct index_copy *x, sqlite3_file *reader, uint32_t first, uint32_t last, uint32_t *copied)
{
    const uint32_t end = frame_region(last);
    for (uint32_t i = frame_region(first); i <= end; i++) {
        const uint32_t upto = (i < end ? frames_before(i + 1) : last) - frames_before(i);
        const size_t at = i == 0 ? PREFIX_BYTES : 0;
        const volatile unsigned char *shared;
        int rc = zb_region(x, i);
        if (rc != SQLITE_OK)
            return rc;
        if (x->have[i] >= upto)
            continue;
        rc = shared_region(reader, i, &shared);
        if (rc != SQLITE_OK)
            return rc == SQLITE_NOTFOUND ? SQLITE_CORRUPT : rc;
        memcpy(x->regions[i] + at, (const void *)(uintptr_t)(shared + at), REGION_BYTES - at);
        if (upto < frames_before(i + 1) - frames_before(i))
            clear_behind(x->regions[i], i, upto);
        x->have[i] = upto;
        ++*copied;
    }
    __sync_synchronize();
    return SQLITE_OK;
}

/* Header and checkpoint information of the copy: one reader, whose mark is the last frame. */
static void write_prefix(struct branch_file *db, uint32_t frames, uint32_t backfilled)
{
    unsigned char *p = db->index.regions[0], *info = p + 2 * HEADER_BYTES;
    memcpy(p, db->index.header, HEADER_BYTES);
    memcpy(p + HEADER_BYTES, db->index.header, HEADER_BYTES);
    memset(info, 0, INFO_BYTES);
    u32_put(info, 0, backfilled);
    u32_put(info, 8, frames); /* read marks are from 4 on: 0, this one, and three unused */
    for (size_t at = 12; at <= 20; at += 4)
        u32_put(info, at, 0xffffffff);
    u32_put(info, 32, backfilled); /* attempted */
    /* With all frames backfilled SQLite begins the WAL anew. */
    db->private_from = backfilled == frames ? 0 : 32 + (sqlite3_int64)frames * (24 + header_page_bytes(db->index.header));
}

/* Copies the wal-index if its header is still the one in `db->index.header`, which zb_peek read before the reader's transaction
 * began. SQLITE_NOTFOUND: it is not; try again. */
int zb_take(struct branch_file *db, sqlite3_file *reader, struct zb_begun *out)
{
    struct index_copy *x = &db->index;
    const volatile unsigned char *shared;
    unsigned char info[INFO_BYTES];
    int rc = still(reader, x->header, 0, HEADER_BYTES);
    if (rc == SQLITE_OK)
        rc = shared_region(reader, 0, &shared);
    if (rc != SQLITE_OK)
        return rc;
    memcpy(info, (const void *)(uintptr_t)(shared + 2 * HEADER_BYTES), INFO_BYTES);
    __sync_synchronize();
    rc = still(reader, x->header, 0, HEADER_BYTES);
    if (rc != SQLITE_OK)
        return rc;
    const uint32_t frames = header_frames(x->header), backfilled = u32_at(info, 0);
    if (backfilled > frames)
        return SQLITE_NOTFOUND;
    zb_clean(db);
    if (memcmp(x->salt, x->header + SALT_AT, SALT_BYTES) != 0) {
        zb_forget(x);
        memcpy(x->salt, x->header + SALT_AT, SALT_BYTES);
    }
    rc = zb_region(x, 0);
    out->regions = 0;
    if (rc == SQLITE_OK && backfilled < frames) {
        rc = copy_regions(x, reader, backfilled + 1, frames, &out->regions);
        if (rc == SQLITE_OK) /* the reader's lock forbids a reset of the WAL; if there was one, nothing of the copy is right */
            rc = still(reader, x->header, SALT_AT, SALT_BYTES);
        if (rc != SQLITE_OK)
            zb_forget(x);
    }
    if (rc != SQLITE_OK)
        return rc;
    write_prefix(db, frames, backfilled);
    out->frames = frames;
    out->backfilled = backfilled;
    db->armed = 1;
    return SQLITE_OK;
}
