/* A device without an operating system as a member of a fleet: it answers a gateway, which speaks for it, over a line.
 * The gateway sends state and samples, asks for steps, and fetches what was learned.
 *
 *     static SmgContext x;
 *     static SmgFleet fleet;
 *     static const SmgFleetParts parts = {.context = &x, .program = net_program, .program_bytes = sizeof net_program,
 *                                         .state = state, …, .write = to_the_line};
 *     if (smg_fleet_open(&fleet, &parts)) fail(smg_error(&x));
 *     for (;;) { smg_fleet_byte(&fleet, next_byte_of_the_line()); }
 *
 * One request at a time, each with the next number of a session; the same number again brings the same answer, and
 * nothing is done twice. So whoever asks can ask again whenever an answer does not come: after a lost or changed byte,
 * a reset, a power cut. After a reset there is no session, and every request but SMG_FLEET_HELLO is refused, which
 * tells the gateway to look at where the device stands. All memory is the caller's and of fixed size; lengths, offsets
 * and numbers of rows are checked before they are used, and a program that came over the line as any other is. */
#ifndef SMIDGEN_FLEET_H
#define SMIDGEN_FLEET_H
#include "frames.h"
#include "slots.h"
#include "smidgen.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SMG_FLEET_VERSION 1 /* of the messages */

/* What may be asked; SMG_FLEET_ANSWER is added in answers. Offsets, bytes and checksums (CRC-32) are u32. A request
 * without an answer in brackets is answered by the error number alone. */
typedef enum {
    SMG_FLEET_HELLO = 1,      /* begins a session [SMG_FLEET_HELLO_WORDS u32, see fleet.c] */
    SMG_FLEET_STATE_IN = 2,   /* offset, bytes of STATE: nothing runs before … */
    SMG_FLEET_STATE_SET = 3,  /* checksum of STATE: … all of it is there */
    SMG_FLEET_STATE_OUT = 4,  /* offset, how many [bytes of STATE] */
    SMG_FLEET_SAMPLES_IN = 5, /* offset, bytes of the rows: a row is one sample, each input and the target */
    SMG_FLEET_STEP = 6,       /* n u16, total u16, first u16, n numbers of rows u16: SmgSamples [loss f32] */
    SMG_FLEET_INFER = 7,      /* offset, how many, n u16, rows [bytes of all outputs, those asked for] */
    SMG_FLEET_HASH = 8,       /* [checksum of STATE] */
    SMG_FLEET_SAVE = 9,       /* to a slot [checksum of STATE] */
    SMG_FLEET_RECIPE = 10,    /* bytes: another program will come; its place is erased */
    SMG_FLEET_RECIPE_IN = 11, /* offset, bytes of it, in order */
    SMG_FLEET_RECIPE_USE = 12 /* checksum of the file: check it, and run it from now on [as SMG_FLEET_HELLO] */
} SmgFleetRequest;
#define SMG_FLEET_ANSWER      0x80
#define SMG_FLEET_HELLO_WORDS 12

/* Error number of an answer: u16, then the SmgFault u16, then what was asked for, or a text. */
typedef enum {
    SMG_FLEET_OK = 0,
    SMG_FLEET_NO_REQUEST = 1,  /* no message has this type */
    SMG_FLEET_NO_SESSION = 2,  /* the device has started anew: SMG_FLEET_HELLO first */
    SMG_FLEET_NOT_NEXT = 3,    /* neither the next request nor the last one again */
    SMG_FLEET_LENGTH = 4,      /* a message of another length */
    SMG_FLEET_RANGE = 5,       /* reaches beyond what there is */
    SMG_FLEET_NOT_WHOLE = 6,   /* not all of STATE has come */
    SMG_FLEET_CHECKSUM = 7,    /* what was put together is not what was sent */
    SMG_FLEET_PART = 8,        /* not the next part of this batch */
    SMG_FLEET_STOPPED = 9,     /* the runtime says no: see the fault and the text */
    SMG_FLEET_NO_SLOTS = 10,   /* this device cannot save */
    SMG_FLEET_NO_RECIPES = 11, /* this device has no room for other programs */
    SMG_FLEET_NO_ROOM = 12,    /* that much does not fit: a recipe, its STATE or ARENA, or a row */
    SMG_FLEET_BAD_RECIPE = 13, /* not a program that this device can run: see the fault and the text */
    SMG_FLEET_STORAGE = 14,    /* slots or the recipe's place cannot be written */
    SMG_FLEET_SHAPE = 15       /* an input that is the same for all samples cannot be sent in rows */
} SmgFleetError;

/* Where another program is kept: memory that is read where it lies (RAM, or flash with its own way to write), aligned
 * to 64 bytes. Offsets of writes are multiples of 32; a byte is written at most once after an erase. Functions return
 * 0 on success. A program that is there at the start is used, if it is whole and fits. */
typedef struct {
    void *self; /* handed to both */
    int (*erase)(void *self);
    int (*write)(void *self, uint32_t offset, const void *from, uint32_t bytes);
    const uint8_t *memory;
    uint32_t bytes;
} SmgFleetRecipes;

/* Everything is the caller's and stays where it is. `rows` holds samples; `frames` one request and one answer:
 * SMG_FLEET_FRAMES_BYTES(512) for payloads of 512 bytes, 256 at least. slots and recipes may be NULL. */
typedef struct {
    SmgContext *context;
    const void *program;
    void *state, *arena, *rows, *frames;
    const SmgSlots *slots;
    const SmgFleetRecipes *recipes;
    void *self; /* handed to write */
    void (*write)(void *self, const uint8_t *bytes, uint32_t count);
    uint32_t program_bytes, state_bytes, arena_bytes, rows_bytes, frames_bytes;
} SmgFleetParts;

#define SMG_FLEET_LEAST_PAYLOAD      256
#define SMG_FLEET_FRAMES_BYTES(most) (2 * ((most) + SMG_FRAME_EXTRA_BYTES))

/* Fields are for smg_fleet_... only. */
typedef struct {
    const SmgFleetParts *parts;
    SmgFrameReader reader;
    uint8_t *answer;
    uint32_t most;                         /* bytes of a payload */
    uint32_t session, sequence;            /* of the last request that was done; session 0: there is none */
    uint32_t answered;                     /* bytes of its answer, which is kept */
    uint32_t recipe_bytes, recipe_have;    /* of one that is coming */
    uint16_t total, done;                  /* of a batch in parts */
    uint8_t is_whole, is_restored, is_own; /* STATE is complete; came from a slot; the program is the caller's own */
} SmgFleet;

/* Opens the program and restores STATE from the slots, if there is one. */
SmgStatus smg_fleet_open(SmgFleet *f, const SmgFleetParts *parts);

/* Takes a byte from the line, and answers if it completes a request. How many were answered. */
int smg_fleet_byte(SmgFleet *f, uint8_t byte);

/* Bytes of a row of the open program: one sample with its target. 0: it cannot learn from rows. */
uint32_t smg_fleet_row_bytes(const SmgContext *x);

#ifdef __cplusplus
}
#endif
#endif
