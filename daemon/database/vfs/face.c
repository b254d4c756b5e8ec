/* What Python calls: a branch is bound, begun and dropped. */
#include "internal.h"

SQLITE_EXTENSION_INIT3

enum { TRIES_MAX = 10000 };

int zb_loaded(void) { return zb_unix != NULL; }

/* The writer's database file; NULL: it is not a connection with our VFS. */
static struct branch_file *writer_file(sqlite3 *writer)
{
    sqlite3_file *f = NULL;
    if (!zb_unix || !writer || sqlite3_file_control(writer, "main", SQLITE_FCNTL_FILE_POINTER, &f) != SQLITE_OK || !f)
        return NULL;
    return f->pMethods == &zb_methods ? (struct branch_file *)(void *)f : NULL;
}

/* The reader's database file; NULL: it is not an open connection with the VFS "unix". */
static sqlite3_file *reader_file(sqlite3 *reader)
{
    sqlite3_file *f = NULL;
    sqlite3_vfs *v = NULL;
    if (!reader || sqlite3_file_control(reader, "main", SQLITE_FCNTL_VFS_POINTER, &v) != SQLITE_OK || v != zb_unix)
        return NULL;
    if (sqlite3_file_control(reader, "main", SQLITE_FCNTL_FILE_POINTER, &f) != SQLITE_OK)
        return NULL;
    return f && f->pMethods && f->pMethods->iVersion >= 2 ? f : NULL;
}

int zb_bind(void *writer, void *reader)
{
    struct branch_file *db = writer_file(writer);
    if (!db || db->reader || !reader_file(reader))
        return SQLITE_MISUSE;
    const char *a = sqlite3_db_filename(writer, "main"), *b = sqlite3_db_filename(reader, "main");
    if (!a || !b || strcmp(a, b) != 0)
        return SQLITE_MISMATCH;
    db->reader = reader;
    return SQLITE_OK;
}

static int has_transaction(sqlite3 *db)
{
    return !sqlite3_get_autocommit(db) || sqlite3_txn_state(db, "main") != SQLITE_TXN_NONE;
}

int zb_begin(void *writer, struct zb_begun *out)
{
    struct branch_file *db = writer_file(writer);
    sqlite3_file *reader = db ? reader_file(db->reader) : NULL;
    int rc = SQLITE_NOTFOUND;
    memset(out, 0, sizeof *out);
    if (!reader || has_transaction(db->reader) || has_transaction(writer))
        return SQLITE_MISUSE;
    db->armed = 0;
    for (; out->retries < TRIES_MAX; out->retries++) {
        rc = zb_peek(reader, db->index.header);
        const int peeked = rc == SQLITE_OK;
        if (peeked || rc == SQLITE_NOTFOUND) {
            /* Without a header this first read makes one: it opens or recovers the WAL. */
            rc = sqlite3_exec(db->reader, "BEGIN; SELECT 1 FROM sqlite_schema LIMIT 1", NULL, NULL, NULL);
            if (rc == SQLITE_OK)
                rc = peeked ? zb_take(db, reader, out) : SQLITE_NOTFOUND;
        }
        if (rc == SQLITE_OK)
            return SQLITE_OK;
        if (!sqlite3_get_autocommit(db->reader))
            sqlite3_exec(db->reader, "ROLLBACK", NULL, NULL, NULL);
        if (rc != SQLITE_NOTFOUND)
            return rc;
    }
    return SQLITE_BUSY;
}

int zb_drop(void *writer)
{
    struct branch_file *db = writer_file(writer);
    if (!db || has_transaction(writer))
        return SQLITE_MISUSE;
    db->armed = 0;
    zb_clean(db);
    return SQLITE_OK;
}

int zb_read(void *connection, unsigned char *out, int size, int64_t at)
{
    sqlite3_file *f = reader_file(connection);
    return f ? f->pMethods->xRead(f, out, size, at) : SQLITE_MISUSE;
}
