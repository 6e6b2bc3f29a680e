/* What the fuzz target, its mutator and the replaying program share. */
#ifndef FUZZ_PROGRAM_H
#define FUZZ_PROGRAM_H
#include "format.h"
#include "rows.h"

enum { FUZZ_MAX_KERNELS = 1024, FUZZ_LARGEST_BUFFER = 1 << 18 };

/* What became of the last input: "refused: why", "ran: work", "stopped: why" (by a kernel), "cut off: entry point". */
extern char fuzz_verdict[256];
/* By this build's numbers: the kernels of every step that ended well so far. */
extern uint8_t fuzz_kernels_run[FUZZ_MAX_KERNELS];

/* Says so, and ends the program. */
void fuzz_finding(const char *what);

/* Runs a proved entry point with each operand in memory of its own. The other one frees what is left if it was not
 * allowed to end. */
SmgFault fuzz_run_apart(SmgContext *x, int entry, const SmgBuffer *buffers, SmgSamples samples);
void fuzz_apart_free(void);

/* What an instruction of a stream does in iteration i, worked out from its table once more. */
typedef struct {
    int32_t made, needed;           /* rows: of operand 0, of the others */
    int32_t scale, above;           /* n in its sizes, and padding or the first row that is needed */
    int32_t is_placed, from;        /* the first row that is made is told too */
    const int32_t *told;            /* numbers of the parameters that say so, or NULL */
    size_t moved[SMG_MAX_OPERANDS]; /* bytes from the start of each operand */
    size_t forget_from, forget;     /* bytes that first move to the start of operand 0 */
    int is_last;                    /* nothing is made in later ones */
} FuzzRows;
FuzzRows fuzz_rows(const uint32_t *table, const uint32_t *code, uint32_t place, int32_t i);
/* Parameters of such an instruction, from those of its block. */
const int32_t *fuzz_row_params(SmgContext *x, const uint32_t *block, const int32_t *p, const FuzzRows *rows);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_size, const uint8_t *two, size_t two_size, uint8_t *out,
                                 size_t max_size, unsigned seed);
#endif
