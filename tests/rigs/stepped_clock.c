/* Adds the seconds in the file $STEPPED_CLOCK to the wall clock of a process; every other clock stays as it is.
   It allocates nothing: these functions are called with locks held, and between fork and exec. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const char *path;

__attribute__((constructor)) static void begin(void) { path = getenv("STEPPED_CLOCK"); }

static long offset_s(void) {
    char text[32];
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    text[size > 0 ? size : 0] = 0;
    return atol(text);
}

int clock_gettime(clockid_t which, struct timespec *at) {
    long result = syscall(SYS_clock_gettime, which, at);
    if (result == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) at->tv_sec += offset_s();
    return (int)result;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept) *kept = now.tv_sec;
    return now.tv_sec;
}
