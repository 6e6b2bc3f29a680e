/* Offsets in STATE, noted when a runner is built; -1: not known. */
#ifndef SMG_RUNNER_PLACES_H
#define SMG_RUNNER_PLACES_H
extern const int net_lr;      /* f32 */
extern const int net_counter; /* i32: seed, steps done */
#endif
