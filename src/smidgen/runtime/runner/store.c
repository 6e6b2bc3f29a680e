/* See store.h. */
#define _GNU_SOURCE
#include "store.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int all_written(int fd, const uint8_t *from, size_t bytes, off_t at) {
    while (bytes) {
        const ssize_t count = pwrite(fd, from, bytes, at);
        if (count <= 0) { return -1; }
        from += count;
        at += count;
        bytes -= (size_t)count;
    }
    return 0;
}

static int file_write(void *self, int slot, uint32_t offset, const void *from, uint32_t bytes) {
    const Store *s = (const Store *)self;
    const off_t at = (off_t)s->slot_bytes * slot + offset;
    /* The header makes the rest valid, so the rest has to be on the disk before it, and it before we say so. */
    if (offset == 0 && fsync(s->fd)) { return -1; }
    return all_written(s->fd, (const uint8_t *)from, bytes, at) || (offset == 0 && fsync(s->fd)) ? -1 : 0;
}

static int file_erase(void *self, int slot) {
    const Store *s = (const Store *)self;
    uint8_t gone[SMG_SLOT_HEADER_BYTES];
    memset(gone, 0xff, sizeof gone);
    return all_written(s->fd, gone, sizeof gone, (off_t)s->slot_bytes * slot) || fsync(s->fd) ? -1 : 0;
}

static int file_read(void *self, int slot, uint32_t offset, void *to, uint32_t bytes) {
    const Store *s = (const Store *)self;
    off_t at = (off_t)s->slot_bytes * slot + offset;
    uint8_t *place = (uint8_t *)to;
    while (bytes) {
        const ssize_t count = pread(s->fd, place, bytes, at);
        if (count <= 0) { return -1; }
        place += count;
        at += count;
        bytes -= (uint32_t)count;
    }
    return 0;
}

const char *store_open(Store *s, const SmgContext *x, const char *path, int *is_new) {
    struct stat info;
    s->slot_bytes = smg_slot_bytes(x, 1);
    s->slots = (SmgSlots){s, file_erase, file_write, file_read, s->slot_bytes, 1};
    s->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (s->fd < 0 || fstat(s->fd, &info)) { return strerror(errno); }
    if (!S_ISREG(info.st_mode)) { return "not a file"; }
    *is_new = info.st_size == 0;
    if (!*is_new && info.st_size != 2 * (off_t)s->slot_bytes) { return "it is not the state of this program"; }
    return *is_new && ftruncate(s->fd, 2 * (off_t)s->slot_bytes) ? strerror(errno) : NULL;
}

uint64_t store_hash(uint64_t hash, const uint8_t *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) { hash = (hash ^ data[i]) * 0x100000001b3u; }
    return hash;
}

long store_peak_kb(void) {
    char line[256];
    long peak = 0;
    FILE *status = fopen("/proc/self/status", "r");
    if (!status) { return 0; }
    while (fgets(line, sizeof line, status)) {
        if (sscanf(line, "VmHWM: %ld", &peak) == 1) { break; }
    }
    fclose(status);
    return peak;
}

int store_npy(FILE *out, const uint64_t *dims, int rank) {
    char head[256];
    int length = snprintf(head, sizeof head, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    for (int i = 0; i < rank && length < (int)sizeof head - 32; i++) {
        length += snprintf(head + length, sizeof head - (size_t)length, "%llu,%s", (unsigned long long)dims[i],
                           i + 1 < rank ? " " : "");
    }
    length += snprintf(head + length, sizeof head - (size_t)length, "), }");
    const int padded = (10 + length + 1 + 63) / 64 * 64 - 10;
    const uint8_t start[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)padded, (uint8_t)(padded >> 8)};
    if (fwrite(start, 1, 10, out) != 10 || fwrite(head, 1, (size_t)length, out) != (size_t)length) { return -1; }
    for (int i = length; i < padded - 1; i++) { fputc(' ', out); }
    return fputc('\n', out) == '\n' ? 0 : -1;
}
