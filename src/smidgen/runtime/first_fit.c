/* Offsets for blocks of memory with known lives, for the compiler on the host (compiler/place/first_fit.py). */
#include <stdint.h>
#include <string.h>

typedef struct {
    int64_t start, end;   /* bytes */
    int32_t birth, death; /* nodes, both included */
} Span;

/* Spans stay sorted by start, then by end. */
static void insert(Span *spans, int count, Span one) {
    int low = 0, high = count;
    while (low < high) {
        const int mid = (low + high) / 2;
        const Span *s = &spans[mid];
        const int before = s->start < one.start || (s->start == one.start && s->end <= one.end);
        if (before) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    memmove(&spans[low + 1], &spans[low], sizeof(Span) * (size_t)(count - low));
    spans[low] = one;
}

/* The lowest gap of `size` bytes among the spans that are alive at some time with `one`; or the tightest gap, the
 * lowest of those, and above all of them only if there is none. */
static int64_t gap(const Span *spans, int count, Span one, int64_t size, int tightest) {
    int64_t start = 0, best = -1, least = 0;
    for (int k = 0; k < count; k++) {
        const Span *s = &spans[k];
        if (s->birth > one.death || s->death < one.birth) { continue; }
        const int64_t room = s->start - start;
        if (room >= size) {
            if (!tightest) { return start; }
            if (best < 0 || room < least) {
                best = start;
                least = room;
            }
        }
        start = s->end > start ? s->end : start;
    }
    return best < 0 ? start : best;
}

/* Places N blocks in this order; the first `same` of it are at offset[] already. spans[N] is memory to work with.
 * Returns the end of the last block, or -1 as soon as a block would end above `most`. */
int64_t smg_first_fit(int N, const int64_t *bytes, const int32_t *birth, const int32_t *death, const int32_t *order,
                      int same, int tightest, int64_t most, int64_t *offset, Span *spans) {
    int64_t top = 0;
    for (int k = 0; k < N; k++) {
        const int i = order[k];
        Span one = {0, 0, birth[i], death[i]};
        if (k >= same) { offset[i] = gap(spans, k, one, bytes[i], tightest); }
        one.start = offset[i];
        one.end = offset[i] + bytes[i];
        if (one.end > top) {
            top = one.end;
            if (k >= same && top > most) { return -1; }
        }
        insert(spans, k, one);
    }
    return top;
}
