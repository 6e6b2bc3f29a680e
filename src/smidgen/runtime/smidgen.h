/* smidgen: runs a program (.smg) made by the Python side. This is the whole public interface.
 *
 *     static SmgContext x;                                     complete type: the caller decides where it lives
 *     if (smg_measure(&x, file, bytes)) fail(smg_error(&x));   sizes only, nothing is trusted yet
 *     ... find smg_state_bytes(&x) and smg_arena_bytes(&x) of memory, aligned to smg_align(&x) ...
 *     if (smg_open(&x, file, bytes, state, state_bytes, arena, arena_bytes)) fail(smg_error(&x));
 *     SmgBuffer io[] = {{images, sizeof images}, {labels, sizeof labels}, {&loss, sizeof loss}};
 *     if (smg_run(&x, smg_entry(&x, "train"), io, 3, (SmgSamples){8, 8, 0})) fail(smg_error(&x));
 *
 * Nothing is allocated, nothing is global, no library but memcpy, memmove, memset and strcmp is used. All RAM is the
 * context, the two regions, and at most SMG_STACK_BYTES of stack in any call (beside what a channel or pager of the
 * caller's takes). A file is checked completely when it is opened: whatever its bytes are, a program that opens touches
 * only its own regions and the caller's buffers. A context may be used by one thread at a time. The file must stay
 * where it is, unchanged, while it is open. */
#ifndef SMIDGEN_H
#define SMIDGEN_H
#include <stddef.h>
#include <stdint.h>
/* Firmware can make the context smaller: a file of this name beside the sources sets the limits below to what its own
 * programs need. A program that needs more is refused when it is opened. */
#ifdef __has_include
#if __has_include("smidgen_config.h")
#include "smidgen_config.h"
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define SMG_VERSION     2    /* of the file format */
#define SMG_STACK_BYTES 4096 /* measured: smg_posix_stack_used, all kernels, gcc and clang, -O0 to -O3 */
#ifndef SMG_MAX_ENTRIES
#define SMG_MAX_ENTRIES 16
#endif
#ifndef SMG_MAX_KERNELS
#define SMG_MAX_KERNELS 192 /* different ones, in one program */
#endif
#ifndef SMG_MAX_WORDS
#define SMG_MAX_WORDS 96 /* parameters of one instruction, if some of them grow with the batch */
#endif
#ifndef SMG_MESSAGE_BYTES
#define SMG_MESSAGE_BYTES 176
#endif
#ifndef SMG_PAGES
#define SMG_PAGES 1 /* 0: without the code for programs that page, which are refused then */
#endif
#ifndef SMG_ROWS
#define SMG_ROWS 1 /* 0: without the code for programs that stream, which are refused then */
#endif
#ifndef SMG_RULES
#define SMG_RULES 1 /* 0: one text for all rules of the file format, two kilobytes less */
#endif
#define SMG_MAX_STARTED 4   /* pages on their way into RAM at the same time */
#define SMG_PAGE_ALIGN  512 /* every page tensor starts at a multiple of so many bytes */

typedef enum {
    SMG_OK = 0,
    SMG_BAD_PROGRAM = 1, /* the file is damaged, of another version, or asks for what this build lacks */
    SMG_BAD_CALL = 2,    /* the caller's arguments or buffers do not fit */
    SMG_STOPPED = 3 /* a kernel refused the data, or a channel or pager failed; STATE may hold a part of the step */
} SmgStatus;

/* Why, as a number: for programs that act on it. Numbers keep their meaning; new ones come at the end. */
typedef enum {
    SMG_NO_FAULT = 0,
    /* the file: SMG_BAD_PROGRAM */
    SMG_FAULT_PROGRAM = 1, /* damaged, or not a program at all */
    SMG_FAULT_VERSION = 2, /* of another format version */
    SMG_FAULT_KERNEL = 3,  /* a kernel that this build does not have */
    SMG_FAULT_ROOM = 4,    /* more than a limit of this build (SMG_MAX_...) */
    SMG_FAULT_LATER = 5,   /* a part of the format that this runtime does not do yet */
    /* the call: SMG_BAD_CALL */
    SMG_FAULT_CALL = 6,
    /* the data: SMG_STOPPED */
    SMG_FAULT_LABEL = 7,
    SMG_FAULT_SPARE_LABEL = 8,
    SMG_FAULT_IGNORED_LABELS = 9,
    SMG_FAULT_TOO_FEW = 10,
    SMG_FAULT_EMBEDDING_INDEX = 11,
    SMG_FAULT_AXIS_INDEX = 12,
    SMG_FAULT_POOL_WINDOW = 13,
    SMG_FAULT_POOL_INDEX = 14,
    /* what the caller brings: SMG_STOPPED */
    SMG_FAULT_CHANNEL_READ = 15,
    SMG_FAULT_CHANNEL_WRITE = 16,
    SMG_FAULT_PAGER = 17,
    SMG_FAULT_PAGE_DAMAGED = 18, /* a page does not read as it was written */
    SMG_FAULT_SLOTS = 19,
    SMG_FAULT_NOT_FINITE = 20, /* NaN or infinity in an input of a training step: nothing was learned */
    SMG_FAULT_COUNT
} SmgFault;

/* Where: the instruction of an entry point, or entry -1. */
typedef struct {
    int entry;
    uint32_t instruction;
} SmgPlace;

typedef enum {
    SMG_F32 = 0,
    SMG_I32 = 1,
    SMG_U8 = 2,
    SMG_I8 = 3,
    SMG_I16 = 4,
    SMG_F16 = 5,
    SMG_BF16 = 6,
    SMG_TYPE_COUNT
} SmgType;

/* Facts of a type, by its number. smidgen/ir.py has the same rows. */
typedef struct {
    char name[5];
    uint8_t bytes;
} SmgTypeInfo;
extern const SmgTypeInfo smg_types[SMG_TYPE_COUNT];

/* Memory of the caller for one input or output; aligned to 4 bytes unless its type has fewer. Outputs must not overlap
 * anything else. */
typedef struct {
    void *data;
    size_t bytes;
} SmgBuffer;

/* What the program expects of one buffer. dims[batch_axis] is per sample; batch_axis is -1 if no size depends on n.
 * Integers q stand for the numbers scale * q + offset; 1 and 0 if the program does not say, or has others for each
 * channel. The program makes the numbers of them. */
typedef struct {
    const char *name;
    SmgType type;
    int is_output, rank, batch_axis;
    int32_t dims[8];
    float scale, offset;
} SmgBufferInfo;

/* Memory outside RAM (a file, a card, a second flash bank) for programs that page: smg_page_bytes of it, which the
 * runtime reads and writes in pieces. Functions return NULL when all is done, or a text that says why not and stays
 * where it is until the next call; anything else than NULL stops the step.
 * start and wait are both there or both NULL. start begins to read, and may return before it is done; wait returns
 * when the piece that goes to `to` is there (to = NULL: all that were started, whatever became of them). At most
 * SMG_MAX_STARTED pieces are on their way at a time; until its wait nobody touches the memory that a piece goes to,
 * and no write meets it. */
typedef struct SmgPager {
    void *self; /* handed to all of them */
    const char *(*read)(void *self, size_t offset, void *to, size_t bytes);
    const char *(*write)(void *self, size_t offset, const void *from, size_t bytes);
    const char *(*start)(void *self, size_t offset, void *to, size_t bytes);
    const char *(*wait)(void *self, void *to);
} SmgPager;

/* Everything the runtime knows between calls. Fields are for the runtime only. */
typedef struct {
    const uint8_t *file;
    uint8_t *state, *arena;
    int32_t is_open;
    uint16_t kernels[SMG_MAX_KERNELS]; /* the program's kernel numbers → this build's */
    int32_t checked[SMG_MAX_ENTRIES];  /* the n that each entry was last proved safe for */
    int32_t words[SMG_MAX_WORDS];      /* parameters of the current instruction, multiplied by n */
#if SMG_PAGES
    uint32_t paging; /* a bit for each entry that pages */
    const SmgPager *pager;
#endif
    const void *runs; /* functions of a fast kernel set, in the order of all kernels; NULL: exact */
    const void *work; /* their memory and threads */
    uint16_t fault;
    int16_t fault_entry; /* -1: in no instruction */
    uint32_t fault_instruction;
    char message[SMG_MESSAGE_BYTES];
} SmgContext;

/* Reads the sizes in a file's header, so that memory can be found for it. Trusts nothing else. */
SmgStatus smg_measure(SmgContext *x, const void *file, size_t bytes);

/* Checks the file, and on success resets STATE and ARENA. The file is used in place, so it must be aligned to
 * smg_align. More memory than needed is fine. */
SmgStatus smg_open(SmgContext *x, const void *file, size_t bytes, void *state, size_t state_bytes, void *arena,
                   size_t arena_bytes);

/* Sets STATE, and what of it is in pages, to the file's initial values, and ARENA (with the accumulators in it) to
 * zero. Can only fail if a pager does. */
SmgStatus smg_reset_state(SmgContext *x);

/* Where an open program pages to, if it does (smg_page_bytes is not 0): call it once after smg_open. It writes the
 * initial values of state that lives in pages. The pager stays the caller's, and must stay where it is. */
SmgStatus smg_set_pager(SmgContext *x, const SmgPager *pager);

/* Number of the entry point of that name, or -1. */
int smg_entry(const SmgContext *x, const char *name);

/* How many samples: n at hand, 1 <= n <= smg_batch, after `first` others of a batch that has `total` over all its
 * micro-batches. A batch that is not split is {n, n, 0}. */
typedef struct {
    int32_t n, total, first;
} SmgSamples;

/* Runs one entry point. buffers: all inputs, then all outputs, in the order of smg_buffer_info. */
SmgStatus smg_run(SmgContext *x, int entry, const SmgBuffer *buffers, int count, SmgSamples samples);

/* Inputs and outputs that have no memory of the caller: a sensor, a file, a radio. Where a buffer's data is NULL, the
 * instruction that copies it from or to the arena calls these for a piece of it, at the moment the program needs it;
 * pieces come in no particular order, and those of an input may be asked for more than once. `buffer` is its number
 * among those of the entry point, `offset` counts bytes from its start; the piece lies within what smg_buffer_bytes
 * says. 0 means done; anything else stops the step. */
typedef struct {
    void *self; /* handed to both */
    int (*read)(void *self, int buffer, size_t offset, void *to, size_t bytes);
    int (*write)(void *self, int buffer, size_t offset, const void *from, size_t bytes);
} SmgChannel;

/* Like smg_run. A program that does more with such a buffer than copy it is refused before anything runs; so is a NULL
 * without a function for its direction. channel may be NULL. */
SmgStatus smg_run_channel(SmgContext *x, int entry, const SmgBuffer *buffers, int count, SmgSamples samples,
                          const SmgChannel *channel);

/* What went wrong last: entry, instruction, kernel and reason. Empty after success. */
const char *smg_error(const SmgContext *x);
/* The same as a number; *place, unless it is NULL, says where. */
SmgFault smg_fault(const SmgContext *x, SmgPlace *place);
const char *smg_fault_text(SmgFault fault);

/* Facts of the open (or measured) program. */
int32_t smg_batch(const SmgContext *x);  /* the largest n */
uint32_t smg_align(const SmgContext *x); /* bytes, a power of two */
uint32_t smg_const_bytes(const SmgContext *x);
uint32_t smg_state_bytes(const SmgContext *x);
uint32_t smg_arena_bytes(const SmgContext *x);
uint32_t smg_page_bytes(const SmgContext *x); /* outside RAM; 0: the program does not page */
uint32_t
smg_page_state_bytes(const SmgContext *x); /* the first of them: state between steps, all others are of one step */
/* Only of an open program. */
int smg_entry_count(const SmgContext *x);
const char *smg_entry_name(const SmgContext *x, int entry); /* NULL if there is no such entry */
int smg_buffer_count(const SmgContext *x, int entry);
SmgStatus smg_buffer_info(const SmgContext *x, int entry, int buffer, SmgBufferInfo *info);
uint64_t smg_buffer_bytes(const SmgContext *x, int entry, int buffer, int32_t n); /* 0 if there is no such buffer */

/* For budgets: RAM = state + arena + these two. */
size_t smg_context_bytes(void);
size_t smg_stack_bytes(void);

#ifdef __cplusplus
}
#endif
#endif
