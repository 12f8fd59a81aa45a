/* Stands between a process and the data file of a store (LD_PRELOAD): lets calls fail as a device
   does, and logs what was written and synced, in order.

   disk_fail(kind, times, lands): the next calls of a kind fail with EIO. `lands` says what of a
   write reaches the file all the same: 0 nothing, 1 half of it, 2 all of it, 3 all of the first.
   disk_note(number): log that something was told to whoever waits for it.
   The log is named by DISK_LOG; each entry is a header and, of a write, its bytes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OTHER, DATA, SYNC, META, NOTE };

enum { META_BYTES = 8192 };

struct entry {
    int32_t kind, failed;
    int64_t offset, size;
};

static int fails[NOTE], landing[NOTE];

void disk_fail(int kind, int times, int lands) {
    fails[kind] = times;
    landing[kind] = lands;
}

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static void note(int kind, int failed, int64_t offset, const void *bytes, int64_t size) {
    static int log = -2;
    struct entry entry = {kind, failed, offset, size};
    struct iovec parts[2] = {{&entry, sizeof entry}, {(void *)bytes, bytes ? size : 0}};
    if (log == -2) {
        const char *path = getenv("DISK_LOG");
        log = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    }
    if (log >= 0) ((ssize_t(*)(int, const struct iovec *, int))real("writev"))(log, parts, 2);
}

void disk_note(int number) { note(NOTE, 0, number, NULL, 0); }

/* A descriptor of the data file: of its pages, or the synced one of its meta pages. */
static int kind_of(int fd) {
    static const char name[] = "/data.mdb";
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < (ssize_t)sizeof name || memcmp(path + size - sizeof name + 1, name, sizeof name - 1))
        return OTHER;
    return fcntl(fd, F_GETFL) & O_DSYNC ? META : DATA;
}

static int failing(int kind) { return fails[kind] ? fails[kind]--, 1 : 0; }

/* What fails as a write of a meta page is also the one that takes such a write back. */
static ssize_t put(int kind, int fd, const void *bytes, size_t size, off_t offset) {
    ssize_t (*pwrite_)(int, const void *, size_t, off_t) = real("pwrite");
    int as = offset < META_BYTES ? META : DATA;
    int failed = failing(as), landed = landing[as];
    if (failed && landed == 3) landing[as] = 0;
    size_t lands = !failed || landed > 1 ? size : landed ? size / 2 : 0;
    ssize_t done = lands ? pwrite_(fd, bytes, lands, offset) : 0;
    if (done > 0) note(kind, failed, offset, bytes, done);
    if (!failed) return done;
    errno = EIO;
    return -1;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) {
    int kind = kind_of(fd);
    if (kind == OTHER)
        return ((ssize_t(*)(int, const void *, size_t, off_t))real("pwrite"))(fd, bytes, size, offset);
    return put(kind, fd, bytes, size, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t offset) {
    return pwrite(fd, bytes, size, offset);
}

/* The engine seeks, and writes several pages in a row. */
ssize_t writev(int fd, const struct iovec *parts, int count) {
    int kind = kind_of(fd);
    if (kind == OTHER) return ((ssize_t(*)(int, const struct iovec *, int))real("writev"))(fd, parts, count);
    ssize_t done = 0;
    for (int each = 0; each < count; each++) {
        off_t offset = lseek(fd, 0, SEEK_CUR);
        ssize_t size = put(kind, fd, parts[each].iov_base, parts[each].iov_len, offset);
        if (size < 0) return -1;
        lseek(fd, offset + size, SEEK_SET);
        done += size;
    }
    return done;
}

static int synced(const char *name, int fd) {
    if (kind_of(fd) == OTHER) return ((int (*)(int))real(name))(fd);
    int failed = failing(SYNC);
    note(SYNC, failed, 0, NULL, 0);
    if (!failed) return ((int (*)(int))real(name))(fd);
    errno = EIO;
    return -1;
}

int fdatasync(int fd) { return synced("fdatasync", fd); }
int fsync(int fd) { return synced("fsync", fd); }
