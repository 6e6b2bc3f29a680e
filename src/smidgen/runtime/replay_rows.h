/* How samples of a replay buffer (replay.h) are stored: behind the counters in STATE, or in PAGE, each with a checksum
 * behind it, where only the numbers of their classes stay in RAM. */
#ifndef SMG_REPLAY_ROWS_H
#define SMG_REPLAY_ROWS_H
#include "replay.h"

enum { SMG_REPLAY_HELD, SMG_REPLAY_OFFERED, SMG_REPLAY_DRAWN, SMG_REPLAY_ZERO, SMG_REPLAY_WORDS };
#define SMG_REPLAY_NOWHERE  0xffffffffu
#define SMG_REPLAY_INFINITE 0x7f800000u

/* A build without pages has no code for samples that are there. */
static inline int smg_is_outside(const SmgReplay *r) { return SMG_PAGES && r->outside; }
static inline uint32_t smg_class_count(const SmgReplay *r) { return r->classes ? r->classes : 1; }

/* Bytes of one sample in the buffer, without a checksum. */
uint64_t smg_stored_bytes(const SmgReplay *r);
/* Bytes of STATE before the samples, or all of them. */
uint64_t smg_index_bytes(const SmgReplay *r);

/* The class by a target, and of the sample at a place: NOWHERE for what is no class. */
uint32_t smg_class_by(const SmgReplay *r, const void *target);
uint32_t smg_class_at(const SmgReplay *r, const void *memory, uint32_t place);

/* The bits of the largest magnitude among floats: they are ordered as whole numbers are. */
uint32_t smg_largest(const uint8_t *from, uint32_t elements);

/* Puts a sample at a place: its parts as the program has them. NULL, or why not; the place may then hold a part. */
const char *smg_put_sample(const SmgReplay *r, void *memory, const SmgPager *pager, uint32_t place,
                           const void *const *parts);

/* NULL, or what is wrong with the numbers at a place, or with their checksum. */
const char *smg_check_sample(const SmgReplay *r, const void *memory, const SmgPager *pager, uint32_t place);
#endif
