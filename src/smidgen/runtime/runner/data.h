/* Samples for one entry point, from an .npz file (x or x0, x1, …, and y) or from raw files, one for each input:
 * mapped, and brought into the buffers' types batch by batch. */
#ifndef SMG_RUNNER_DATA_H
#define SMG_RUNNER_DATA_H
#include "../smidgen.h"
#include "npz.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DATA_MOST_INPUTS = 16 };
typedef struct {
    NpzArray array;
    SmgBufferInfo info;
    uint64_t elements; /* of one sample */
    SmgBuffer staged;  /* room for all that are taken at a time */
} DataInput;

typedef struct {
    DataInput inputs[DATA_MOST_INPUTS];
    int count;
    uint64_t samples;
    uint32_t *order; /* which sample is the i-th; as they come until data_shuffle */
    char message[256];
} Data;

/* Opens the samples that `entry` takes; if that is `train` and there is an entry `features`, the inputs are those of
 * the latter. At most `most` are taken at a time. npz is a path or NULL; then raw has `raws` paths, in the order of the
 * inputs. With optional_last, the last input may be missing (a program's target, when nothing is compared): count is
 * one less. 0, or -1 with the message. Memory is taken here and nowhere else. */
int data_open(Data *d, const SmgContext *x, int entry, const char *npz, char **raw, int raws, int optional_last,
              long most);

/* The order of samples in an epoch, the same as `fit` takes on the host. */
void data_shuffle(Data *d, uint64_t seed, uint64_t epoch);

/* Samples first … first + n - 1 of that order, into the staged buffers. 0, or -1 with the message. */
int data_take(Data *d, uint64_t first, int32_t n);

/* Anonymous memory, zero; NULL if there is none. */
void *data_memory(size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
