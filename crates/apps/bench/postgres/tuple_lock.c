/*
 * What one tuple lock of PostgreSQL takes: a module that the server loads, compiled when it is measured.
 *
 * Tuple identifiers are collected first; then one loop locks them one after the other, with a reading of the clock
 * before and after each and nothing else in between. So neither the executor nor the planner nor the protocol is in the
 * figures. The durations are kept as they are and read one by one: whoever reads them has the histogram.
 *
 * With the server's headers (Debian: postgresql-server-dev-N) it is compiled against those. Most installations have the
 * server alone, so the few declarations that are needed are also here, as they are from version 15 to 17. The
 * server compares the block below with its own when it loads the module and refuses what does not match.
 *
 * Trade-off: memory comes from malloc, as errors of the server are not ours to catch; it goes with the session.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#if __has_include("postgres.h")

#include "postgres.h"

#include "access/heapam.h"
#include "access/relation.h"
#include "access/xact.h"
#include "fmgr.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"

PG_MODULE_MAGIC;

#elif SERVER_MAJOR >= 15 && SERVER_MAJOR <= 17 && UINTPTR_MAX == UINT64_MAX

typedef uintptr_t Datum;
typedef unsigned int Oid;
typedef struct relation *Relation;
typedef struct { uint16_t block[2], offset; } ItemPointerData;
typedef struct { uint32_t t_len; ItemPointerData t_self; Oid t_tableOid; void *t_data; } HeapTupleData;
typedef struct { ItemPointerData ctid; uint32_t xmax, cmax; bool traversed; } TM_FailureData;
typedef int Buffer;
enum { TM_Ok = 0, LockTupleExclusive = 3, LockWaitError = 2, NoLock = 0, ExclusiveLock = 7 };

Relation relation_open(Oid table, int mode);
void relation_close(Relation table, int mode);
uint32_t GetCurrentCommandId(bool used);
int heap_lock_tuple(Relation table, HeapTupleData *tuple, uint32_t command, int mode, int wait, bool follow,
                    Buffer *buffer, TM_FailureData *failure);
void ReleaseBuffer(Buffer buffer);
void LockTuple(Relation table, ItemPointerData *tuple, int mode);
void UnlockTuple(Relation table, ItemPointerData *tuple, int mode);

struct call {
    void *function, *context, *result;
    Oid collation;
    bool is_null;
    short arguments;
    struct { Datum value; bool is_null; } argument[];
};

#define PG_FUNCTION_ARGS struct call *call
#define PG_GETARG_INT32(n) ((int32_t) call->argument[n].value)
#define PG_GETARG_INT64(n) ((int64_t) call->argument[n].value)
#define PG_GETARG_OID(n) ((Oid) call->argument[n].value)
#define PG_GETARG_POINTER(n) ((void *) call->argument[n].value)
#define PG_RETURN_INT64(value) return (Datum) (value)
#define PG_FUNCTION_INFO_V1(name) \
    Datum name(PG_FUNCTION_ARGS); \
    const int *pg_finfo_##name(void) { static const int convention = 1; return &convention; } \
    extern int unused

const void *Pg_magic_func(void);

/* The version, then the limits and types that every server has unless it was built otherwise. */
const void *Pg_magic_func(void) {
    static const struct {
        int bytes, version, arguments, index_keys, name_bytes, by_value;
        char extra[32];
    } magic = { sizeof magic, SERVER_MAJOR * 100, 100, 32, 64, 1, "PostgreSQL" };
    return &magic;
}

#else
#error "no server headers, and no declarations for this version: they are here for 15 to 17 on 64 bits"
#endif

/* What is done between two readings of the clock. */
enum { NOTHING = 0, ROW = 1, MANAGER = 2, MANAGER_HELD = 3 };

static ItemPointerData *tuples;
static uint32_t *durations;
static int64_t count, room;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

PG_FUNCTION_INFO_V1(lockwork_add);
PG_FUNCTION_INFO_V1(lockwork_run);
PG_FUNCTION_INFO_V1(lockwork_duration);

/* One more tuple to lock; how many there are, or -1 without memory. */
Datum lockwork_add(PG_FUNCTION_ARGS) {
    if (count == room) {
        int64_t more = room ? 2 * room : 65536;
        void *moved = realloc(tuples, more * sizeof *tuples);
        if (moved) tuples = moved;
        void *longer = realloc(durations, more * sizeof *durations);
        if (longer) durations = longer;
        if (!moved || !longer) PG_RETURN_INT64(-1);
        room = more;
    }
    tuples[count++] = *(ItemPointerData *) PG_GETARG_POINTER(0);
    PG_RETURN_INT64(count);
}

/* Locks the first tuples of a table, as many as the third argument says; how many it got. */
Datum lockwork_run(PG_FUNCTION_ARGS) {
    Relation table = relation_open(PG_GETARG_OID(0), NoLock);
    int32_t what = PG_GETARG_INT32(1);
    int64_t end = PG_GETARG_INT64(2) < count ? PG_GETARG_INT64(2) : count;
    uint32_t command = GetCurrentCommandId(true);
    int64_t got = 0;
    for (int64_t at = 0; at < end; at++) {
        HeapTupleData tuple = { .t_self = tuples[at] };
        TM_FailureData failure;
        Buffer buffer = 0;
        bool done = true;
        int64_t start = now();
        switch (what) {
        case ROW:
            done = heap_lock_tuple(table, &tuple, command, LockTupleExclusive, LockWaitError, false, &buffer,
                                   &failure) == TM_Ok;
            break;
        case MANAGER:
            LockTuple(table, &tuple.t_self, ExclusiveLock);
            UnlockTuple(table, &tuple.t_self, ExclusiveLock);
            break;
        case MANAGER_HELD:
            LockTuple(table, &tuple.t_self, ExclusiveLock);
            break;
        }
        int64_t duration = now() - start;
        if (buffer) ReleaseBuffer(buffer);
        durations[at] = duration < UINT32_MAX ? duration : UINT32_MAX;
        got += done;
    }
    relation_close(table, NoLock);
    PG_RETURN_INT64(got);
}

/* Nanoseconds of one lock; -1 if there was none of that number. */
Datum lockwork_duration(PG_FUNCTION_ARGS) {
    int64_t at = PG_GETARG_INT64(0);
    PG_RETURN_INT64(at >= 0 && at < count ? (int64_t) durations[at] : -1);
}
