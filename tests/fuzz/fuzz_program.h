/* What the fuzz target, its mutator and the replaying program share. */
#ifndef FUZZ_PROGRAM_H
#define FUZZ_PROGRAM_H
#include "format.h"

enum { FUZZ_MAX_KERNELS = 1024, FUZZ_LARGEST_BUFFER = 1 << 18 };

/* What became of the last input: "refused: why", "ran: work", "stopped: why" (by a kernel), "cut off: entry point". */
extern char fuzz_verdict[256];
/* By this build's numbers: the kernels of every step that ended well so far. */
extern uint8_t fuzz_kernels_run[FUZZ_MAX_KERNELS];

/* Runs a proved entry point with each operand in memory of its own. The other one frees what is left if it was not
 * allowed to end. */
SmgFault fuzz_run_apart(SmgContext *x, int entry, const SmgBuffer *buffers, SmgSamples samples);
void fuzz_apart_free(void);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_size, const uint8_t *two, size_t two_size, uint8_t *out,
                                 size_t max_size, unsigned seed);
#endif
