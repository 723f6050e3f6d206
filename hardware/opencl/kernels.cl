/* ---- Kernels -----------------------------------------------------------------------------------------------------
 *
 * One work-item, one unit of work. Transactions of every kind go through one kernel and one switch: kernels for each
 * kind would need buffers, launches and an order among them for each kind.
 */

/* Status, abort code, sequence number and serial stamp, as one store of half a line. */
static inline void lw_close(lw_address block, uint outcome, ulong sequence, ulong serial)
{
    const ulong first = *(const __global lw_uint *)block | (ulong)(outcome & 0xFF) << 32 | (ulong)(outcome >> 16) << 48;
    const ulong request = ((const __global lw_ulong *)block)[2];
    *(__global lw_ulong4 *)block = (ulong4)(first, sequence, request, serial);
}

/* Rows freed before may be handed out from now on. `seen` gets head and tail of each table's ring. */
LW_KERNEL void lw_recycle(
    lw_address heap, __constant struct lw_table *tables, uint count, __global uint *seen)
{
    for (uint table = get_global_id(0); table < count; table += get_global_size(0)) {
        __global struct lw_counters *counters = (__global struct lw_counters *)(heap + tables[table].counters);
        if ((int)(counters->head - counters->limit) > 0)
            counters->head = counters->limit;
        counters->limit = counters->tail;
        seen[2 * table] = counters->head;
        seen[2 * table + 1] = counters->tail;
    }
}

#ifdef LW_STAGED

/* Prefetches what the transaction in `block` will touch, if this work-item `has` one: first the buckets of all
 * work-items of the group, then the rows. `hints` gets the rows. */
static inline void lw_stage(LW_HEAP, lw_address block, uint stride, int has, ulong *hints)
{
    if (has)
        lw_aim(heap, tables, block, stride);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (has)
        lw_reach(heap, tables, block, stride, hints);
    barrier(CLK_LOCAL_MEM_FENCE);
}

#endif

#ifndef LW_TWO_PHASE

/* Executes `units` chains: chain u has the transactions order[starts[u]] to order[starts[u + 1] - 1], one after the
 * other. Chains do not conflict, so nothing is synchronised. */
LW_KERNEL void lw_execute(
    lw_address restrict heap, __constant struct lw_table *restrict tables, lw_address restrict blocks, uint stride,
    ulong first, const __global uint *restrict order, const __global uint *restrict starts, uint from, uint units)
{
    const uint unit = get_global_id(0);
    uint at = unit < units ? starts[from + unit] : 0;
    const uint end = unit < units ? starts[from + unit + 1] : 0;
    uint stamp = 0;
    ulong hints[LW_HINTS];
    for (uint i = 0; i < LW_HINTS; i++)
        hints[i] = 0;
#ifdef LW_STAGED
    lw_stage(heap, tables, blocks + (at < end ? (ulong)order[at] * stride : 0), stride, at < end, hints);
#endif
    for (; at < end; at++) {
        const uint index = order[at];
        lw_address block = blocks + (ulong)index * stride;
        lw_close(block, lw_call(heap, tables, block, stride, hints, &stamp, 0), first + index, 0);
#ifdef LW_STAGED
        for (uint i = 0; i < LW_HINTS; i++)
            hints[i] = 0;
#endif
    }
}

#else

/* A list of transactions that were left: how many, how often one met a conflict, and their numbers. */
#define LW_LIST_COUNT 0
#define LW_LIST_CONFLICTS 1
#define LW_LIST_FIRST 2

/* Tries transaction `index` LW_ATTEMPTS times; one that does not get its locks is put on `left`. */
static inline void lw_attempt(
    LW_HEAP, lw_address blocks, uint stride, ulong first, uint base, uint index, __global uint *left)
{
    lw_address block = blocks + (ulong)index * stride;
    struct lw_spare spare;
    spare.count = 0;
    uint conflicts = 0;
    for (; conflicts < LW_ATTEMPTS; conflicts++) {
        uint stamp = base;
        const uint outcome = lw_call(heap, tables, block, stride, 0, &stamp, &spare);
        if ((outcome & 0xFF) != LW_CONFLICT) {
            lw_close(block, outcome, first + index, stamp - base);
            break;
        }
    }
    for (; spare.count > 0; spare.count--) {
        const ulong piece = spare.pieces[spare.count - 1];
        lw_free(heap, tables, (uint)(piece >> 32), (uint)piece, 0);
    }
    if (conflicts > 0)
        atomic_add((volatile __global uint *)&left[LW_LIST_CONFLICTS], conflicts);
    if (conflicts == LW_ATTEMPTS)
        left[LW_LIST_FIRST + atomic_inc((volatile __global uint *)&left[LW_LIST_COUNT])] = index;
}

/* Every transaction at once; one that does not get its locks in LW_ATTEMPTS attempts is left for lw_execute_rest. */
LW_KERNEL void lw_execute(
    lw_address restrict heap, __constant struct lw_table *restrict tables, lw_address restrict blocks, uint stride,
    ulong first, uint base, uint count, __global uint *restrict left)
{
    const uint index = get_global_id(0);
#ifdef LW_STAGED
    /* Buckets are read without their locks here: what is found only says what to prefetch. */
    ulong hints[LW_HINTS];
    lw_stage(heap, tables, blocks + (index < count ? (ulong)index * stride : 0), stride, index < count, hints);
#endif
    if (index < count)
        lw_attempt(heap, tables, blocks, stride, first, base, index, left);
}

/* Transactions that were left, on as many work-items as are started: first on many, with attempts that may fail again
 * (`next` takes what is left), at last on one, which nobody can conflict with. */
LW_KERNEL void lw_execute_rest(
    lw_address restrict heap, __constant struct lw_table *restrict tables, lw_address restrict blocks, uint stride,
    ulong first, uint base, uint workers, const __global uint *restrict left, __global uint *restrict next)
{
    const uint worker = get_global_id(0);
    for (uint at = worker; worker < workers && at < left[LW_LIST_COUNT]; at += workers)
        lw_attempt(heap, tables, blocks, stride, first, base, left[LW_LIST_FIRST + at], next);
}

#endif
