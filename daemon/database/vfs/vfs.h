/* The branch VFS: private write transactions on a database that another connection, the applier's, changes meanwhile.
 *
 * A branch is two connections of one process to one database in WAL mode. The *reader* is an ordinary connection (VFS "unix", opened
 * read-only); its read transaction pins a snapshot. The *writer* is opened with the VFS "zenjun-branch". It sees exactly the reader's
 * snapshot, may change it, spill and COMMIT, and nothing of that reaches the database: the pages it writes go to a temporary file of
 * its own. So any number of branches write side by side, and none of them holds up the applier, a checkpoint or each other.
 *
 * The functions take `sqlite3 *` as `void *`, and return SQLite's result codes. SQLITE_MISUSE: not connections of that kind, or not
 * in the state that is asked for. A branch belongs to one thread.
 */
#ifndef ZENJUN_VFS_H
#define ZENJUN_VFS_H

#include <stddef.h>
#include <stdint.h>

struct zb_begun {
    uint32_t frames;     /* of the WAL that belong to the snapshot */
    uint32_t backfilled; /* of these, in the database's file already */
    uint32_t regions;    /* of the wal-index that were copied this time */
    uint32_t retries;    /* attempts in vain: a commit or a reset of the WAL came between */
    uint32_t schema;     /* SQLite's number of the schema */
    uint32_t has_facts;  /* 1: the two numbers that the question of zb_bind asks for */
    int64_t facts[2];
};

/* 1 once SQLite has loaded this file as an extension, which registers the VFS. */
int zb_loaded(void);

/* Makes the two connections a branch, once, before the first zb_begin. The reader must be open as long as the writer is, which is to
 * be closed first: it has statements of the reader. question: a SELECT of two numbers that is answered with each zb_begin, if it can
 * be; NULL: none. SQLITE_MISMATCH: they are not connections to the same file. */
int zb_bind(void *writer, void *reader, const char *question);

/* Begins a read transaction at the reader, and shows its snapshot to the writer. Neither may have a transaction.
 * SQLITE_BUSY: within the reader's busy time-out no snapshot could be had. Other codes are the reader's. The reader has no
 * transaction then. */
int zb_begin(void *writer, struct zb_begun *out);

/* Takes the snapshot from the writer, which must have no transaction, and must come before the reader's transaction ends. A statement
 * at the writer fails with SQLITE_IOERR from now on, until the next zb_begin. */
int zb_drop(void *writer);

/* Ends the transactions of both, with zb_drop between: nothing of them is left. Without transactions nothing happens. */
int zb_end(void *writer);

/* Gives a connection the aggregate zenjun_sum(value, ...): 24 bytes that are equal for equal sets of rows, in any order. */
int zb_add_sum(void *connection);

/* Reads the database's file as it is, through the descriptor that SQLite has: another one, closed, would drop the locks of the process.
 * SQLITE_IOERR_SHORT_READ: it ends before; the rest of *out* is zero. */
int zb_read(void *connection, unsigned char *out, int size, int64_t at);

/* Continues the checksum of a write-ahead log over *size* bytes, a multiple of 8. big_endian: how the log has its words. */
void zb_wal_sum(const unsigned char *data, size_t size, int big_endian, uint32_t sum[2]);

/* Eight bytes for each block of *block* bytes, and for the shorter one at the end, to *out*. Another seed, other sums: blocks that are
 * different and have the same sum, by chance or because somebody made them so, have other sums the next time. */
void zb_block_sums(const unsigned char *data, size_t size, size_t block, uint64_t seed, unsigned char *out);

/* Has the kernel begin to write these bytes of a file to the disk, and does not wait for that. It promises nothing: a sync does. */
void zb_write_out(int fd, int64_t at, int64_t size);

/* A thread that syncs one file after another. One thread of the program uses it. */
struct zb_disk;

/* NULL: no memory, no descriptor, or no thread. */
struct zb_disk *zb_disk_open(void);

/* A descriptor that can be read when a sync has ended. It is closed with the rest, some time after zb_disk_close. */
int zb_disk_told(const struct zb_disk *disk);

/* Begins fdatasync(fd), and closes fd afterwards. EBUSY: the one before has not ended, and fd is as it was. */
int zb_disk_sync(struct zb_disk *disk, int fd);

/* 1: a sync has ended, with *error of errno, 0: none, after *ns. 0: none has ended since the last call. */
int zb_disk_take(struct zb_disk *disk, int *error, int64_t *ns);

/* A sync that is under way comes to its end, and nobody is told. */
void zb_disk_close(struct zb_disk *disk);

#endif
