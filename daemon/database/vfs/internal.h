/* What the C files of the branch VFS share. */
#ifndef ZENJUN_VFS_INTERNAL_H
#define ZENJUN_VFS_INTERNAL_H

#include "vfs.h"

#include <sqlite3ext.h>
#include <stddef.h>
#include <string.h>

#define ZB_VFS_NAME "zenjun-branch"

/* The wal-index, as https://www.sqlite.org/walformat.html describes it (section 2): regions of 32 KiB; at the start of the first one
 * two copies of the header and the checkpoint information. In native byte order. */
enum {
    REGION_BYTES = 32768,
    HEADER_BYTES = 48,
    INFO_BYTES = 40,
    PREFIX_BYTES = 2 * HEADER_BYTES + INFO_BYTES,
    REGION_FRAMES = 4096,
    FIRST_FRAMES = REGION_FRAMES - PREFIX_BYTES / 4, /* of region 0: page numbers begin behind the prefix */
    HASH_SLOTS = 2 * REGION_FRAMES,
    SALT_AT = 32, /* in the header */
    SALT_BYTES = 8,
};

/* The private copy of the wal-index. Regions keep their addresses as long as the file is open: SQLite remembers them. */
struct index_copy {
    unsigned char **regions;
    uint32_t *have; /* frames in the region that are known to be right, under `salt` */
    uint32_t count;
    unsigned char salt[SALT_BYTES]; /* of the WAL's generation */
    unsigned char header[HEADER_BYTES];
};

/* A file of the writer: the database or its WAL. `sqlite3_file` first: SQLite knows it by that. The real file, open read-only, is
 * behind it in memory. */
struct branch_file {
    sqlite3_file base;
    sqlite3_file *real;
    struct branch_file *database; /* itself, or the database that this WAL belongs to */
    /* Of the database: */
    sqlite3 *reader;
    /* Statements of the reader, kept: to prepare them takes longer than to run them. NULL: not prepared yet. */
    sqlite3_stmt *begin, *schema, *question, *rollback;
    char *question_text; /* NULL: there is none */
    int armed; /* between zb_begin and zb_drop: there is a snapshot */
    int dirty; /* the writer has changed its WAL, and so its index, since zb_begin */
    struct index_copy index;
    sqlite3_int64 private_from; /* offset in the WAL from which on frames are the writer's own */
    struct branch_file *wal;    /* while it is open */
    /* Of the WAL: the file with the writer's own frames, and its size. */
    sqlite3_file *overlay;
    sqlite3_int64 overlay_bytes;
};

extern sqlite3_vfs *zb_unix;
extern const sqlite3_io_methods zb_methods;

/* index.c */
int zb_region(struct index_copy *x, uint32_t i);
int zb_peek(sqlite3_file *reader, unsigned char header[HEADER_BYTES]);
int zb_take(struct branch_file *db, sqlite3_file *reader, struct zb_begun *out);
void zb_forget(struct index_copy *x);
void zb_free(struct index_copy *x);

/* file.c */
void zb_clean(struct branch_file *db);

/* face.c */
void zb_unbind(struct branch_file *db);

#endif
