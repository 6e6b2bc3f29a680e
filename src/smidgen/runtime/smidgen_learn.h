/* Learning from a stream, for programs made with the method `tinyol`: each sample is predicted and then learned from,
 * without labels where the model reconstructs its input. Statistics say what is usual, and how far it has moved; they
 * are part of STATE, so whatever saves STATE saves them.
 *
 *     SmgBuffer io[] = {{sample, sizeof sample}, {&label, sizeof label}, {&loss, sizeof loss}, {out, sizeof out}};
 *     if (smg_learn(&x, io, 4, 1, NULL)) fail(smg_error(&x));
 *
 * An autoencoder that learns what is normal where it is, and reports what is not:
 *
 *     SmgBuffer io[] = {{sample, sizeof sample}, {sample, sizeof sample}, {&loss, sizeof loss}, {out, sizeof out}};
 *     SmgBuffer look[] = {{sample, sizeof sample}, {&score, sizeof score}};
 *     SmgUsual usual;
 *     if (smg_detect(&x, look, 2, 1, NULL) || smg_usual(&x, &usual)) fail(smg_error(&x));
 *     if (score > usual.mean + 4 * usual.deviation) { alarm(); }
 *     else if (smg_learn(&x, io, 4, 1, NULL)) { fail(smg_error(&x)); }
 *
 * With replay (replay.h), smg_judge and smg_replay_step do together what smg_learn does without, and smg_replay_keep
 * keeps the sample.
 *
 * The reference that drift and scores are measured from are the first samples that were learned from or observed (32,
 * unless the program was made otherwise), or as many as smg_calibrate says. Every function returns SMG_OK or says with
 * smg_error(x) what is wrong; a channel (smidgen.h) delivers inputs without any memory of their own, or is NULL. */
#ifndef SMIDGEN_LEARN_H
#define SMIDGEN_LEARN_H
#include "smidgen.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The model's outputs for n samples, as they are before the update that follows. buffers: the model's inputs, the
 * target, the loss (before the update), the model's outputs. NaN or infinity in an input is refused before anything
 * changes: SMG_STOPPED, SMG_FAULT_NOT_FINITE. */
SmgStatus smg_learn(SmgContext *x, const SmgBuffer *buffers, int count, int32_t n, const SmgChannel *channel);

/* For programs with replay, before smg_replay_step (replay.h): as smg_learn, but nothing is learned. Loss and outputs
 * are given, and the scores of the samples are entered. */
SmgStatus smg_judge(SmgContext *x, const SmgBuffer *buffers, int count, int32_t n, const SmgChannel *channel);

/* Enters n samples into the statistics, without a target. Nothing else is learned. buffers: the model's inputs. */
SmgStatus smg_observe(SmgContext *x, const SmgBuffer *buffers, int count, int32_t n, const SmgChannel *channel);

/* How unusual each of n samples is: the mean squared error of a model that reconstructs its input; else the mean square
 * of the learning layer's input, in standard deviations from the reference (0 while there is none, about 1 for what is
 * usual). buffers: the model's inputs, float[n] for the scores. Nothing changes. */
SmgStatus smg_detect(SmgContext *x, const SmgBuffer *buffers, int count, int32_t n, const SmgChannel *channel);

/* drift: how far the learning layer's input has moved from the reference, the mean over its channels of the squared
 * distance of the last samples' mean, in standard deviations; about 0.05 without drift, above 0.25 with. mean and
 * deviation are those of the scores of samples that were learned from; deviation is 1e30 while there are less than two
 * of them. */
typedef struct {
    float drift, mean, deviation;
} SmgUsual;
SmgStatus smg_usual(SmgContext *x, SmgUsual *usual);

/* The next `samples` samples, and they alone, make the reference; 0: as many as the program was made with, beside what
 * came before. */
SmgStatus smg_calibrate(SmgContext *x, int32_t samples);

#ifdef __cplusplus
}
#endif
#endif
