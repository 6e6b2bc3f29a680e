/* Noted when a runner is built: offsets in STATE, -1 if not known, the samples of a step, and the replay buffer. */
#ifndef SMG_RUNNER_PLACES_H
#define SMG_RUNNER_PLACES_H
#include "../replay.h"

#ifdef __cplusplus
extern "C" {
#endif
extern const int net_lr;      /* f32 */
extern const int net_counter; /* i32: seed, steps done */
extern const int net_samples;
extern const SmgReplay net_replay; /* of no samples: there is none */

#ifdef __cplusplus
}
#endif
#endif
