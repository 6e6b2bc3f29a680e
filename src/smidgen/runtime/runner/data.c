/* See data.h. */
#define _GNU_SOURCE
#include "data.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void *data_memory(size_t bytes) {
    void *at = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static int failed(Data *d, const char *where, const char *why) {
    snprintf(d->message, sizeof d->message, "%s: %s", where, why);
    return -1;
}

static int mapped(Data *d, const char *path, const uint8_t **at, size_t *bytes) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0) { return failed(d, path, strerror(errno)); }
    const int is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
    void *found = is_file ? mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (!is_file || found == MAP_FAILED) { return failed(d, path, is_file ? strerror(errno) : "not a file, or empty"); }
    *at = (const uint8_t *)found;
    *bytes = (size_t)info.st_size;
    return 0;
}

static int item_bytes(SmgType type) { return smg_types[type].bytes; }

/* The kind of such numbers in an NpzArray. */
static char kind_of(SmgType type) {
    if (type == SMG_F32) { return 'f'; }
    return type == SMG_I32 ? 'i' : 'u';
}

/* A raw file holds numbers of the buffer's own type. */
static int as_raw(Data *d, DataInput *in, const char *path) {
    size_t bytes;
    if (mapped(d, path, &in->array.data, &bytes)) { return -1; }
    const uint64_t sample = in->elements * (uint64_t)item_bytes(in->info.type);
    if (!sample || bytes % sample) { return failed(d, path, "its size is not a whole number of samples"); }
    in->array.kind = kind_of(in->info.type);
    in->array.item = item_bytes(in->info.type);
    in->array.bytes = bytes;
    in->array.rank = 1;
    in->array.dims[0] = bytes / sample * (uint64_t)in->info.dims[0];
    return 0;
}

static int same_shape(const DataInput *in) {
    const NpzArray *a = &in->array;
    if (a->rank != in->info.rank || a->dims[0] % (uint64_t)in->info.dims[0]) { return 0; }
    for (int i = 1; i < a->rank; i++) {
        if (a->dims[i] != (uint64_t)in->info.dims[i]) { return 0; }
    }
    return 1;
}

/* 0, 1 if there is no such array, or -1. */
static int open_input(Data *d, DataInput *in, int number, int all, const uint8_t *npz, size_t bytes, const char *path) {
    const int is_target = number == all - 1 && all > 1;
    char name[8] = "y";
    if (!is_target) { snprintf(name, sizeof name, all > 2 ? "x%d" : "x", number); }
    const char *why = npz_find(npz, bytes, name, &in->array);
    char where[160];
    snprintf(where, sizeof where, "%.120s, array '%s'", path, name);
    if (why) {
        failed(d, where, why);
        return why == npz_missing ? 1 : -1;
    }
    return same_shape(in) ? 0 : failed(d, where, "its shape is not that of the program's input");
}

static int inputs_of(const SmgContext *x, int entry) {
    SmgBufferInfo info;
    int all = 0;
    for (int i = 0; i < smg_buffer_count(x, entry); i++) {
        if (smg_buffer_info(x, entry, i, &info) == SMG_OK && !info.is_output) { all++; }
    }
    return all;
}

int data_open(Data *d, const SmgContext *x, int entry, const char *npz, char **raw, int raws, int optional_last,
              long most) {
    const uint8_t *file = NULL;
    size_t bytes = 0;
    const int features = smg_entry(x, "features"), last = inputs_of(x, entry) - 1;
    const int all = features < 0 ? last + 1 : inputs_of(x, features) + 1;
    memset(d, 0, sizeof *d);
    if (all < 1 || all > DATA_MOST_INPUTS) { return failed(d, "program", "it takes too many inputs, or none"); }
    if (npz && mapped(d, npz, &file, &bytes)) { return -1; }
    if (!npz && raws != all && !(optional_last && raws == all - 1)) {
        return failed(d, "raw files", "give one for each input: --raw x.bin --raw y.bin");
    }
    for (int i = 0; i < all; i++) {
        DataInput *in = &d->inputs[i];
        const int is_last = i == all - 1, from = features < 0 || is_last ? entry : features,
                  number = is_last ? last : i;
        smg_buffer_info(x, from, number, &in->info);
        if (in->info.batch_axis != 0 || in->info.dims[0] < 1) {
            return failed(d, in->info.name, "samples must be its first axis");
        }
        in->elements = smg_buffer_bytes(x, from, number, 1) / (uint64_t)item_bytes(in->info.type);
        int wrong = 1; /* 1: there is none */
        if (npz) {
            wrong = open_input(d, in, i, all, file, bytes, npz);
        } else if (i < raws) {
            wrong = as_raw(d, in, raw[i]);
        }
        if (wrong == 1 && optional_last && i == all - 1) { break; }
        if (wrong) { return -1; }
        const uint64_t samples = in->array.dims[0] / (uint64_t)in->info.dims[0];
        if (i && samples != d->samples) { return failed(d, in->info.name, "inputs have different numbers of samples"); }
        if (!samples || samples > UINT32_MAX) { return failed(d, in->info.name, "there are no samples, or too many"); }
        d->samples = samples;
        d->count = i + 1;
        in->staged.bytes = (size_t)smg_buffer_bytes(x, from, number, 1) * (size_t)most;
        in->staged.data = data_memory(in->staged.bytes);
        if (!in->staged.data) { return failed(d, "memory", strerror(errno)); }
    }
    d->order = (uint32_t *)data_memory((size_t)d->samples * sizeof *d->order);
    if (!d->order) { return failed(d, "memory", strerror(errno)); }
    for (uint64_t i = 0; i < d->samples; i++) { d->order[i] = (uint32_t)i; }
    return 0;
}

/* ---- SplitMix64 (Steele, Lea, Flood 2014), as fit on the host has it: samples are sorted by a hash ---- */

static uint64_t scrambled(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t sort_start; /* qsort has no room for it */
static uint64_t key_of(uint32_t sample) { return scrambled(sample * 0x9e3779b97f4a7c15u + sort_start); }
static int by_key(const void *a, const void *b) {
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const uint64_t p = key_of(i), q = key_of(j);
    return p != q ? (p > q) - (p < q) : (i > j) - (i < j);
}

void data_shuffle(Data *d, uint64_t seed, uint64_t epoch) {
    sort_start = scrambled((scrambled(seed + 0x9e3779b97f4a7c15u) ^ epoch) + 0x9e3779b97f4a7c15u);
    for (uint64_t i = 0; i < d->samples; i++) { d->order[i] = (uint32_t)i; }
    qsort(d->order, (size_t)d->samples, sizeof *d->order, by_key);
}

/* ---- batches ---- */

static int take_sample(Data *d, const DataInput *in, uint64_t sample, int32_t place) {
    const NpzArray *a = &in->array;
    const uint64_t from = sample * in->elements, to = (uint64_t)place * in->elements;
    const int item = item_bytes(in->info.type);
    const char kind = kind_of(in->info.type);
    if (a->item == item && (a->kind == kind || (kind == 'u' && a->kind == 'b'))) {
        memcpy((uint8_t *)in->staged.data + to * (uint64_t)item, a->data + from * (uint64_t)item,
               (size_t)(in->elements * (uint64_t)item));
        return 0;
    }
    for (uint64_t k = 0; k < in->elements; k++) {
        const double value = npz_number(a, from + k);
        if (in->info.type == SMG_F32) {
            ((float *)in->staged.data)[to + k] = (float)value;
            continue;
        }
        const double most = in->info.type == SMG_I32 ? 2147483647.0 : 255.0,
                     least = in->info.type == SMG_I32 ? -2147483648.0 : 0.0;
        if (!(value >= least && value <= most) || value != (double)(int64_t)value) {
            return failed(d, in->info.name, "a number is out of range or not an integer");
        }
        if (in->info.type == SMG_I32) {
            ((int32_t *)in->staged.data)[to + k] = (int32_t)value;
        } else {
            ((uint8_t *)in->staged.data)[to + k] = (uint8_t)value;
        }
    }
    return 0;
}

int data_take(Data *d, uint64_t first, int32_t n) {
    for (int i = 0; i < d->count; i++) {
        for (int32_t k = 0; k < n; k++) {
            if (take_sample(d, &d->inputs[i], d->order[first + (uint64_t)k], k)) { return -1; }
        }
    }
    return 0;
}
