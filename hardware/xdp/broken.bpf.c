/* What must not be: the decider with a load and a store where the compare-and-swap belongs. Only for the test that
 * two processors cannot get one lock; it has to find this one out. */

#define SWAPPED(word, before, after) (*(volatile __u64 *)(word) = (after), true)
#include "lockwork.bpf.c"
