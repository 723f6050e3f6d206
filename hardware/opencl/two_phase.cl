/* opencl-two-phase: reader-writer locks for work-items, no-wait.
 *
 * A record's lock is that of its index bucket, found by the hash of the key: it covers keys that do not exist (yet),
 * and what changes a bucket holds it. Sixteen bytes: lock, the latest stamp of a reader, the latest of a writer.
 *
 *     lock   bit 31: held exclusively; below: how many hold it shared
 *
 * Nobody waits while holding a lock: who does not get one gives all back and begins again. Work-items of one group may
 * run in lock step, so that one which spins would keep the one that it waits for from going on for ever (the kernel of
 * HOBBES, listing A.1, spins, and is saved by running as a pipeline).
 *
 * Serial order: a transaction's stamp is above those of all it follows in conflict (Lamport 1978), readers above the
 * last writer, writers above the last writer and all readers.
 */
#define LW_EXCLUSIVE 0x80000000u

struct lw_lock {
    volatile uint lock;
    volatile uint read_stamp;
    volatile uint write_stamp;
    uint unused;
};

static inline __global struct lw_lock *lw_lock_of(LW_HEAP, uint table, ulong hash)
{
    return (__global struct lw_lock *)(heap + tables[table].locks + (ulong)((uint)hash & tables[table].mask) * 16);
}

/* Takes the lock of a bucket, or makes the one that is held exclusive; `held` has the locks of the transaction, as
 * offsets in the heap, bit 0: exclusive. */
static LW_CALLED bool lw_take(LW_HEAP, uint table, ulong hash, bool exclusive, ulong *held, uint *count, uint *stamp)
{
    __global struct lw_lock *lock = lw_lock_of(heap, tables, table, hash);
    const ulong name = (ulong)((lw_address)lock - heap);
    for (uint i = 0; i < *count; i++) {
        if ((held[i] & ~1UL) == name) {
            if (!exclusive || (held[i] & 1) != 0)
                return true;
            if (atomic_cmpxchg((volatile __global uint *)&lock->lock, 1u, LW_EXCLUSIVE) != 1u)
                return false;
            LW_ACQUIRE();
            held[i] |= 1;
            *stamp = max(*stamp, lock->read_stamp);
            return true;
        }
    }
    if (exclusive) {
        if (atomic_cmpxchg((volatile __global uint *)&lock->lock, 0u, LW_EXCLUSIVE) != 0u)
            return false;
        LW_ACQUIRE();
        *stamp = max(*stamp, max(lock->read_stamp, lock->write_stamp));
    } else {
        if ((atomic_inc((volatile __global uint *)&lock->lock) & LW_EXCLUSIVE) != 0) {
            atomic_dec((volatile __global uint *)&lock->lock);
            return false;
        }
        LW_ACQUIRE();
        *stamp = max(*stamp, lock->write_stamp);
    }
    held[(*count)++] = name | (exclusive ? 1 : 0);
    return true;
}

/* Gives locks back; a stamp above zero is left in them. */
static LW_CALLED void lw_let_go(lw_address heap, const ulong *held, uint count, uint stamp)
{
    for (uint i = 0; i < count; i++) {
        __global struct lw_lock *lock = (__global struct lw_lock *)(heap + (held[i] & ~1UL));
        if ((held[i] & 1) != 0) {
            if (stamp != 0)
                lock->write_stamp = stamp;
            LW_RELEASE();
            atomic_sub((volatile __global uint *)&lock->lock, LW_EXCLUSIVE);
        } else {
            if (stamp != 0)
                atomic_max((volatile __global uint *)&lock->read_stamp, stamp);
            LW_RELEASE();
            atomic_dec((volatile __global uint *)&lock->lock);
        }
    }
}

/* Locks of whole tables: bits 30..32 the mode (crates/core/locking/src/vocabulary.rs: 1 shared, 2 intent, 3 exclusive),
 * below how many hold it in that mode. */
#define LW_MODE_SHIFT 30
#define LW_HOLDERS 0x3FFFFFFFu

static LW_CALLED bool lw_take_table(LW_HEAP, uint table, uint mode, uint *stamp)
{
    __global struct lw_lock *lock = (__global struct lw_lock *)(heap + tables[table].table_lock);
    uint old = lock->lock;
    for (uint attempt = 0; attempt < 8; attempt++) {
        const uint holders = old & LW_HOLDERS;
        if (holders != 0 && (mode == 3 || old >> LW_MODE_SHIFT != mode))
            return false;
        const uint seen =
            atomic_cmpxchg((volatile __global uint *)&lock->lock, old, mode << LW_MODE_SHIFT | (holders + 1));
        if (seen == old) {
            LW_ACQUIRE();
            *stamp = max(*stamp, mode == 1 ? lock->write_stamp : max(lock->read_stamp, lock->write_stamp));
            return true;
        }
        old = seen;
    }
    return false;
}

static inline void lw_let_go_of_table(LW_HEAP, uint table, uint mode, uint stamp)
{
    __global struct lw_lock *lock = (__global struct lw_lock *)(heap + tables[table].table_lock);
    if (stamp != 0)
        atomic_max((volatile __global uint *)(mode == 1 ? &lock->read_stamp : &lock->write_stamp), stamp);
    LW_RELEASE();
    atomic_dec((volatile __global uint *)&lock->lock);
}

#define LW_BEGIN(locks) ulong held[locks]; uint held_count = 0; uint tables_held = 0; (void)tables_held;
#define LW_LOCK(table, hash, exclusive) \
    if (!lw_take(heap, tables, table, hash, exclusive, held, &held_count, stamp)) goto conflict;
#define LW_LOCK_TABLE(table, mode, position) \
    if (!lw_take_table(heap, tables, table, mode, stamp)) goto conflict; \
    tables_held = (position) + 1;
#define LW_HINT(number) 0UL
#define LW_AIM(table, hash) \
    { \
        const ulong aimed = hash; \
        LW_PREFETCH(lw_bucket(heap, tables, table, aimed)); \
        LW_PREFETCH(lw_lock_of(heap, tables, table, aimed)); \
    }
