/* Training in a few calls, for firmware. Everything lives in one SmgContext and in the two blocks of memory it is
 * given; several contexts, of the same program or of others, do not know of each other.
 *
 *     static SmgContext x;
 *     static _Alignas(NET_ALIGN) uint8_t state[NET_STATE_BYTES], arena[NET_ARENA_BYTES];     sizes: net_program.h
 *     if (smg_open(&x, net_program, sizeof net_program, state, sizeof state, arena, sizeof arena)) fail(smg_error(&x));
 *     SmgBuffer batch[] = {{images, sizeof images}, {labels, sizeof labels}};
 *     float loss;
 *     if (smg_train_step(&x, batch, 2, 8, &loss, NULL)) fail(smg_error(&x));
 *     SmgBuffer io[] = {{images, sizeof images}, {scores, sizeof scores}};
 *     if (smg_infer(&x, io, 2, 8, NULL)) fail(smg_error(&x));
 *
 * Every function returns SMG_OK or says with smg_error(x) what is wrong. Nothing is copied that the program does not
 * copy itself; a channel (smidgen.h) delivers inputs without any memory of their own, and is NULL otherwise. */
#ifndef SMIDGEN_TRAIN_H
#define SMIDGEN_TRAIN_H
#include "smidgen.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One batch of n samples: forward, backward, update. inputs: those of the entry point `train`, the target last.
 * *loss is that before the update; a NULL in its place sends it through the channel. NaN or infinity in an input of
 * floats is refused before anything is learned: SMG_STOPPED, SMG_FAULT_NOT_FINITE. */
SmgStatus smg_train_step(SmgContext *x, const SmgBuffer *inputs, int count, int32_t n, float *loss,
                         const SmgChannel *channel);

/* That check alone, for who calls smg_run: inputs are the first `count` buffers of the entry point. */
SmgStatus smg_check_inputs(SmgContext *x, int entry, const SmgBuffer *inputs, int count, int32_t n);

/* The same in micro-batches, for batches that do not fit: once smg_zero, smg_grad for each of them, once smg_apply. The
 * bits are those of the undivided batch. samples: how many are at hand, of how many in all, and how many came before.
 * *loss is that of all micro-batches so far, as their share of the batch: after the last one, that of the batch, with
 * its bits. Needs a program built with --accumulate. */
SmgStatus smg_zero(SmgContext *x);
SmgStatus smg_grad(SmgContext *x, const SmgBuffer *inputs, int count, SmgSamples samples, float *loss,
                   const SmgChannel *channel);
SmgStatus smg_apply(SmgContext *x);

/* The model's outputs for n samples. buffers: its inputs, then its outputs. */
SmgStatus smg_infer(SmgContext *x, const SmgBuffer *buffers, int count, int32_t n, const SmgChannel *channel);

/* All that learning changes: weights, optimizer, statistics, learning rate, seed and step. Copy it out to keep it, and
 * in to go back, between calls. The same bytes mean the same on every target. */
SmgBuffer smg_state(SmgContext *x);

#ifdef __cplusplus
}
#endif
#endif
