/* Noted when a runner is built: offsets in STATE, -1 if not known, and the samples of a step. */
#ifndef SMG_RUNNER_PLACES_H
#define SMG_RUNNER_PLACES_H

#ifdef __cplusplus
extern "C" {
#endif
extern const int net_lr;      /* f32 */
extern const int net_counter; /* i32: seed, steps done */
extern const int net_samples;

#ifdef __cplusplus
}
#endif
#endif
