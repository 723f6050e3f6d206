/*
 * Several processes move money between accounts that lie in memory they share. Each transfer takes two locks; wait-die
 * lets no circle close; the sum stays what it was.
 *
 *     cc -O2 -I include examples/ledger.c -o ledger -L ../../../target/release -llockwork_sharedlocks
 *     LD_LIBRARY_PATH=../../../target/release ./ledger 4 100000
 */
#include "lockwork_shared_locks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ACCOUNTS = 16, BEGINNING = 1000 };

static void fail(const char *what) {
    fprintf(stderr, "ledger: %s: %s\n", what, lockwork_locks_error());
    exit(1);
}

static void work(const char *name, volatile int64_t *accounts, unsigned seed, long transfers) {
    lockwork_locks *locks = lockwork_locks_attach(name);
    lockwork_session *session = locks ? lockwork_session_open(locks) : NULL;
    if (!session) fail("cannot open a session");
    for (long i = 0; i < transfers; i++) {
        int from = rand_r(&seed) % ACCOUNTS;
        int to = (from + 1 + rand_r(&seed) % (ACCOUNTS - 1)) % ACCOUNTS;
        /* The age of a transaction: who is refused begins again with it, and is older every time. */
        if (lockwork_session_set_age(session, (uint64_t)i * 64 + seed % 64) != LOCKWORK_OK) fail("age");
        for (;;) {
            int got = lockwork_lock(session, (uint64_t)from, LOCKWORK_EXCLUSIVE, -1);
            if (got == LOCKWORK_OK) got = lockwork_lock(session, (uint64_t)to, LOCKWORK_EXCLUSIVE, -1);
            if (got == LOCKWORK_OK) break;
            if (got != LOCKWORK_WOULD_DEADLOCK) fail("lock");
            if (lockwork_unlock_all(session) != LOCKWORK_OK) fail("unlock");
        }
        int64_t amount = rand_r(&seed) % 10;
        accounts[from] -= amount;
        accounts[to] += amount;
        if (lockwork_unlock_all(session) != LOCKWORK_OK) fail("unlock");
    }
    lockwork_session_close(session);
    lockwork_locks_close(locks);
}

int main(int argc, char **argv) {
    int processes = argc > 1 ? atoi(argv[1]) : 4;
    long transfers = argc > 2 ? atol(argv[2]) : 100000;
    char name[64];
    snprintf(name, sizeof name, "/dev/shm/ledger-%d", getpid());
    lockwork_locks *locks = lockwork_locks_create(name, 1024, 64);
    if (!locks) fail("cannot create the table");
    lockwork_locks_close(locks);
    int64_t *accounts = mmap(NULL, sizeof(int64_t) * ACCOUNTS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (accounts == MAP_FAILED) {
        perror("ledger: mmap");
        return 1;
    }
    for (int i = 0; i < ACCOUNTS; i++) accounts[i] = BEGINNING;
    for (int i = 0; i < processes; i++) {
        pid_t child = fork();
        if (child < 0) {
            perror("ledger: fork");
            return 1;
        }
        if (child == 0) {
            work(name, accounts, (unsigned)i + 1, transfers);
            exit(0);
        }
    }
    int failed = 0, status;
    while (wait(&status) > 0) failed |= status;
    unlink(name);
    int64_t sum = 0;
    for (int i = 0; i < ACCOUNTS; i++) sum += accounts[i];
    printf("%d processes, %ld transfers each, sum %" PRId64 " of %d\n", processes, transfers, sum, ACCOUNTS * BEGINNING);
    return failed || sum != (int64_t)ACCOUNTS * BEGINNING;
}
