/* The VFS "zenjun-branch": the writer's files, none of which it can change.
 *
 * Database and WAL are opened read-only through SQLite's own VFS "unix", so that the process has one record of its locks on them:
 * with a descriptor of our own, closing it would drop the POSIX locks of every other connection. Locks of the writer always succeed
 * where they would be its own (SHARED, WRITE, the read marks) and are BUSY where they would let it do something to the file: above
 * SHARED, closing would checkpoint and delete the WAL; CHECKPOINT and RECOVER would write the real files. What the writer appends to
 * the WAL goes to a temporary file, and comes from there.
 */
#include "internal.h"

SQLITE_EXTENSION_INIT1

#define OURS(f) ((struct branch_file *)(void *)(f))
#define REAL(f) (OURS(f)->real)

sqlite3_vfs *zb_unix;
/* Above this the temporary file gives its space back when a transaction has ended. */
static const sqlite3_int64 overlay_kept_bytes = 1 << 20;

/* ---- the writer's own frames ---- */
static int overlay_open(struct branch_file *wal)
{
    const int flags = SQLITE_OPEN_TEMP_JOURNAL | SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_EXCLUSIVE |
                      SQLITE_OPEN_DELETEONCLOSE;
    int out;
    wal->overlay = sqlite3_malloc(zb_unix->szOsFile);
    if (!wal->overlay)
        return SQLITE_NOMEM;
    memset(wal->overlay, 0, (size_t)zb_unix->szOsFile);
    const int rc = zb_unix->xOpen(zb_unix, NULL, wal->overlay, flags, &out);
    if (rc != SQLITE_OK) {
        sqlite3_free(wal->overlay);
        wal->overlay = NULL;
    }
    return rc;
}

static void overlay_close(struct branch_file *wal)
{
    if (!wal->overlay)
        return;
    wal->overlay->pMethods->xClose(wal->overlay);
    sqlite3_free(wal->overlay);
    wal->overlay = NULL;
    wal->overlay_bytes = 0;
}

/* What the writer has written is needed no more. Of its temporary file a small one is kept for the next transaction. */
void zb_clean(struct branch_file *db)
{
    if (!db->dirty)
        return;
    db->dirty = 0;
    zb_forget(&db->index);
    if (db->wal && db->wal->overlay_bytes > overlay_kept_bytes)
        overlay_close(db->wal);
}

static int is_wal(const struct branch_file *p) { return p->database != p; }

static int f_read(sqlite3_file *f, void *data, int size, sqlite3_int64 at)
{
    struct branch_file *p = OURS(f), *db = p->database;
    if (is_wal(p) && db->dirty && p->overlay && at >= db->private_from)
        return p->overlay->pMethods->xRead(p->overlay, data, size, at - db->private_from);
    return p->real->pMethods->xRead(p->real, data, size, at);
}

static int f_write(sqlite3_file *f, const void *data, int size, sqlite3_int64 at)
{
    struct branch_file *p = OURS(f), *db = p->database;
    if (!is_wal(p) || !db->armed || at < db->private_from)
        return SQLITE_READONLY;
    if (!p->overlay) {
        const int rc = overlay_open(p);
        if (rc != SQLITE_OK)
            return rc;
    }
    db->dirty = 1;
    at -= db->private_from;
    if (at + size > p->overlay_bytes)
        p->overlay_bytes = at + size;
    return p->overlay->pMethods->xWrite(p->overlay, data, size, at);
}

/* Of the WAL: SQLite shortens it after a commit, and syncs it; nobody will read it after this process. */
static int f_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    (void)size;
    return is_wal(OURS(f)) ? SQLITE_OK : SQLITE_READONLY;
}

static int f_sync(sqlite3_file *f, int flags)
{
    (void)flags;
    return is_wal(OURS(f)) ? SQLITE_OK : SQLITE_READONLY;
}

static int f_size(sqlite3_file *f, sqlite3_int64 *out) { return REAL(f)->pMethods->xFileSize(REAL(f), out); }
static int f_sector(sqlite3_file *f) { return REAL(f)->pMethods->xSectorSize(REAL(f)); }
static int f_device(sqlite3_file *f) { return REAL(f)->pMethods->xDeviceCharacteristics(REAL(f)); }

static int f_close(sqlite3_file *f)
{
    struct branch_file *p = OURS(f);
    zb_unbind(p);
    zb_free(&p->index);
    overlay_close(p);
    if (is_wal(p))
        p->database->wal = NULL;
    return p->real->pMethods->xClose(p->real);
}

/* ---- locks and the wal-index ---- */
static int f_lock(sqlite3_file *f, int level)
{
    (void)f;
    return level <= SQLITE_LOCK_SHARED ? SQLITE_OK : SQLITE_BUSY;
}

static int f_unlock(sqlite3_file *f, int level)
{
    (void)f;
    (void)level;
    return SQLITE_OK;
}

static int f_reserved(sqlite3_file *f, int *out)
{
    (void)f;
    *out = 0;
    return SQLITE_OK;
}

static int f_shm_map(sqlite3_file *f, int i, int size, int extend, void volatile **out)
{
    struct branch_file *p = OURS(f);
    *out = NULL;
    if (size != REGION_BYTES || !p->armed) /* not BUSY: SQLite would try again for ten seconds */
        return SQLITE_IOERR_SHMMAP;
    if (extend) {
        const int rc = zb_region(&p->index, (uint32_t)i);
        if (rc != SQLITE_OK)
            return rc;
    }
    if ((uint32_t)i < p->index.count)
        *out = p->index.regions[i];
    return SQLITE_OK;
}

static int f_shm_lock(sqlite3_file *f, int at, int count, int flags)
{
    enum { WRITE = 0, READ_0 = 3 };
    if (flags & SQLITE_SHM_UNLOCK)
        return SQLITE_OK;
    if (!OURS(f)->armed)
        return SQLITE_IOERR_SHMMAP;
    return at >= READ_0 || (at == WRITE && count == 1) ? SQLITE_OK : SQLITE_BUSY;
}

static void f_shm_barrier(sqlite3_file *f)
{
    (void)f;
    __sync_synchronize();
}

static int f_shm_unmap(sqlite3_file *f, int delete)
{
    (void)delete; /* never the shared one */
    zb_free(&OURS(f)->index);
    OURS(f)->armed = 0;
    return SQLITE_OK;
}

/* ---- file controls: those on this list, and nothing else reaches the file ---- */
/* What would touch the file, what is the service's to set, and what is in no changeset and so would be lost. */
static int refuse_pragma(char **pragma)
{
    static const char *const with_value[] = {
        "application_id", "auto_vacuum", "incremental_vacuum", "journal_mode",       "locking_mode",    "mmap_size",
        "page_size",      "synchronous", "schema_version",     "wal_autocheckpoint", "writable_schema", "user_version",
    };
    int refused = sqlite3_stricmp(pragma[1], "wal_checkpoint") == 0;
    for (size_t i = 0; pragma[2] && i < sizeof with_value / sizeof *with_value; i++)
        refused |= sqlite3_stricmp(pragma[1], with_value[i]) == 0;
    if (!refused)
        return SQLITE_NOTFOUND;
    pragma[0] = sqlite3_mprintf("PRAGMA %s: not within a transaction of a replicated database", pragma[1]);
    return SQLITE_ERROR;
}

static int f_control(sqlite3_file *f, int op, void *argument)
{
    switch (op) {
    case SQLITE_FCNTL_PERSIST_WAL: *(int *)argument = 1; return SQLITE_OK;
    case SQLITE_FCNTL_HAS_MOVED: return REAL(f)->pMethods->xFileControl(REAL(f), op, argument);
    case SQLITE_FCNTL_VFSNAME: *(char **)argument = sqlite3_mprintf(ZB_VFS_NAME); return SQLITE_OK;
    case SQLITE_FCNTL_PRAGMA: return refuse_pragma(argument);
    default: return SQLITE_NOTFOUND;
    }
}

const sqlite3_io_methods zb_methods = {
    2,          f_close,   f_read,     f_write,   f_truncate, f_sync,    f_size,     f_lock,        f_unlock,    f_reserved,
    f_control,  f_sector,  f_device,   f_shm_map, f_shm_lock, f_shm_barrier, f_shm_unmap, NULL,    NULL,
};

/* ---- the VFS ---- */
static int v_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out_flags)
{
    const int not_wanted = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_EXCLUSIVE | SQLITE_OPEN_DELETEONCLOSE;
    struct branch_file *p = OURS(f);
    int out = 0;
    (void)v;
    f->pMethods = NULL;
    if (flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL))
        return SQLITE_CANTOPEN;
    if (!(flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL))) /* temporary files and statement journals, as ever */
        return zb_unix->xOpen(zb_unix, name, f, flags, out_flags);
    memset(p, 0, sizeof *p);
    p->real = (sqlite3_file *)(void *)(p + 1);
    memset(p->real, 0, (size_t)zb_unix->szOsFile);
    int rc = zb_unix->xOpen(zb_unix, name, p->real, (flags & ~not_wanted) | SQLITE_OPEN_READONLY, &out);
    if (rc == SQLITE_OK && !(out & SQLITE_OPEN_READONLY)) {
        p->real->pMethods->xClose(p->real);
        rc = SQLITE_CANTOPEN;
    }
    if (rc != SQLITE_OK)
        return rc;
    if (flags & SQLITE_OPEN_MAIN_DB) {
        p->database = p;
    } else {
        p->database = OURS(sqlite3_database_file_object(name));
        p->database->wal = p;
    }
    p->base.pMethods = &zb_methods;
    if (out_flags) /* READWRITE among them, else BEGIN IMMEDIATE would be refused */
        *out_flags = flags & ~SQLITE_OPEN_CREATE;
    return SQLITE_OK;
}

static int v_delete(sqlite3_vfs *v, const char *name, int sync)
{
    (void)v;
    (void)name;
    (void)sync;
    return SQLITE_IOERR_DELETE;
}

static int v_access(sqlite3_vfs *v, const char *name, int flags, int *out)
{
    (void)v;
    return zb_unix->xAccess(zb_unix, name, flags, out);
}

static int v_full(sqlite3_vfs *v, const char *name, int size, char *out)
{
    (void)v;
    return zb_unix->xFullPathname(zb_unix, name, size, out);
}

static int v_random(sqlite3_vfs *v, int size, char *out)
{
    (void)v;
    return zb_unix->xRandomness(zb_unix, size, out);
}

static int v_sleep(sqlite3_vfs *v, int us)
{
    (void)v;
    return zb_unix->xSleep(zb_unix, us);
}

static int v_time(sqlite3_vfs *v, double *out)
{
    (void)v;
    return zb_unix->xCurrentTime(zb_unix, out);
}

static int v_time64(sqlite3_vfs *v, sqlite3_int64 *out)
{
    (void)v;
    return zb_unix->xCurrentTimeInt64(zb_unix, out);
}

static int v_error(sqlite3_vfs *v, int size, char *out)
{
    (void)v;
    return zb_unix->xGetLastError(zb_unix, size, out);
}

/* The entry that SQLite looks for in an extension. Its address is what the API is taken from, so one SQLite library a process. */
__attribute__((visibility("default"))) int sqlite3_zenjunbranch_init(sqlite3 *db, char **error, const sqlite3_api_routines *api);

int sqlite3_zenjunbranch_init(sqlite3 *db, char **error, const sqlite3_api_routines *api)
{
    static sqlite3_vfs vfs;
    (void)db;
    if (sqlite3_api && sqlite3_api != api) {
        *error = api->mprintf("the branch VFS is in use with another SQLite library of this process");
        return SQLITE_ERROR;
    }
    SQLITE_EXTENSION_INIT2(api);
    if (zb_unix)
        return SQLITE_OK_LOAD_PERMANENTLY;
    sqlite3_vfs *found = sqlite3_vfs_find("unix");
    if (!found || found->iVersion < 2) {
        *error = sqlite3_mprintf("SQLite has no VFS \"unix\"");
        return SQLITE_ERROR;
    }
    vfs = (sqlite3_vfs){
        .iVersion = 2,
        .szOsFile = (int)sizeof(struct branch_file) + found->szOsFile,
        .mxPathname = found->mxPathname,
        .zName = ZB_VFS_NAME,
        .xOpen = v_open,
        .xDelete = v_delete,
        .xAccess = v_access,
        .xFullPathname = v_full,
        .xRandomness = v_random,
        .xSleep = v_sleep,
        .xCurrentTime = v_time,
        .xGetLastError = v_error,
        .xCurrentTimeInt64 = v_time64,
    };
    const int rc = sqlite3_vfs_register(&vfs, 0);
    if (rc != SQLITE_OK)
        return rc;
    zb_unix = found;
    return SQLITE_OK_LOAD_PERMANENTLY;
}
