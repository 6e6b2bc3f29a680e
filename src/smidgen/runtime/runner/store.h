/* STATE in a file, as two slots (slots.h): a run that is cut off never spoils what was saved before. */
#ifndef SMG_RUNNER_STORE_H
#define SMG_RUNNER_STORE_H
#include "../slots.h"
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int fd;
    uint32_t slot_bytes;
    SmgSlots slots;
} Store;

/* Opens or makes the file. *is_new: there was nothing in it. NULL, or why not. */
const char *store_open(Store *s, const SmgContext *x, const char *path, int *is_new);

/* FNV-1a of the bytes so far and these, 64 bits. */
#define STORE_HASH_START 0xcbf29ce484222325u
uint64_t store_hash(uint64_t so_far, const uint8_t *data, size_t bytes);

/* Peak of the process's resident memory in KB, by the kernel; 0 if it does not tell. */
long store_peak_kb(void);

/* The head of an .npy file of f32 numbers. 0, or -1. */
int store_npy(FILE *out, const uint64_t *dims, int rank);

#ifdef __cplusplus
}
#endif
#endif
