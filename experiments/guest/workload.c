// The load that a demo or test guest puts on its disk, and the proof that what it reads is what was written.
//
// Owns the pattern of a data file: every 4 KiB block says whose it is, which block and which generation (how often it
// was written), and the rest of it follows from those three. So every read is checked, byte by byte, without a copy of
// the data anywhere, and a wrong byte can be named: stale (an older generation), foreign (another block or file), or
// damaged. The host makes the file with the same program (`fill`), so the pattern is defined here alone.
//
//   workload fill FILE --seed N --bytes N
//   workload zipf FILE --seed N --bytes N --warm OPS --ops OPS --alpha A --write-percent P [--rng N]
//   workload uniform FILE ...                        as zipf, without --alpha
//   workload pool FILE ... --frames N                a database's buffer pool: uniform reads by O_DIRECT into N frames of
//                                                    its own memory, one of them replaced at random
//   workload seq  FILE --seed N --bytes N --warm PASSES --ops PASSES
//   workload check FILE --seed N --bytes N           reads everything once; generation 0 expected
//     --device vda   add the block device's own counters to the results
//     --wait         after the warm-up print "ready" and wait for a line on standard input
//     --anon BYTES --anon-every OPS   churn of anonymous memory: takes that much and fills it, lets it go OPS later, takes
//                    it again OPS later, and so on. Counted in operations, so that the load is the same at any speed
//     --prefill      before the warm-up read everything once, in order: caches fill up sooner than by random reads
//     --seconds N    the measured part ends after so long, if it has not done --ops before
//     --layout N     which blocks are popular follows from this and not from --rng: runs of one layout go on with each other's caches
//     --check-all    at the end drop the file's cached pages and check every block of it
//
// FILE can be up to eight files, `A,B`: 64 KiB of blocks in turn are on each, every block at the place that it has in one file, so that all of
// them can be copies of one image. --device takes as many devices, and adds their counters up.
//
// Prints one JSON object a line: progress, ready, done. Exit status 0, 1 (wrong data or a failed call), 2 (usage).
//
// A read is first tried with RWF_NOWAIT: what the guest's own page cache holds is counted and timed apart from what
// had to come from the disk, which is what the host's cache can change. Times are CLOCK_MONOTONIC; Zipf ranks are laid
// over the file by a random permutation (seeded), so that popular blocks are not neighbours.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, WORDS = BLOCK / 8, CHUNK = 65536 };

static void die(const char *what) {
    printf("{\"event\":\"error\",\"message\":\"%s: %s\"}\n", what, strerror(errno));
    fflush(stdout);
    exit(1);
}

// --- Random numbers: splitmix64 (Steele, Lea, Flood 2014) ------------------------------------------------------------

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static uint64_t rng_state;
static uint64_t rng(void) { return mix(rng_state++); }
static double rng_unit(void) { return (rng() >> 11) * 0x1p-53; }

// --- The pattern -----------------------------------------------------------------------------------------------------

static uint64_t pattern_word(uint64_t seed, uint64_t block, uint64_t generation, int word) {
    return mix(mix(seed ^ mix(block)) + generation) + word * 0x9e3779b97f4a7c15;
}

static void pattern_fill(uint64_t *to, uint64_t seed, uint64_t block, uint64_t generation) {
    uint64_t first = pattern_word(seed, block, generation, 0);
    for (int i = 0; i < WORDS; i++) to[i] = first + i * 0x9e3779b97f4a7c15;
    to[0] = seed;
    to[1] = block;
    to[2] = generation;
}

static void pattern_check(const uint64_t *got, uint64_t seed, uint64_t block, uint64_t generation) {
    uint64_t first = pattern_word(seed, block, generation, 0), wrong = 0;
    wrong |= (got[0] ^ seed) | (got[1] ^ block) | (got[2] ^ generation);
    for (int i = 3; i < WORDS; i++) wrong |= got[i] ^ (first + i * 0x9e3779b97f4a7c15);
    if (!wrong) return;
    const char *kind = "damaged";
    if (got[0] != seed || got[1] != block) kind = "foreign";
    else if (got[2] < generation) kind = "stale";
    printf("{\"event\":\"error\",\"message\":\"block %" PRIu64 " is %s: wanted seed %" PRIu64 " generation %" PRIu64
           ", got seed %" PRIu64 " block %" PRIu64 " generation %" PRIu64 "\"}\n",
           block, kind, seed, generation, got[0], got[1], got[2]);
    fflush(stdout);
    exit(1);
}

// --- Time and latency: a histogram with 32 buckets per power of two (about 3 % wide) ---------------------------------

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

struct latency {
    uint64_t count, sum_ns, buckets[64 * 32];
};

static void latency_add(struct latency *l, uint64_t ns) {
    int shift = ns < 32 ? 0 : 63 - __builtin_clzll(ns) - 4;
    l->buckets[shift ? shift * 32 + (ns >> (shift - 1)) - 32 : ns]++;
    l->count++;
    l->sum_ns += ns;
}

// The value in microseconds that FRACTION of the samples stay at or below.
static double latency_us(const struct latency *l, double fraction) {
    uint64_t want = ceil(l->count * fraction), seen = 0;
    for (int i = 0; i < 64 * 32; i++) {
        seen += l->buckets[i];
        if (!l->count || seen < want) continue;
        int shift = i / 32;
        uint64_t top = shift ? (uint64_t)(i - shift * 32 + 33) << (shift - 1) : (uint64_t)i + 1;
        return top / 1000.0;
    }
    return 0;
}

static void latency_print(const char *name, const struct latency *l) {
    printf(",\"%s\":{\"count\":%" PRIu64 ",\"mean_us\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f}", name, l->count,
           l->count ? l->sum_ns / 1000.0 / l->count : 0.0, latency_us(l, 0.5), latency_us(l, 0.99));
}

// --- The block device's own counters (Documentation/block/stat.rst) --------------------------------------------------

struct device {
    uint64_t read_ios, read_bytes, read_ms, write_ios, write_bytes;
};

static struct device device_read_one(const char *name) {
    struct device d = {0};
    char path[128];
    snprintf(path, sizeof path, "/sys/block/%s/stat", name);
    FILE *f = fopen(path, "r");
    if (!f) die(path);
    uint64_t v[7] = {0};
    for (int i = 0; i < 7; i++)
        if (fscanf(f, "%" SCNu64, &v[i]) != 1) die(path);
    fclose(f);
    d.read_ios = v[0], d.read_bytes = v[2] * 512, d.read_ms = v[3], d.write_ios = v[4], d.write_bytes = v[6] * 512;
    return d;
}

// The sum of all devices of a list `A,B`.
static struct device device_read(const char *names) {
    struct device sum = {0};
    char list[128], *rest = list;
    snprintf(list, sizeof list, "%s", names);
    for (char *name; (name = strsep(&rest, ","));) {
        struct device d = device_read_one(name);
        sum.read_ios += d.read_ios, sum.read_bytes += d.read_bytes, sum.read_ms += d.read_ms;
        sum.write_ios += d.write_ios, sum.write_bytes += d.write_bytes;
    }
    return sum;
}

// --- One run ---------------------------------------------------------------------------------------------------------

static struct {
    const char *kind, *device;
    char *file;
    uint64_t seed, bytes, warm, ops, rng, frames, anon, anon_every, layout;
    double alpha, seconds;
    int write_percent, wait, check_all, prefill;
} arg = {.alpha = 0.9};

enum { FILES_MAX = 8 };
static int fds[FILES_MAX];
static uint64_t files;
static uint64_t blocks;
static uint32_t *generations; // how often each block was written
static uint64_t *buffer;

static struct {
    uint64_t reads, writes, read_bytes, cached_bytes;
    struct latency cached, disk, all, write;
} sum;

// The file that has what is at OFFSET; nothing of at most CHUNK bytes at a multiple of its size lies on two.
static int fd_of(uint64_t offset) { return fds[offset / CHUNK % files]; }

static void sync_all(void) {
    for (uint64_t i = 0; i < files; i++)
        if (fsync(fds[i])) die("fsync");
}

static void advise_all(int advice) {
    for (uint64_t i = 0; i < files; i++) posix_fadvise(fds[i], 0, 0, advice);
}

// Reads and checks BYTES at OFFSET, which lie within one CHUNK; both are multiples of BLOCK.
static void read_checked(uint64_t offset, uint64_t bytes) {
    int fd = fd_of(offset);
    uint64_t begin = now_ns();
    struct iovec v = {buffer, bytes};
    ssize_t had = preadv2(fd, &v, 1, offset, RWF_NOWAIT);
    if (had < 0 && errno != EAGAIN && errno != EOPNOTSUPP) die("read");
    uint64_t done = had > 0 ? had : 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (char *)buffer + done, bytes - done, offset + done);
        if (n <= 0) die("read");
        done += n;
    }
    uint64_t ns = now_ns() - begin;
    int cached = had == (ssize_t)bytes;
    latency_add(cached ? &sum.cached : &sum.disk, ns);
    latency_add(&sum.all, ns);
    sum.reads++;
    sum.read_bytes += bytes;
    sum.cached_bytes += had > 0 ? had : 0;
    for (uint64_t i = 0; i < bytes / BLOCK; i++) {
        uint64_t block = offset / BLOCK + i;
        pattern_check(buffer + i * WORDS, arg.seed, block, generations[block]);
    }
}

static void write_block(uint64_t block) {
    pattern_fill(buffer, arg.seed, block, ++generations[block]);
    uint64_t begin = now_ns();
    if (pwrite(fd_of(block * BLOCK), buffer, BLOCK, block * BLOCK) != BLOCK) die("write");
    latency_add(&sum.write, now_ns() - begin);
    sum.writes++;
}

static double *zipf_sums;
static uint32_t *zipf_block;

static void zipf_prepare(void) {
    zipf_sums = malloc(blocks * sizeof *zipf_sums);
    zipf_block = malloc(blocks * sizeof *zipf_block);
    if (!zipf_sums || !zipf_block) die("memory");
    double total = 0;
    for (uint64_t i = 0; i < blocks; i++) zipf_sums[i] = total += 1 / pow(i + 1, arg.alpha);
    for (uint64_t i = 0; i < blocks; i++) zipf_sums[i] /= total, zipf_block[i] = i;
    uint64_t state = rng_state;
    if (arg.layout) rng_state = mix(arg.layout);
    for (uint64_t i = blocks - 1; i > 0; i--) {
        uint64_t j = rng() % (i + 1);
        uint32_t block = zipf_block[i];
        zipf_block[i] = zipf_block[j], zipf_block[j] = block;
    }
    if (arg.layout) rng_state = state;
}

static uint64_t zipf_next(void) {
    double u = rng_unit();
    uint64_t low = 0, high = blocks - 1;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (zipf_sums[middle] < u) low = middle + 1;
        else high = middle;
    }
    return zipf_block[low];
}

// A buffer pool: which frame holds a block, and the other way round. Frames are what the O_DIRECT reads go to.
static uint64_t *pool;
static uint32_t *frame_of, *block_in, frames_used;
enum { NOWHERE = UINT32_MAX };

static void pool_prepare(void) {
    pool = mmap(0, arg.frames * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    frame_of = malloc(blocks * sizeof *frame_of);
    block_in = malloc(arg.frames * sizeof *block_in);
    if (pool == MAP_FAILED || !frame_of || !block_in) die("memory");
    memset(frame_of, 0xff, blocks * sizeof *frame_of);
}

static void pool_read(uint64_t block) {
    uint64_t begin = now_ns();
    int cached = frame_of[block] != NOWHERE;
    if (!cached) {
        uint32_t frame = frames_used;
        if (frames_used < arg.frames) frames_used++;
        else frame = rng() % arg.frames, frame_of[block_in[frame]] = NOWHERE;
        if (pread(fd_of(block * BLOCK), pool + (uint64_t)frame * WORDS, BLOCK, block * BLOCK) != BLOCK) die("read");
        frame_of[block] = frame, block_in[frame] = block;
    }
    uint64_t ns = now_ns() - begin;
    latency_add(cached ? &sum.cached : &sum.disk, ns);
    latency_add(&sum.all, ns);
    sum.reads++;
    sum.read_bytes += BLOCK;
    sum.cached_bytes += cached ? BLOCK : 0;
    pattern_check(pool + (uint64_t)frame_of[block] * WORDS, arg.seed, block, 0);
}

// Anonymous memory that comes and goes; every page of it is written, so that the kernel must find room for it.
static void churn(uint64_t op) {
    static char *held;
    if (!arg.anon || op % arg.anon_every) return;
    if (held) {
        munmap(held, arg.anon);
        held = 0;
        return;
    }
    held = mmap(0, arg.anon, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (held == MAP_FAILED) die("memory");
    for (uint64_t at = 0; at < arg.anon; at += BLOCK) *(uint64_t *)(held + at) = mix(at + op);
}

static uint64_t phase_begin, progress_last;

static void progress(const char *phase, uint64_t done, uint64_t of) {
    uint64_t now = now_ns();
    if (now - progress_last < 400000000) return;
    progress_last = now;
    double seconds = (now - phase_begin) / 1e9;
    if (arg.seconds && !strcmp(phase, "measuring")) done = seconds * 1000, of = arg.seconds * 1000;
    printf("{\"event\":\"progress\",\"phase\":\"%s\",\"done\":%" PRIu64 ",\"of\":%" PRIu64
           ",\"mib_per_s\":%.1f,\"cached_share\":%.3f,\"disk_p50_us\":%.0f}\n",
           phase, done, of, sum.read_bytes / seconds / 1048576, sum.read_bytes ? (double)sum.cached_bytes / sum.read_bytes : 0,
           latency_us(&sum.disk, 0.5));
    fflush(stdout);
}

// OPS operations of a kind of load, or, of sequential load, as many passes over everything; less if SECONDS are over before (0: never).
static void phase(const char *name, const char *kind, uint64_t ops, double seconds) {
    memset(&sum, 0, sizeof sum);
    phase_begin = progress_last = now_ns();
    uint64_t until = seconds ? phase_begin + (uint64_t)(seconds * 1e9) : UINT64_MAX;
    int uniform = strcmp(kind, "zipf"), direct = !strcmp(kind, "pool");
    if (strcmp(kind, "seq")) {
        for (uint64_t i = 0; i < ops && now_ns() < until; i++) {
            uint64_t block = uniform ? rng() % blocks : zipf_next();
            churn(i);
            if (direct) pool_read(block);
            else if ((int)(rng() % 100) < arg.write_percent) write_block(block);
            else read_checked(block * BLOCK, BLOCK);
            if (i % 64 == 0) progress(name, i, ops);
        }
        return;
    }
    uint64_t total = ops * blocks * BLOCK, done = 0;
    for (uint64_t pass = 0; pass < ops; pass++)
        for (uint64_t at = 0, n; at < blocks * BLOCK && now_ns() < until; at += n, done += n) {
            n = blocks * BLOCK - at < CHUNK ? blocks * BLOCK - at : CHUNK;
            read_checked(at, n);
            progress(name, done, total);
        }
}

static void run(void) {
    rng_state = mix(arg.rng ? arg.rng : arg.seed);
    if (!strcmp(arg.kind, "zipf")) zipf_prepare();
    if (!strcmp(arg.kind, "pool")) pool_prepare();
    if (strcmp(arg.kind, "seq")) advise_all(POSIX_FADV_RANDOM);
    if (arg.prefill) phase("filling", "seq", 1, 0);
    phase("warm-up", arg.kind, arg.warm, 0);
    if (arg.wait) {
        printf("{\"event\":\"ready\"}\n");
        fflush(stdout);
        char line[64];
        if (!fgets(line, sizeof line, stdin)) die("standard input");
    }
    struct device before = {0}, after = {0};
    if (arg.device) before = device_read(arg.device);
    uint64_t begin = now_ns();
    phase("measuring", arg.kind, arg.ops, arg.seconds);
    double seconds = (now_ns() - begin) / 1e9;
    if (arg.device) after = device_read(arg.device);
    if (sum.writes) sync_all();
    printf("{\"event\":\"done\",\"workload\":\"%s\",\"seconds\":%.3f,\"reads\":%" PRIu64 ",\"writes\":%" PRIu64
           ",\"read_bytes\":%" PRIu64 ",\"cached_bytes\":%" PRIu64,
           arg.kind, seconds, sum.reads, sum.writes, sum.read_bytes, sum.cached_bytes);
    latency_print("read_all", &sum.all);
    latency_print("read_cached", &sum.cached);
    latency_print("read_disk", &sum.disk);
    latency_print("write", &sum.write);
    if (arg.device)
        printf(",\"device\":{\"read_ios\":%" PRIu64 ",\"read_bytes\":%" PRIu64 ",\"read_ms\":%" PRIu64
               ",\"write_ios\":%" PRIu64 ",\"write_bytes\":%" PRIu64 "}",
               after.read_ios - before.read_ios, after.read_bytes - before.read_bytes, after.read_ms - before.read_ms,
               after.write_ios - before.write_ios, after.write_bytes - before.write_bytes);
    printf("}\n");
    fflush(stdout);
}

static void fill(void) {
    for (uint64_t at = 0; at < blocks * BLOCK; at += CHUNK) {
        uint64_t n = blocks * BLOCK - at < CHUNK ? blocks * BLOCK - at : CHUNK;
        for (uint64_t i = 0; i < n / BLOCK; i++) pattern_fill(buffer + i * WORDS, arg.seed, at / BLOCK + i, 0);
        if (pwrite(fd_of(at), buffer, n, at) != (ssize_t)n) die("write");
    }
    sync_all();
}

static void check_all(void) {
    sync_all();
    advise_all(POSIX_FADV_DONTNEED);
    for (uint64_t at = 0; at < blocks * BLOCK; at += CHUNK)
        read_checked(at, blocks * BLOCK - at < CHUNK ? blocks * BLOCK - at : CHUNK);
    printf("{\"event\":\"checked\",\"blocks\":%" PRIu64 "}\n", blocks);
}

static int usage(const char *why) {
    fprintf(stderr, "workload: %s; the head of workload.c says how it is used\n", why);
    return 2;
}

int main(int argc, char **argv) {
    if (argc < 3) return usage("what, and on which file?");
    arg.kind = argv[1], arg.file = argv[2];
    for (int i = 3; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--wait")) { arg.wait = 1; continue; }
        if (!strcmp(name, "--check-all")) { arg.check_all = 1; continue; }
        if (!strcmp(name, "--prefill")) { arg.prefill = 1; continue; }
        if (i + 1 == argc) return usage("an option lacks its value");
        const char *value = argv[++i];
        if (!strcmp(name, "--seed")) arg.seed = strtoull(value, 0, 0);
        else if (!strcmp(name, "--bytes")) arg.bytes = strtoull(value, 0, 0);
        else if (!strcmp(name, "--warm")) arg.warm = strtoull(value, 0, 0);
        else if (!strcmp(name, "--ops")) arg.ops = strtoull(value, 0, 0);
        else if (!strcmp(name, "--rng")) arg.rng = strtoull(value, 0, 0);
        else if (!strcmp(name, "--alpha")) arg.alpha = strtod(value, 0);
        else if (!strcmp(name, "--write-percent")) arg.write_percent = atoi(value);
        else if (!strcmp(name, "--frames")) arg.frames = strtoull(value, 0, 0);
        else if (!strcmp(name, "--anon")) arg.anon = strtoull(value, 0, 0) / BLOCK * BLOCK;
        else if (!strcmp(name, "--anon-every")) arg.anon_every = strtoull(value, 0, 0);
        else if (!strcmp(name, "--layout")) arg.layout = strtoull(value, 0, 0);
        else if (!strcmp(name, "--seconds")) arg.seconds = strtod(value, 0);
        else if (!strcmp(name, "--device")) arg.device = value;
        else return usage("unknown option");
    }
    int make = !strcmp(arg.kind, "fill"), check = !strcmp(arg.kind, "check");
    int direct = !strcmp(arg.kind, "pool");
    if (!make && !check && !direct && strcmp(arg.kind, "zipf") && strcmp(arg.kind, "uniform") && strcmp(arg.kind, "seq"))
        return usage("unknown workload");
    blocks = arg.bytes / BLOCK;
    if (!blocks || blocks >= NOWHERE) return usage("--bytes must be at least 4096, and less than 16 TiB");
    if (direct && (!arg.frames || arg.frames >= NOWHERE || arg.write_percent || arg.check_all))
        return usage("pool needs --frames, and only reads");
    if (arg.anon && !arg.anon_every) return usage("--anon needs --anon-every");
    int how = (make ? O_RDWR | O_CREAT : arg.write_percent ? O_RDWR : O_RDONLY) | (direct ? O_DIRECT : 0);
    for (char *rest = arg.file, *file; (file = strsep(&rest, ","));) {
        if (files == FILES_MAX) return usage("at most eight files");
        if ((fds[files++] = open(file, how, 0644)) < 0) die(file);
    }
    generations = calloc(blocks, sizeof *generations);
    if (!generations || posix_memalign((void **)&buffer, BLOCK, CHUNK)) die("memory");
    if (make) fill();
    else if (!check) run();
    if (check || arg.check_all) check_all();
    return 0;
}
