/* What both OpenCL engines share: portable macros, typed memory access, the point index, the ordered index, row memory.
 *
 * The file is put in front of the code that is generated for tables and procedures, and is plain OpenCL C 1.2: no
 * recursion, no pointers to functions, 32-bit atomics only.
 *
 * All tables lie in one buffer, the heap, and a row's handle is its offset there in bytes (0: no row).
 * crates/accelerators/opencl/src/heap.rs describes the layout. Everything begins at a multiple of 64 bytes: memory
 * controllers of FPGAs and GPUs move whole lines, and an access that straddles two costs two (HOBBES, section 3.3.1,
 * alignment).
 */

/* ---- What a tool chain may want to set ---------------------------------------------------------------------------
 * LW_GROUP          work-items of a group. On a CPU device a group runs on one core, item after item.
 * LW_COMPUTE_UNITS  FPGA tool chains: __attribute__((num_compute_units(n))), n copies of the pipeline. It pays only
 *                   until memory is saturated (HOBBES, table 4.1).
 * LW_IVDEP          FPGA tool chains: the pragma that says that rounds of a loop do not depend on each other through
 *                   memory, so that one round starts each cycle (HOBBES, section 3.3.1, pipelining).
 * LW_STAGED         CPU devices: look-ups of a whole group run ahead of its execution, and lines are prefetched. A GPU
 *                   hides memory latency by running other groups and needs neither.
 */
#ifndef LW_GROUP
#define LW_GROUP 64
#endif
#ifndef LW_COMPUTE_UNITS
#define LW_COMPUTE_UNITS
#endif
#ifndef LW_IVDEP
#define LW_IVDEP
#endif
#define LW_KERNEL __attribute__((reqd_work_group_size(LW_GROUP, 1, 1))) LW_COMPUTE_UNITS __kernel

/* A CPU device calls functions unless procedures are few and simple: inlined, their control flow is too much for the
 * pass of PoCL 3.1 that makes loops over the work-items of a group, private memory of every procedure would be kept for
 * each of them, and compiling would take minutes. */
#if defined(LW_STAGED) && !defined(LW_FEW)
#define LW_CALLED __attribute__((noinline))
#else
#define LW_CALLED inline
#endif

#ifdef LW_STAGED
#define LW_PREFETCH(address) __builtin_prefetch((const void *)(size_t)(address))
#else
#define LW_PREFETCH(address)
#endif

/* Acquire and release order for memory that 32-bit atomics guard. */
#if defined(__OPENCL_C_VERSION__) && __OPENCL_C_VERSION__ >= 300 && defined(__opencl_c_atomic_order_acq_rel)
#define LW_ACQUIRE() \
    atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_acquire, memory_scope_device)
#define LW_RELEASE() \
    atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_release, memory_scope_device)
#else
#define LW_ACQUIRE() mem_fence(CLK_GLOBAL_MEM_FENCE)
#define LW_RELEASE() mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif

/* Procedures read bytes as integers of one width that they wrote as integers of another. By the rules of C a compiler
 * may take the two for different objects, unless the types say otherwise. */
#if defined(__clang__) || defined(__GNUC__)
#define LW_ANY_TYPE __attribute__((may_alias))
#else
#define LW_ANY_TYPE
#endif
typedef ulong LW_ANY_TYPE lw_ulong;
typedef uint LW_ANY_TYPE lw_uint;
typedef ushort LW_ANY_TYPE lw_ushort;
typedef uchar lw_uchar;
typedef long LW_ANY_TYPE lw_long;
typedef int LW_ANY_TYPE lw_int;
typedef short LW_ANY_TYPE lw_short;
typedef char lw_char;
typedef ulong4 LW_ANY_TYPE lw_ulong4;
typedef ulong8 LW_ANY_TYPE lw_ulong8;

typedef __global uchar *lw_address;

/* A table: where its parts lie in the heap. */
struct lw_table {
    ulong rows;
    ulong buckets;
    ulong ring;       /* numbers of free rows */
    ulong counters;   /* head, tail and limit of the ring */
    ulong links;      /* ordered tables: a line of 16 links for the head, then one for each row */
    ulong locks;      /* two-phase: 16 bytes for each bucket */
    ulong table_lock; /* two-phase: 16 bytes */
    uint mask;        /* buckets - 1 */
    uint ring_mask;   /* places of the ring - 1 */
};

#define LW_HEAP lw_address heap, __constant struct lw_table *tables

/* Outcomes: a status of the block header, or that a lock was not to be had. */
#define LW_CONFLICT 0u
#define LW_COMMITTED 1u
#define LW_ABORTED 2u
#define LW_FAILED 3u
#define LW_OUTCOME(status, code) ((uint)(status) | (uint)(code) << 16)

/* Abort codes of the system (crates/core/procedure/src/block.rs, crates/core/engine/src/exclusive.rs). */
#define LW_NOT_FOUND 0xFF01u
#define LW_DUPLICATE_KEY 0xFF02u
#define LW_OVERFLOW 0xFF03u
#define LW_DIVISION_BY_ZERO 0xFF04u
#define LW_OUT_OF_RANGE 0xFF05u
#define LW_VALUE_TOO_WIDE 0xFF06u
#define LW_OUT_OF_MEMORY 0xFF11u
#define LW_UNKNOWN_PROCEDURE 0xFF20u
#define LW_BLOCK_TOO_SHORT 0xFF21u

#define LW_LIVE 1u
#define LW_ROW_KEY 16 /* where a row's key begins */

/* ---- Memory ---- */

static LW_CALLED ulong lw_bytes(const __global uchar *from, uint count)
{
    ulong value = 0;
    for (uint i = 0; i < count; i++)
        value |= (ulong)from[i] << (8 * i);
    return value;
}

static inline void lw_put_bytes(lw_address to, uint count, ulong value)
{
    for (uint i = 0; i < count; i++)
        to[i] = (uchar)(value >> (8 * i));
}

/* An integer at an address that is only sometimes aligned. */
static inline ulong lw_load(const __global uchar *from, uint count)
{
    if (((size_t)from & (count - 1)) != 0)
        return lw_bytes(from, count);
    switch (count) {
    case 1: return *from;
    case 2: return *(const __global lw_ushort *)from;
    case 4: return *(const __global lw_uint *)from;
    default: return *(const __global lw_ulong *)from;
    }
}

static inline void lw_store(lw_address to, uint count, ulong value)
{
    if (((size_t)to & (count - 1)) != 0) {
        lw_put_bytes(to, count, value);
        return;
    }
    switch (count) {
    case 1: *to = (uchar)value; break;
    case 2: *(__global lw_ushort *)to = (ushort)value; break;
    case 4: *(__global lw_uint *)to = (uint)value; break;
    default: *(__global lw_ulong *)to = value; break;
    }
}

/* Copies whole words; the two pieces do not overlap, or are the same. */
static inline void lw_copy_words(lw_address to, const __global uchar *from, uint words)
{
    LW_IVDEP
    for (uint i = 0; i < words; i++)
        ((__global lw_ulong *)to)[i] = ((const __global lw_ulong *)from)[i];
}

/* Copies whole lines, each with one wide load and one wide store (HOBBES, section 3.3.2: a store of the exact width of
 * a field was worth five times the throughput of byte-wise ones). */
static inline void lw_copy_lines(lw_address to, const __global uchar *from, uint lines)
{
    LW_IVDEP
    for (uint i = 0; i < lines; i++)
        ((__global lw_ulong8 *)to)[i] = ((const __global lw_ulong8 *)from)[i];
}

static inline void lw_copy_bytes(lw_address to, const __global uchar *from, uint count)
{
    LW_IVDEP
    for (uint i = 0; i < count; i++)
        to[i] = from[i];
}

/* Copies bytes that may overlap, at any alignment. */
static LW_CALLED void lw_move(lw_address to, const __global uchar *from, uint count)
{
    if ((((size_t)to | (size_t)from) & 7) == 0 && (count & 7) == 0 && (to + count <= from || from + count <= to)) {
        lw_copy_words(to, from, count / 8);
    } else if (to < from) {
        for (uint i = 0; i < count; i++)
            to[i] = from[i];
    } else {
        for (uint i = count; i-- > 0;)
            to[i] = from[i];
    }
}

static LW_CALLED void lw_zero(lw_address to, uint count)
{
    for (; count > 0 && ((size_t)to & 7) != 0; count--)
        *to++ = 0;
    for (; count >= 8; count -= 8, to += 8)
        *(__global lw_ulong *)to = 0;
    for (; count > 0; count--)
        *to++ = 0;
}

/* ---- Arithmetic: false when the result leaves the range of 64 bits ---- */

static inline bool lw_add(long a, long b, long *result)
{
    const long sum = (long)((ulong)a + (ulong)b);
    *result = sum;
    return ((a ^ sum) & (b ^ sum)) >= 0;
}

static inline bool lw_sub(long a, long b, long *result)
{
    const long difference = (long)((ulong)a - (ulong)b);
    *result = difference;
    return ((a ^ b) & (a ^ difference)) >= 0;
}

static inline bool lw_mul(long a, long b, long *result)
{
    const long low = (long)((ulong)a * (ulong)b);
    *result = low;
    return mul_hi(a, b) == (low >> 63);
}

#define LW_COMPARE(a, b) (((a) > (b)) - ((a) < (b)))

/* ---- Undo: old bytes on a private stack, each piece followed by where it belongs (address << 16 | length) ---- */

static LW_CALLED void lw_keep(lw_address heap, ulong *undo, uint *top, ulong address, uint length)
{
    for (uint at = 0; at < length; at += 8)
        undo[(*top)++] = lw_bytes(heap + address + at, min(8u, length - at));
    undo[(*top)++] = address << 16 | length;
}

static LW_CALLED void lw_roll_back(lw_address heap, const ulong *undo, uint *top)
{
    while (*top > 0) {
        const ulong piece = undo[--*top];
        const uint length = (uint)(piece & 0xFFFF);
        *top -= (length + 7) / 8;
        for (uint at = 0; at < length; at += 8)
            lw_put_bytes(heap + (piece >> 16) + at, min(8u, length - at), undo[*top + at / 8]);
    }
}

/* ---- Keys: see crates/core/procedure/src/key.rs ---- */

static inline ulong lw_mix(ulong word)
{
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9UL;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBUL;
    return word ^ (word >> 31);
}

static inline ulong lw_hash(ulong4 key)
{
    ulong hash = lw_mix(key.s0);
    if ((key.s1 | key.s2 | key.s3) != 0) {
        hash = lw_mix(hash ^ key.s1) + 0x9E3779B97F4A7C15UL;
        hash = lw_mix(hash ^ key.s2) + 0x9E3779B97F4A7C15UL;
        hash = lw_mix(hash ^ key.s3) + 0x9E3779B97F4A7C15UL;
    }
    return hash;
}

static inline bool lw_equal(ulong4 a, ulong4 b)
{
    return ((a.s0 ^ b.s0) | (a.s1 ^ b.s1) | (a.s2 ^ b.s2) | (a.s3 ^ b.s3)) == 0;
}

static inline bool lw_less(ulong4 a, ulong4 b)
{
    if (a.s0 != b.s0) return a.s0 < b.s0;
    if (a.s1 != b.s1) return a.s1 < b.s1;
    if (a.s2 != b.s2) return a.s2 < b.s2;
    return a.s3 < b.s3;
}

/* ---- The point index: a bucket is a line ----------------------------------------------------------------------------
 *
 *     bytes  0..40   five tags: the key where every key is one word, else its hash
 *     bytes 40..60   five row numbers plus one; 0: the place is free
 *     bytes 60..64   first row of the overflow list plus one; the list goes on in bytes 12..16 of each row
 *
 * The planner, or the lock of the bucket, keeps two transactions that change one bucket apart: nothing here is atomic.
 */
#define LW_PLACES 5

static inline lw_address lw_bucket(LW_HEAP, uint table, ulong hash)
{
    return heap + tables[table].buckets + (ulong)((uint)hash & tables[table].mask) * 64;
}

static inline __global lw_uint *lw_next(lw_address row)
{
    return (__global lw_uint *)(row + 12);
}

static inline void lw_put_in_bucket(lw_address bucket, ulong tag, uint entry, lw_address row)
{
    __global lw_uint *entries = (__global lw_uint *)(bucket + 40);
    for (uint i = 0; i < LW_PLACES; i++) {
        if (entries[i] == 0) {
            ((__global lw_ulong *)bucket)[i] = tag;
            entries[i] = entry;
            return;
        }
    }
    *lw_next(row) = entries[LW_PLACES];
    entries[LW_PLACES] = entry;
}

static inline void lw_take_from_bucket(lw_address bucket, uint entry, lw_address rows, uint stride)
{
    __global lw_uint *entries = (__global lw_uint *)(bucket + 40);
    for (uint i = 0; i < LW_PLACES; i++) {
        if (entries[i] == entry) {
            entries[i] = 0;
            return;
        }
    }
    __global lw_uint *link = &entries[LW_PLACES];
    while (*link != entry)
        link = lw_next(rows + (ulong)(*link - 1) * stride);
    *link = *lw_next(rows + (ulong)(entry - 1) * stride);
}

/* ---- Memory of rows: a ring of free numbers. Rows that a kernel frees are handed out again behind lw_recycle, and not
 * before: that a place of the ring is taken does not say that its number is written. ---- */

struct lw_counters {
    uint head;  /* the next number to hand out; it may run past the limit */
    uint tail;  /* where the next number that is freed goes */
    uint limit; /* numbers from here on were freed since lw_recycle ran */
    uint unused[13];
};

/* Row numbers that a transaction took in an attempt that was taken back: numbers that a kernel frees are not handed
 * out by the same kernel, so without these every attempt would use up new ones. Pieces are table << 32 | number plus
 * one. */
struct lw_spare {
    uint count;
    ulong pieces[LW_SPARE];
};

/* A free row's number plus one, or 0. The one atomic addition of an insert. */
static inline uint lw_allocate(LW_HEAP, uint table, struct lw_spare *spare)
{
    for (uint i = 0; spare != 0 && i < spare->count; i++) {
        const ulong piece = spare->pieces[i];
        if ((uint)(piece >> 32) == table) {
            spare->pieces[i] = spare->pieces[--spare->count];
            return (uint)piece;
        }
    }

    __global struct lw_counters *counters = (__global struct lw_counters *)(heap + tables[table].counters);
    const uint at = atomic_inc((volatile __global lw_uint *)&counters->head);
    if ((int)(counters->limit - at) <= 0)
        return 0;
    return ((__global lw_uint *)(heap + tables[table].ring))[at & tables[table].ring_mask] + 1;
}

/* Gives a row number back: to the transaction's own spare ones, if it is going to be tried again, else to the ring. */
static inline void lw_free(LW_HEAP, uint table, uint entry, struct lw_spare *spare)
{
    if (spare != 0 && spare->count < LW_SPARE) {
        spare->pieces[spare->count++] = (ulong)table << 32 | entry;
        return;
    }

    __global struct lw_counters *counters = (__global struct lw_counters *)(heap + tables[table].counters);
    const uint at = atomic_inc((volatile __global lw_uint *)&counters->tail);
    ((__global lw_uint *)(heap + tables[table].ring))[at & tables[table].ring_mask] = entry - 1;
}

/* ---- The ordered index: a skiplist whose node is one line of links, 16 row numbers plus one -------------------------
 *
 * Who changes it is alone with the table (planner or table lock), so nothing here is atomic either.
 */
#define LW_LEVELS 16

static inline uint lw_level(ulong hash)
{
    return min((uint)clz(hash) / 2, (uint)LW_LEVELS - 1);
}

static inline __global lw_uint *lw_links(LW_HEAP, uint table, uint entry)
{
    return (__global lw_uint *)(heap + tables[table].links + (ulong)entry * 64);
}
