/* A program run on rows: samples that lie one behind another, each with all inputs and the target. For fleet.c. */
#ifndef SMG_FLEET_ROWS_H
#define SMG_FLEET_ROWS_H
#include "fleet.h"

typedef struct {
    SmgContext *context;
    const uint8_t *rows, *numbers; /* u16 each: which rows, n of them */
    uint32_t rows_bytes;
    int32_t n;
} SmgRows;

/* Which bytes of all outputs, one behind another, go where. */
typedef struct {
    uint8_t *to;
    uint32_t offset, bytes;
} SmgWanted;

/* 1 <= n <= batch, and are all rows there? */
SmgFleetError smg_fleet_rows_fit(const SmgRows *rows);

/* A batch, or a part of one. *is_whole becomes 0 if STATE may hold a part of the step. */
SmgFleetError smg_fleet_step(const SmgRows *rows, SmgSamples samples, float *loss, uint8_t *is_whole);

SmgFleetError smg_fleet_infer(const SmgRows *rows, const SmgWanted *wanted);
#endif
