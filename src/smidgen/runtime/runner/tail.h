/* The program at the end of this very executable, which does not map it: what is copied once need not stay mapped. The
 * build writes executable, zeros up to a multiple of TAIL_ALIGN, program, Tail. */
#ifndef SMG_RUNNER_TAIL_H
#define SMG_RUNNER_TAIL_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TAIL_ALIGN 65536u /* no Linux has larger pages */

typedef struct {
    char magic[8]; /* "SMDGTAIL" */
    uint64_t offset, bytes;
} Tail;

/* The program's bytes, read-only; NULL with `why` if there is none. */
const uint8_t *tail_map(size_t *bytes, const char **why);

/* Memory of `bytes` that begins with the `given` ones of a part of the program, zero behind them. Piece by piece that
 * part is given back to the system (its whole pages), so that both are never there at the same time. NULL: not
 * enough. */
void *tail_take(const uint8_t *part, size_t given, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
