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

int zb_bind(void *writer, void *reader, const char *question)
{
    struct branch_file *db = writer_file(writer);
    if (!db || db->reader || !reader_file(reader))
        return SQLITE_MISUSE;
    const char *a = sqlite3_db_filename(writer, "main"), *b = sqlite3_db_filename(reader, "main");
    if (!a || !b || strcmp(a, b) != 0)
        return SQLITE_MISMATCH;
    if (question && !(db->question_text = sqlite3_mprintf("%s", question)))
        return SQLITE_NOMEM;
    db->reader = reader;
    return SQLITE_OK;
}

/* The writer is closed. */
void zb_unbind(struct branch_file *db)
{
    sqlite3_finalize(db->begin);
    sqlite3_finalize(db->schema);
    sqlite3_finalize(db->question);
    sqlite3_finalize(db->rollback);
    sqlite3_free(db->question_text);
    db->begin = db->schema = db->question = db->rollback = NULL;
    db->question_text = NULL;
}

static int has_transaction(sqlite3 *db)
{
    return !sqlite3_get_autocommit(db) || sqlite3_txn_state(db, "main") != SQLITE_TXN_NONE;
}

/* Runs a kept statement of the reader, preparing it if need be; *count* numbers of its first row go to *out*.
 * SQLITE_NOTFOUND: there is no row. */
static int run(struct branch_file *db, sqlite3_stmt **kept, const char *text, int count, int64_t *out)
{
    int rc = *kept ? SQLITE_OK : sqlite3_prepare_v3(db->reader, text, -1, SQLITE_PREPARE_PERSISTENT, kept, NULL);
    if (rc != SQLITE_OK)
        return rc;
    rc = sqlite3_step(*kept);
    const int row = rc == SQLITE_ROW;
    for (int i = 0; row && i < count; i++)
        out[i] = sqlite3_column_int64(*kept, i);
    const int end = sqlite3_reset(*kept); /* of a statement that failed: why */
    if (end != SQLITE_OK)
        return end;
    return rc == SQLITE_ROW || (rc == SQLITE_DONE && count == 0) ? SQLITE_OK : rc == SQLITE_DONE ? SQLITE_NOTFOUND : rc;
}

/* The reader's transaction. Without a header of the wal-index its first read makes one: it opens or recovers the WAL. */
static int begin_reader(struct branch_file *db, struct zb_begun *out)
{
    int64_t schema = 0;
    int rc = run(db, &db->begin, "BEGIN", 0, NULL);
    if (rc == SQLITE_OK)
        rc = run(db, &db->schema, "PRAGMA schema_version", 1, &schema);
    out->schema = (uint32_t)schema;
    return rc;
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
            rc = begin_reader(db, out);
            if (rc == SQLITE_OK)
                rc = peeked ? zb_take(db, reader, out) : SQLITE_NOTFOUND;
        }
        if (rc == SQLITE_OK) {
            out->has_facts = db->question_text && run(db, &db->question, db->question_text, 2, out->facts) == SQLITE_OK;
            return SQLITE_OK;
        }
        if (!sqlite3_get_autocommit(db->reader))
            run(db, &db->rollback, "ROLLBACK", 0, NULL);
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

int zb_end(void *writer)
{
    struct branch_file *db = writer_file(writer);
    int rc = db && db->reader ? SQLITE_OK : SQLITE_MISUSE;
    if (rc == SQLITE_OK && !sqlite3_get_autocommit(writer))
        rc = sqlite3_exec(writer, "ROLLBACK", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = zb_drop(writer);
    if (rc == SQLITE_OK && !sqlite3_get_autocommit(db->reader))
        rc = run(db, &db->rollback, "ROLLBACK", 0, NULL);
    return rc;
}

int zb_read(void *connection, unsigned char *out, int size, int64_t at)
{
    sqlite3_file *f = reader_file(connection);
    return f ? f->pMethods->xRead(f, out, size, at) : SQLITE_MISUSE;
}
