/*
 * Reader-writer locks for any programs of one host, in memory that they share.
 *
 * A table is attached to by name. A session is one thread's way to locks; a process may open several. A lock is a
 * 64-bit key. What a process holds when it ends, however it ends, is given back by whoever waits for it.
 *
 * Link with -llockwork_sharedlocks. Tables are for all threads, a session is for one thread at a time.
 *
 * After fork, tables and sessions stay the parent's. The child has not their memory: it ends by SIGSEGV if it uses or
 * closes a session of its parent, or opens one of its parent's table. It attaches and opens for itself. Until such a
 * child ends or calls exec, its parent's sessions do not count as dead: if the parent dies, what they hold stays held.
 *
 * Who truncates the file of a table ends all that use it by SIGBUS. Remove a table (lockwork shared-locks remove, or
 * unlink), which leaves its users what they have; never cut it.
 */
#ifndef LOCKWORK_SHARED_LOCKS_H
#define LOCKWORK_SHARED_LOCKS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lockwork_locks lockwork_locks;
typedef struct lockwork_session lockwork_session;

/* How a lock is taken. Shared goes with shared, intent with intent, exclusive with nothing. */
enum { LOCKWORK_SHARED = 1, LOCKWORK_INTENT = 2, LOCKWORK_EXCLUSIVE = 3 };

/* Answers. */
enum {
    LOCKWORK_OK = 0,
    LOCKWORK_BUSY = 1,           /* held by somebody else, and the request was not to wait */
    LOCKWORK_TIMED_OUT = 2,      /* not to be had in time */
    LOCKWORK_WOULD_DEADLOCK = 3, /* waiting could be waiting in a circle: unlock all, begin again with the same age */
    LOCKWORK_NOT_HELD = 4,       /* the session does not hold it */
    LOCKWORK_IN_USE = 5,         /* the session holds or waits for something, so its age cannot change */
    LOCKWORK_FAILED = -1         /* anything else: lockwork_locks_error tells */
};

/* What went wrong last in this thread. Good until the thread's next call. */
const char *lockwork_locks_error(void);

/*
 * Makes a table with lines (a power of two, 64 bytes each) and room for sessions (1 to 4095). A name without a slash
 * is one of this host's tables: 1 to 200 of the letters a to z and A to Z, digits, '.', '_' and '-', not '.' first. One
 * with a slash is the path of a file, without control characters. NULL if there is one already, or it cannot be.
 */
lockwork_locks *lockwork_locks_create(const char *name, uint32_t lines, uint16_t sessions);

/* Attaches to a table. NULL if there is none, or it is none of this version. */
lockwork_locks *lockwork_locks_attach(const char *name);

/* Detaches. Sessions stay good. NULL is allowed. */
void lockwork_locks_close(lockwork_locks *locks);

/* Opens a session. NULL if all are in use, or damaged: what the dead left of those cannot be cleaned up. */
lockwork_session *lockwork_session_open(const lockwork_locks *locks);

/* Gives back all that the session holds, and closes it. NULL is allowed. */
void lockwork_session_close(lockwork_session *session);

/*
 * The session's age: smaller is older. Of two that wait for each other the younger is refused. LOCKWORK_IN_USE, and the
 * age stays, while the session holds or waits for anything: others have decided by it whether to wait.
 */
int lockwork_session_set_age(lockwork_session *session, uint64_t age);

/*
 * Takes the lock of a key. timeout_ns: 0, only if it is to be had at once; positive, waiting so long; negative, waiting as
 * long as it takes, but never in a circle. What is taken twice is given back twice.
 */
int lockwork_lock(lockwork_session *session, uint64_t key, int mode, int64_t timeout_ns);

/* Gives back one grant of a key. */
int lockwork_unlock(lockwork_session *session, uint64_t key);

/* Gives back everything. */
int lockwork_unlock_all(lockwork_session *session);

#ifdef __cplusplus
}
#endif

#endif
