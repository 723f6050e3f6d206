/* opencl-deterministic: the planner has made sure that nobody else touches what a transaction touches, so execution
 * needs no lock, no wait and no retry (HOBBES, section 3.3.3). */
#define LW_BEGIN(locks)
#define LW_LOCK(table, hash, exclusive)
#define LW_LOCK_TABLE(table, mode, position)
#ifdef LW_STAGED
#define LW_HINT(number) hints[number]
#else
#define LW_HINT(number) 0UL
#endif
#define LW_AIM(table, hash) LW_PREFETCH(lw_bucket(heap, tables, table, hash));
