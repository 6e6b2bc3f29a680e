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

/* The lowest offset of a block of P parts, of which each is free of the spans that are alive at some time with it. */
static int64_t lowest(const Span *spans, int count, const Span *part, int P) {
    int64_t start = 0;
    for (int moved = 1; moved;) {
        moved = 0;
        for (int k = 0; k < count; k++) {
            const Span *s = &spans[k];
            for (int p = 0; p < P; p++) {
                const Span *one = &part[p];
                if (s->birth > one->death || s->death < one->birth) { continue; }
                if (s->start < start + one->end && start + one->start < s->end) {
                    start = s->end - one->start; /* whatever is lower meets the same span */
                    moved = 1;
                }
            }
        }
    }
    return start;
}

/* Places N blocks in this order; the first `same` of it are at offset[] already. Block i consists of the parts first[i]
 * to first[i + 1], no two of which are alive at a time, each `at` bytes behind the start of the block. spans[] is room
 * to work in, twice as many as there are parts. Returns the end of the last block, or -1 as soon as a block would end
 * above `most`. */
int64_t smg_first_fit(int N, const int32_t *first, const int64_t *at, const int64_t *bytes, const int32_t *birth,
                      const int32_t *death, const int32_t *order, int same, int tightest, int64_t most, int64_t *offset,
                      Span *spans) {
    Span *parts = spans + first[N];
    int64_t top = 0;
    int count = 0;
    for (int k = 0; k < N; k++) {
        const int i = order[k], P = first[i + 1] - first[i];
        for (int p = 0; p < P; p++) {
            const int q = first[i] + p;
            parts[p] = (Span){at[q], at[q] + bytes[q], birth[q], death[q]};
        }
        if (k >= same) {
            const int is_one = P == 1 && parts[0].start == 0;
            offset[i] = is_one ? gap(spans, count, parts[0], parts[0].end, tightest) : lowest(spans, count, parts, P);
        }
        int64_t end = offset[i];
        for (int p = 0; p < P; p++) {
            Span one = parts[p];
            one.start += offset[i];
            one.end += offset[i];
            end = one.end > end ? one.end : end;
            insert(spans, count++, one);
        }
        if (end > top) {
            top = end;
            if (k >= same && top > most) { return -1; }
        }
    }
    return top;
}
