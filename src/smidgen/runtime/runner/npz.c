/* See npz.h. Every read goes through a Span, whose bounds are checked. */
#include "npz.h"
#include "../crc.h"
#include <string.h>

const char npz_missing[] = "there is no array of that name";
static const char damaged[] = "it is not an .npz file, or it is damaged";
static const char large[] = "it is larger than a runner reads (4 GB)";

typedef struct {
    const uint8_t *at;
    size_t bytes;
} Span;

/* A part of a span; an empty one at NULL if it is not inside. */
static Span part(Span s, uint64_t offset, uint64_t bytes) {
    if (offset > s.bytes || bytes > s.bytes - offset) { return (Span){NULL, 0}; }
    return (Span){s.at + offset, (size_t)bytes};
}

static uint64_t number(const uint8_t *at, int bytes) {
    uint64_t n = 0;
    for (int i = bytes; i-- > 0;) { n = n << 8 | at[i]; }
    return n;
}

/* ---- zip ---- */

enum { END_BYTES = 22, ENTRY_BYTES = 46, LOCAL_BYTES = 30, STORED = 0, DEFLATED = 8 };

/* The record at the end, which is followed by nothing but a comment. */
static const uint8_t *find_end(Span file) {
    if (file.bytes < END_BYTES) { return NULL; }
    const size_t most = file.bytes - END_BYTES, reach = most < 65535 ? most : 65535;
    for (size_t back = 0; back <= reach; back++) {
        const uint8_t *e = file.at + most - back;
        if (memcmp(e, "PK\5\6", 4) == 0 && number(e + 20, 2) == back) { return e; }
    }
    return NULL;
}

/* Sizes and place of an entry, from the extra field where they do not fit 32 bits. -1 if that field is missing or
 * cut. */
static int wide_sizes(Span extra, uint64_t *whole, uint64_t *packed, uint64_t *local) {
    uint64_t *wanted[3];
    int count = 0;
    if (*whole == 0xffffffffu) { wanted[count++] = whole; }
    if (*packed == 0xffffffffu) { wanted[count++] = packed; }
    if (*local == 0xffffffffu) { wanted[count++] = local; }
    while (count && extra.bytes >= 4) {
        const Span field = part(extra, 4, number(extra.at + 2, 2));
        if (!field.at) { return -1; }
        if (number(extra.at, 2) == 1) {
            if (field.bytes < 8u * (unsigned)count) { return -1; }
            for (int i = 0; i < count; i++) { *wanted[i] = number(field.at + 8 * i, 8); }
            return 0;
        }
        extra = part(extra, 4 + field.bytes, extra.bytes - 4 - field.bytes);
    }
    return count ? -1 : 0;
}

static const char *member(Span file, const char *name, Span *found) {
    const uint8_t *end = find_end(file);
    const size_t length = strlen(name);
    if (!end) { return damaged; }
    const uint64_t entries = number(end + 10, 2), bytes = number(end + 12, 4), start = number(end + 16, 4);
    if (entries == 0xffff || bytes == 0xffffffffu || start == 0xffffffffu) { return large; }
    Span rest = part(file, start, bytes);
    if (!rest.at) { return damaged; }
    for (uint64_t i = 0; i < entries; i++) {
        if (rest.bytes < ENTRY_BYTES || memcmp(rest.at, "PK\1\2", 4)) { return damaged; }
        const uint8_t *e = rest.at;
        const uint64_t names = number(e + 28, 2), extras = number(e + 30, 2), comment = number(e + 32, 2);
        const Span text = part(rest, ENTRY_BYTES, names), extra = part(rest, ENTRY_BYTES + names, extras);
        if (!text.at || !extra.at) { return damaged; }
        const uint64_t size = ENTRY_BYTES + names + extras + comment;
        const Span after = size <= rest.bytes ? part(rest, size, rest.bytes - size) : (Span){NULL, 0};
        if (!after.at) { return damaged; }
        rest = after;
        /* x.npy */
        if (names != length + 4 || memcmp(text.at, name, length) || memcmp(text.at + length, ".npy", 4)) { continue; }
        const uint64_t flags = number(e + 8, 2), method = number(e + 10, 2), crc = number(e + 16, 4);
        uint64_t packed = number(e + 20, 4), whole = number(e + 24, 4), local = number(e + 42, 4);
        if (flags & 1) { return "it is encrypted"; }
        if (method == DEFLATED) { return "it is compressed: write it with np.savez, not with np.savez_compressed"; }
        if (method != STORED || wide_sizes(extra, &whole, &packed, &local) || whole != packed) { return damaged; }
        const Span head = part(file, local, LOCAL_BYTES);
        if (!head.at || memcmp(head.at, "PK\3\4", 4)) { return damaged; }
        const uint64_t skip = LOCAL_BYTES + number(head.at + 26, 2) + number(head.at + 28, 2);
        const int inside = skip <= file.bytes && local <= file.bytes - skip;
        const Span content = inside ? part(file, local + skip, whole) : (Span){NULL, 0};
        if (!content.at) { return damaged; }
        if (smg_crc32(0, content.at, content.bytes) != crc) { return damaged; }
        *found = content;
        return NULL;
    }
    return npz_missing;
}

/* ---- npy: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } ---- */

typedef struct {
    const uint8_t *at, *end;
} Text;

static void skip_blanks(Text *t) {
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n')) { t->at++; }
}

/* Takes the word if it comes next; whether it does. */
static int take(Text *t, const char *word) {
    const size_t length = strlen(word);
    skip_blanks(t);
    if ((size_t)(t->end - t->at) < length || memcmp(t->at, word, length)) { return 0; }
    t->at += length;
    return 1;
}

static int take_type(Text *t, NpzArray *a) {
    if (!take(t, "'") || t->end - t->at < 4) { return 0; }
    const char order = (char)t->at[0], kind = (char)t->at[1], item = (char)t->at[2];
    t->at += 3;
    if (!take(t, "'") || !strchr("<|", order) || !strchr("fiub", kind) || !strchr("1248", item)) { return 0; }
    a->kind = kind;
    a->item = item - '0';
    return (kind != 'f' || a->item >= 4) && (kind != 'b' || a->item == 1) && (order == '<' || a->item == 1);
}

static int take_shape(Text *t, NpzArray *a) {
    a->rank = 0;
    if (!take(t, "(")) { return 0; }
    while (!take(t, ")")) {
        uint64_t n = 0;
        int digits = 0;
        if (a->rank == NPZ_MAX_RANK) { return 0; }
        for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++, digits++) {
            if (digits == 15) { return 0; }
            n = 10 * n + (uint64_t)(*t->at - '0');
        }
        if (!digits) { return 0; }
        a->dims[a->rank++] = n;
        if (!take(t, ",") && !(t->at < t->end && *t->at == ')')) { return 0; }
    }
    return 1;
}

static const char *parse(Span npy, NpzArray *a) {
    int type = 0, order = 0, shape = 0;
    if (npy.bytes < 12 || memcmp(npy.at, "\x93NUMPY", 6)) { return damaged; }
    const int wide = npy.at[6] >= 2;
    const uint64_t start = wide ? 12 : 10;
    const Span head = part(npy, start, number(npy.at + 8, wide ? 4 : 2));
    if (npy.at[6] < 1 || npy.at[6] > 3 || !head.at) { return damaged; }
    Text t = {head.at, head.at + head.bytes};
    if (!take(&t, "{")) { return damaged; }
    while (!take(&t, "}")) {
        if (!type && take(&t, "'descr':")) {
            if (!take_type(&t, a)) {
                return "its data type is not supported: use little-endian floats, integers or bool";
            }
            type = 1;
        } else if (!order && take(&t, "'fortran_order':")) {
            if (take(&t, "True")) { return "it is in Fortran order: write np.ascontiguousarray(x)"; }
            if (!take(&t, "False")) { return damaged; }
            order = 1;
        } else if (!shape && take(&t, "'shape':")) {
            if (!take_shape(&t, a)) { return damaged; }
            shape = 1;
        } else {
            return damaged;
        }
        take(&t, ",");
    }
    if (!type || !order || !shape) { return damaged; }
    uint64_t bytes = (uint64_t)a->item;
    for (int i = 0; i < a->rank; i++) {
        if (a->dims[i] && bytes > UINT64_MAX / a->dims[i]) { return damaged; }
        bytes *= a->dims[i];
    }
    const Span data = part(npy, start + head.bytes, bytes);
    if (!data.at || start + head.bytes + bytes != npy.bytes) { return damaged; }
    a->data = data.at;
    a->bytes = bytes;
    return NULL;
}

const char *npz_find(const uint8_t *file, size_t bytes, const char *name, NpzArray *found) {
    Span npy = {NULL, 0};
    const char *why = member((Span){file, bytes}, name, &npy);
    return why ? why : parse(npy, found);
}

double npz_number(const NpzArray *a, uint64_t index) {
    const uint8_t *at = a->data + index * (uint64_t)a->item;
    const uint64_t bits = number(at, a->item);
    if (a->kind == 'f' && a->item == 4) {
        const uint32_t low = (uint32_t)bits;
        float f;
        memcpy(&f, &low, 4);
        return (double)f;
    }
    if (a->kind == 'f') {
        double d;
        memcpy(&d, &bits, 8);
        return d;
    }
    if (a->kind == 'i' && a->item < 8 && bits >> (8 * a->item - 1)) {
        return (double)bits - (double)((uint64_t)1 << 8 * a->item);
    }
    return a->kind == 'i' ? (double)(int64_t)bits : (double)bits;
}
