/* Programs on a POSIX system: the file mapped read-only, STATE and ARENA between pages that may not be touched. */
#ifndef SMG_POSIX_H
#define SMG_POSIX_H
#include "../smidgen.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct SmgPosix SmgPosix;
enum { SMG_GUARD_END = 0, SMG_GUARD_START = 1 }; /* which end of STATE and ARENA lies flush against its guard page */

/* Opens the file at `path`, or a copy of `bytes` at `file` if path is NULL. NULL on failure, with the status and the
 * reason. All memory is obtained here; nothing is allocated later. */
SmgPosix *smg_posix_open(const char *path, const void *file, size_t bytes, unsigned flags, SmgStatus *status,
                         char message[SMG_MESSAGE_BYTES]);
void smg_posix_close(SmgPosix *p);

/* Run with the fast kernels of the best instruction set that this machine has (or of the one called `set`, unless it is
 * empty), on so many threads. NULL, or why not. Call it once, before the first run; a forked child has no threads, and
 * does their work itself. */
const char *smg_posix_use_fast(SmgPosix *p, const char *set, int threads);
const char *smg_posix_set(const SmgPosix *p); /* the instruction set in use; "exact" without */
/* What `threads` threads of fast kernels need beside STATE and ARENA, their stacks included. */
size_t smg_posix_work_bytes(int threads, size_t program_bytes);
size_t smg_posix_wide_from(void); /* bytes of STATE and ARENA beside which it is more */
struct SmgWork;
const struct SmgWork *smg_posix_work(const SmgPosix *p);
SmgPosix *smg_posix_empty(void); /* without a program: for smg_posix_use_fast alone */

SmgContext *smg_posix_context(SmgPosix *p);
uint8_t *smg_posix_state(SmgPosix *p);
uint8_t *smg_posix_arena(SmgPosix *p);
/* RAM that was asked for: STATE and ARENA, the work memory of fast kernels, and the stack of a prefetching thread. */
size_t smg_posix_mapped_bytes(const SmgPosix *p);
/* Gives whole pages of ARENA beyond its first `keep` bytes back to the system; touched again, they are zero. Between
 * runs only. */
void smg_posix_trim(SmgPosix *p, size_t keep);

/* Where a program that pages pages to: call it once, before the first run. See posix_pager.h. */
SmgStatus smg_posix_page_to(SmgPosix *p, const char *path, char message[SMG_MESSAGE_BYTES]);
/* Bytes that the program has read from its pages and written to them since then. */
void smg_posix_paged(const SmgPosix *p, uint64_t *read_bytes, uint64_t *written_bytes);
const SmgPager *smg_posix_pager(const SmgPosix *p); /* NULL: no page file is open */
/* State that lives in pages (the first smg_page_state_bytes), between steps. NULL, or why not. */
const char *smg_posix_page_read(SmgPosix *p, size_t offset, void *to, size_t bytes);
const char *smg_posix_page_write(SmgPosix *p, size_t offset, const void *from, size_t bytes);

/* Like smg_run, on a painted stack; *used is the number of its bytes that were touched (0: cannot be measured here). */
SmgStatus smg_posix_stack_used(SmgPosix *p, int entry, const SmgBuffer *buffers, int count, SmgSamples samples,
                               size_t *used);

#ifdef __cplusplus
}
#endif
#endif
