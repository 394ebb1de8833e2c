// Makes a disk slow: a library that is loaded into nbdkit (LD_PRELOAD), whose file plugin then waits before every transfer.
//
// nbdkit's delay filter does the same in whole milliseconds (1.32), and for as long as nbdkit runs. Here the wait is in
// nanoseconds and may be changed at any time, so that caches are filled at full speed before a slow disk is measured.
// Requests wait side by side, in as many threads as nbdkit has: the disk has a latency, and no limit of throughput.
//
// Owns one page, a file made by whoever starts nbdkit and mapped here. It also counts what was transferred: what the disk
// delivered, by the disk's own count, whoever asked for it.
//
//   SLOWDISK_FILE  the page: 8 bytes each of the wait in ns (read here), reads, bytes read, writes, bytes written (counted here)

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct {
    _Atomic uint64_t wait_ns, reads, read_bytes, writes, written_bytes;
} *page;
static ssize_t (*next_pread)(int, void *, size_t, off64_t);
static ssize_t (*next_pwrite)(int, const void *, size_t, off64_t);

__attribute__((constructor)) static void begin(void) {
    next_pread = (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    next_pwrite = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    // Threads inherit this: a wait ends when it is over, and not up to 50 us later.
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    const char *name = getenv("SLOWDISK_FILE");
    int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    struct stat s;
    if (fd < 0 || fstat(fd, &s) || s.st_size < (off_t)sizeof *page) abort();
    void *map = mmap(0, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) abort();
    page = map;
}

static void wait_for_disk(void) {
    uint64_t ns = atomic_load(&page->wait_ns);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (until.tv_nsec + ns) / 1000000000;
    until.tv_nsec = (until.tv_nsec + ns) % 1000000000;
    while (ns && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0) == EINTR) {}
}

ssize_t pread64(int fd, void *to, size_t n, off64_t offset) {
    wait_for_disk();
    ssize_t got = next_pread(fd, to, n, offset);
    atomic_fetch_add(&page->reads, 1);
    if (got > 0) atomic_fetch_add(&page->read_bytes, got);
    return got;
}

ssize_t pwrite64(int fd, const void *from, size_t n, off64_t offset) {
    wait_for_disk();
    ssize_t got = next_pwrite(fd, from, n, offset);
    atomic_fetch_add(&page->writes, 1);
    if (got > 0) atomic_fetch_add(&page->written_bytes, got);
    return got;
}

// Which of the two names a plugin calls is up to its compiler's options.
ssize_t pread(int fd, void *to, size_t n, off_t offset) __attribute__((alias("pread64")));
ssize_t pwrite(int fd, const void *from, size_t n, off_t offset) __attribute__((alias("pwrite64")));
