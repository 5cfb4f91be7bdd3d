/* Preloaded into a sidecar or into Redis. Its wall clock is ahead and its disk is slow by what stands in a shared file,
 * and a file that may not grow is an error to it, as a full disk is, not its end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct knobs {
    double ahead_s;
    double sync_s;
};

static struct knobs none;
static volatile struct knobs *knobs = &none;

__attribute__((constructor)) static void open_knobs(void) {
    const char *path = getenv("CHAOS_KNOBS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *shared = mmap(NULL, sizeof(struct knobs), PROT_READ, MAP_SHARED, file, 0);
        if (shared != MAP_FAILED) knobs = shared;
        close(file);
    }
    signal(SIGXFSZ, SIG_IGN);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && knobs->ahead_s != 0.0) {
        long long nanoseconds = at->tv_sec * 1000000000LL + at->tv_nsec + (long long)(knobs->ahead_s * 1e9);
        at->tv_sec = nanoseconds / 1000000000LL;
        at->tv_nsec = nanoseconds % 1000000000LL;
    }
    return result;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

static void wait_for_the_disk(void) {
    double wait_s = knobs->sync_s;
    if (wait_s > 0.0) {
        struct timespec wait = {(time_t)wait_s, (long)((wait_s - (double)(time_t)wait_s) * 1e9)};
        nanosleep(&wait, NULL);
    }
}

int fsync(int file) {
    wait_for_the_disk();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    wait_for_the_disk();
    return (int)syscall(SYS_fdatasync, file);
}
