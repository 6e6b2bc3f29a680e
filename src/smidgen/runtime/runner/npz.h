/* Arrays of numbers in .npz files (zip, not compressed, as np.savez writes them). The file may be hostile: no length in
 * it is trusted, and what is found lies within it. */
#ifndef SMG_NPZ_H
#define SMG_NPZ_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { NPZ_MAX_RANK = 8 };
typedef struct {
    const uint8_t *data; /* in the file; not aligned */
    uint64_t bytes;
    char kind; /* f, i, u or b, as in numpy */
    int item;  /* bytes of one element: 1, 2, 4 or 8 */
    int rank;
    uint64_t dims[NPZ_MAX_RANK];
} NpzArray;

/* The array of that name. NULL, or why not: a static sentence. A missing one is `npz_missing`. */
extern const char npz_missing[];
const char *npz_find(const uint8_t *file, size_t bytes, const char *name, NpzArray *found);

/* Element `index` as a number. */
double npz_number(const NpzArray *a, uint64_t index);

#ifdef __cplusplus
}
#endif
#endif
