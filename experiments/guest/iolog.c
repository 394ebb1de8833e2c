// Writes down what qemu-storage-daemon does to one image: a library that is loaded into it (LD_PRELOAD, aio=threads).
//
// One record for every 4 KiB block of every read and write: the block, the page of the daemon's address space that the
// data goes to or comes from, and, for reads, whether the host's page cache held the block before. The daemon maps a
// guest's memory and lets the kernel move data right into it, so that page stands for a page of the guest. That is what
// a perfectly exclusive cache is computed from (experiments/exclusive/perfect.py) and what a hit ratio by blocks is counted by.
//
// Owns the log: a file made by whoever starts the daemon, mapped here, so that a record costs no system call and its
// memory is charged to its maker. Never changes what is read or written, nor the order: it asks the page cache with
// cachestat(2), which changes nothing. Where the kernel has no cachestat (before 6.5), hits are marked as unknown.
//
//   IOLOG_IMAGE  the image    IOLOG_FILE  the log: 8 bytes of count, 8 of nothing, then records of 16 bytes
//
// The count keeps rising when the log is full; who reads it sees that records are missing.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BLOCK = 4096, READ = 0, WRITE = 1, MISS = 0, HIT = 1, UNKNOWN = 2, SYS_CACHESTAT = 451, HEADER = 16 };

struct record {
    uint64_t page;
    uint32_t block;
    uint8_t op, hit, unused[2];
};

static struct { _Atomic uint64_t count; uint64_t unused; } *header;
static struct record *records;
static uint64_t room;
static dev_t image_dev;
static ino_t image_ino;

static ssize_t (*next_pread)(int, void *, size_t, off64_t);
static ssize_t (*next_pwrite)(int, const void *, size_t, off64_t);
static ssize_t (*next_preadv)(int, const struct iovec *, int, off64_t);
static ssize_t (*next_pwritev)(int, const struct iovec *, int, off64_t);

__attribute__((constructor)) static void begin(void) {
    next_pread = (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    next_pwrite = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    next_preadv = (ssize_t (*)(int, const struct iovec *, int, off64_t))dlsym(RTLD_NEXT, "preadv64");
    next_pwritev = (ssize_t (*)(int, const struct iovec *, int, off64_t))dlsym(RTLD_NEXT, "pwritev64");
    const char *image = getenv("IOLOG_IMAGE"), *log = getenv("IOLOG_FILE");
    struct stat s;
    if (!image || !log || stat(image, &s)) return;
    image_dev = s.st_dev, image_ino = s.st_ino;
    int fd = open(log, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &s) || s.st_size < HEADER) return;
    void *map = mmap(0, s.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return;
    records = (struct record *)((char *)map + HEADER);
    room = (s.st_size - HEADER) / sizeof *records;
    header = map;
}

static int is_image(int fd) {
    struct stat s;
    return header && !fstat(fd, &s) && s.st_dev == image_dev && s.st_ino == image_ino;
}

// How many blocks of a range the page cache holds, or -1.
static long cached_blocks(int fd, uint64_t offset, uint64_t bytes) {
    uint64_t range[2] = {offset, bytes}, result[5] = {0};
    return syscall(SYS_CACHESTAT, fd, range, result, 0) ? -1 : (long)result[0];
}

static void note(int fd, int op, const struct iovec *v, int n, uint64_t offset) {
    int direct = fcntl(fd, F_GETFL) & O_DIRECT;
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += v[i].iov_len;
    long cached = op == WRITE || direct ? 0 : cached_blocks(fd, offset, bytes);
    uint64_t blocks = (bytes + BLOCK - 1) / BLOCK;
    for (int i = 0; i < n; i++)
        for (uint64_t at = 0; at < v[i].iov_len; at += BLOCK, offset += BLOCK) {
            int hit = cached < 0 ? UNKNOWN : cached == 0 ? MISS : (uint64_t)cached >= blocks ? HIT : UNKNOWN;
            // Some of several: ask for each.
            if (hit == UNKNOWN && cached > 0) hit = cached_blocks(fd, offset, 1) == 1 ? HIT : MISS;
            uint64_t k = atomic_fetch_add(&header->count, 1);
            if (k >= room) continue;
            records[k] = (struct record){.page = ((uint64_t)v[i].iov_base + at) / BLOCK, .block = offset / BLOCK, .op = op, .hit = hit};
        }
}

ssize_t pread64(int fd, void *to, size_t n, off64_t offset) {
    struct iovec v = {to, n};
    if (is_image(fd)) note(fd, READ, &v, 1, offset);
    return next_pread(fd, to, n, offset);
}

ssize_t pwrite64(int fd, const void *from, size_t n, off64_t offset) {
    struct iovec v = {(void *)from, n};
    if (is_image(fd)) note(fd, WRITE, &v, 1, offset);
    return next_pwrite(fd, from, n, offset);
}

ssize_t preadv64(int fd, const struct iovec *v, int n, off64_t offset) {
    if (is_image(fd)) note(fd, READ, v, n, offset);
    return next_preadv(fd, v, n, offset);
}

ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t offset) {
    if (is_image(fd)) note(fd, WRITE, v, n, offset);
    return next_pwritev(fd, v, n, offset);
}
