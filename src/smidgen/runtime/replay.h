/* Replay: a small buffer of samples seen before, so that learning something new does not erase what was learned. It is
 * a part of STATE, so whatever saves STATE (slots.h, checkpoints) saves it, and a resumed job draws the same samples.
 * The samples may be in PAGE (a file, a card, a second bank of flash) instead, which is saved with STATE: a pager is
 * then set (smg_set_pager), and RAM holds counters and classes only.
 *
 *     static const SmgReplay replay = NET_REPLAY;               what the buffer holds and where; made with the program
 *     static uint8_t rows[NET_REPLAY_ROWS_BYTES];
 *     SmgBuffer batch[] = {{images, sizeof images}, {labels, sizeof labels}};
 *     if (smg_replay_step(&x, &replay, batch, 2, 4, rows, sizeof rows, &loss, NULL)) fail(smg_error(&x));
 *     if (smg_replay_keep(&x, &replay, rows, 4)) fail(smg_error(&x));
 *
 * A sample has parts: the inputs or features that the entry `train` takes, and its target, the last of them. Parts of
 * floats are kept as they are or as int8 with one scale for each part and sample; others byte by byte. If the target is
 * the number of a class, classes have equal shares: a full buffer takes a sample of a class that has fewer than the
 * largest in the place of one of the largest, chosen at random; within its share each class is a uniform sample of all
 * that were offered (Vitter's algorithm R). Random numbers are counted, never drawn from a state of their own, and all
 * arithmetic is exact: the same calls leave the same bytes on every target.
 *
 * Nothing is allocated, nothing is global. Memory that holds anything else than such a buffer cannot make these
 * functions touch a byte outside it; smg_replay_check says whether it makes sense. */
#ifndef SMIDGEN_REPLAY_H
#define SMIDGEN_REPLAY_H
#include "smidgen.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SMG_REPLAY_PARTS 9 /* of a sample at most, with its target */

typedef enum {
    SMG_REPLAY_F32 = 0,  /* floats as they are */
    SMG_REPLAY_INT8 = 1, /* floats as scale * q, q from -127 to 127; below 1.5e-36 they count as zero */
    SMG_REPLAY_RAW = 2   /* bytes as they are */
} SmgReplayKind;

typedef struct {
    uint32_t elements; /* of one sample: floats, or bytes of SMG_REPLAY_RAW */
    uint32_t kind;     /* SmgReplayKind */
} SmgReplayPart;

/* What a buffer holds. */
typedef struct {
    uint32_t at;      /* offset in STATE */
    uint32_t samples; /* that it has room for */
    uint32_t classes; /* of the target, an int32_t; 0: it is no class, and all samples are alike */
    uint32_t fresh;   /* new samples of a step as planned, and */
    uint32_t step;    /* samples of it in all */
    uint32_t seed;
    int32_t ignore;   /* micro-batches leave out samples with this label, if the loss is a mean; INT32_MIN: none */
    uint32_t outside; /* 1: samples are in PAGE, from the offset `page` on */
    uint32_t page;
    uint32_t parts;
    SmgReplayPart part[SMG_REPLAY_PARTS]; /* the target last */
} SmgReplay;

/* Bytes of the buffer: 16, 8 for each class (at least one), and for each sample its parts, each filled up to four bytes
 * and an int8 one with four more for its scale. Where samples are in PAGE: 1 for each instead, 2 if there are more than
 * 256 classes, 4 if more than 65,536, all of it filled up to four. 0 if `r` describes none. */
uint32_t smg_replay_bytes(const SmgReplay *r);

/* Bytes of PAGE, of its first smg_page_state_bytes: the samples, each with a checksum of four bytes. 0: in STATE. */
uint32_t smg_replay_page_bytes(const SmgReplay *r);

/* Bytes of one sample of a part, as the program has it. */
uint32_t smg_replay_row_bytes(const SmgReplay *r, uint32_t part);

/* Bytes that n new samples take, as the program has them: what smg_replay_step wants as `rows`. */
uint32_t smg_replay_rows_bytes(const SmgReplay *r, uint32_t n);

/* For all that follows, memory is the buffer, aligned to four bytes: smg_replay_memory, or bytes of the caller's own.
 * An empty buffer is all zeros. pager: of the program, or NULL if samples are in STATE. Functions that use it return
 * NULL, or a text that says why not. */
void smg_replay_clear(const SmgReplay *r, void *memory);

/* What is wrong with a buffer that was read from somewhere: counts, labels, scales, numbers, checksums. */
const char *smg_replay_check(const SmgReplay *r, const void *memory, const SmgPager *pager);

/* How many samples it holds, in all and of one class; and how many of that class were offered. */
uint32_t smg_replay_held(const SmgReplay *r, const void *memory);
uint32_t smg_replay_held_of(const SmgReplay *r, const void *memory, uint32_t number);
uint32_t smg_replay_seen_of(const SmgReplay *r, const void *memory, uint32_t number);

typedef enum {
    SMG_REPLAY_KEPT = 0,
    SMG_REPLAY_PASSED = 1, /* the class has its share, and this one was not drawn */
    SMG_REPLAY_LABEL = 2,  /* refused: its label is no class */
    SMG_REPLAY_NOT_FINITE = 3,
    SMG_REPLAY_DAMAGED = 4, /* the buffer makes no sense */
    SMG_REPLAY_NOT_WRITTEN =
        5 /* the pager failed: a sample that was there may be damaged now, which reading it finds */
} SmgReplayAdded;

/* Offers one sample: its parts as the program has them. */
SmgReplayAdded smg_replay_add(const SmgReplay *r, void *memory, const SmgPager *pager, const void *const *parts);

/* k samples at random into rows of each part, none twice unless k is more than the buffer holds. */
const char *smg_replay_draw(const SmgReplay *r, void *memory, const SmgPager *pager, uint32_t k, void *const *rows);

/* The same in pieces: the place of the i-th of k samples; bytes of a part of what is there, whole floats if it has
 * floats; and the end of the draw, after which other samples come. */
uint32_t smg_replay_place(const SmgReplay *r, const void *memory, uint32_t k, uint32_t i);
const char *smg_replay_read(const SmgReplay *r, const void *memory, const SmgPager *pager, uint32_t place,
                            uint32_t part, uint32_t offset, void *to, uint32_t bytes);
void smg_replay_next(const SmgReplay *r, void *memory);

/* Are the k samples of the next draw what was written to PAGE? */
const char *smg_replay_look(const SmgReplay *r, const void *memory, const SmgPager *pager, uint32_t k);

/* How many of the buffer's samples go with n new ones: their planned share, and no more than there are. `split`: a step
 * may have more samples than planned, as in micro-batches. */
uint32_t smg_replay_share(const SmgReplay *r, const void *memory, uint32_t n, int split);

/* Where the buffer of an open program is; NULL, and smg_error says why, if the program does not have it there or it is
 * damaged. Looks at every byte of it: once after smg_open and after smg_restore is enough. */
void *smg_replay_memory(SmgContext *x, const SmgReplay *r);

/* One step on n new samples and their share of old ones. inputs: those of the model, the target last, of n samples;
 * where their data is NULL they come through the channel. The entry `features`, if there is one, computes what the
 * buffer holds; old samples do not run that part of the network again. rows: smg_replay_rows_bytes of memory, aligned
 * to four bytes, for the new ones. Micro-batches are used where the step has more samples than a call takes, and the
 * program can. A step that fails leaves the buffer as it was; a damaged sample in PAGE stops it before it begins. */
SmgStatus smg_replay_step(SmgContext *x, const SmgReplay *r, const SmgBuffer *inputs, int count, int32_t n, void *rows,
                          size_t rows_bytes, float *loss, const SmgChannel *channel);

/* Offers the n samples of the last step to the buffer, unless they were before: rows as that step left them. */
SmgStatus smg_replay_keep(SmgContext *x, const SmgReplay *r, const void *rows, int32_t n);

#ifdef __cplusplus
}
#endif
#endif
