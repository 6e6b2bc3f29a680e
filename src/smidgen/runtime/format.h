/* The program file as words, for load.c and vm.c. Written by smidgen/program/program.py; little-endian.
 *
 *   0  magic "SMDG" · version · total bytes · CRC-32 of everything from byte 16
 *  16  batch · align · CONST, STATE and ARENA bytes · number of sections: 10, or 11 if the program pages
 *  40  sections in the order below, each: offset in the file, bytes; ascending, 4-byte aligned, CONST 64-byte aligned
 *
 * type         code | bytes << 8: the types of all buffers, ascending
 * entry        name, inputs, outputs, first buffer, first code word, code words, instructions
 * buffer       name, type | kind << 8 | rank << 16 | (batch axis or 255) << 24, dims[8]
 *              kind: bit 0 output, bit 1 integers q that stand for scale * q + offset: two f32 in dims[6] and dims[7]
 * kernel       name
 * code         kernel | operands << 16 | flags << 24, parameter block, operands,
 *              [for each loop around it, the innermost first, a stride in bytes for each operand],
 *              [in a stream for each operand: 1 + the number of its value in the stream's table, or 0],
 *              [guard u16 | unit << 16]
 *              flags: bits 0 and 1 the number of strides, bit 2 guard and unit, bit 3 values of a stream
 * loop         SMG_LOOP | words << 16, body, [count], [period, phase]: the next `body` instructions run `count` times,
 *              or once per sample if count is 0 or not there; in those iterations i of the loop around it for which
 *              i % period == phase, or in all if there is no period. Loops and instructions in a body count alike.
 *              Inside a loop over samples sizes are those of one sample, in others those of all
 * stream       SMG_STREAM | 1 << 16, body, table: the next `body` instructions, inside a loop over samples, run row by
 *              row as the table says (rows.h), which is a block of parameters
 * operand      region << 29 | offset in words, or number of the entry's buffer; R_LIST is an index list in STATE
 * parameters   a block: count | scaled << 16, [bitmap, one bit a word: it is multiplied by n], words
 * name         offset in strings, which end with a zero each
 * pages        the last section: PAGE bytes, how many of them (the first) are state, initial values of those without
 *              the zeros at the end. Every tensor there starts at a multiple of SMG_PAGE_ALIGN and has a word behind
 *              it for its checksum (kernels/page.c)
 *
 * What is reserved for later is refused with SMG_FAULT_LATER: loops in loops, periods, guards, units, index lists,
 * types that this runtime does not know. */
#ifndef SMG_FORMAT_H
#define SMG_FORMAT_H
#include "kernel.h"
#include "smidgen.h"

enum { F_MAGIC, F_VERSION, F_TOTAL, F_CRC, F_BATCH, F_ALIGN, F_CONST, F_STATE, F_ARENA, F_SECTIONS, F_TABLE };
enum {
    S_TYPES,
    S_ENTRIES,
    S_BUFFERS,
    S_KERNELS,
    S_CODE,
    S_PARAMS,
    S_STRINGS,
    S_META,
    S_STATE,
    S_CONST,
    SECTIONS,
    S_PAGES = SECTIONS
};
enum { PAGES_BYTES, PAGES_STATE, PAGES_VALUES };
enum { E_NAME, E_INPUTS, E_OUTPUTS, E_BUFFER, E_CODE, E_WORDS, E_INSTRUCTIONS, ENTRY_WORDS };
enum { B_NAME, B_KIND, B_DIMS, B_SCALE = B_DIMS + 6, B_OFFSET, BUFFER_WORDS };
enum { BUFFER_OUTPUT = 1, BUFFER_SCALED = 2 };
enum { R_CONST, R_STATE, R_ARENA, R_INPUT, R_OUTPUT, R_PAGE, R_LIST, R_NONE };
enum { FLAG_STRIDES = 1, FLAG_LEVELS = 3, FLAG_TAG = 4, FLAG_ROWS = 8, FLAGS_ALL = 15 };
#define SMG_MAGIC        0x47444d53u /* "SMDG" */
#define SMG_CRC_FROM     16u
#define SMG_HEADER_BYTES ((F_TABLE + 2 * SECTIONS) * 4u)
#define SMG_LOOP         0xffffu
#define SMG_STREAM       0xfffeu
#define SMG_NONE         ((uint32_t)R_NONE << 29)

/* This build's kernels, and for each a bit per input that may be the same memory as output 0: kernels that check
 * indices in their data must never be run in place. Made by build.py from the op records. */
extern const SmgKernel *const smg_kernels[];
extern const uint32_t smg_kernel_inplace[];
extern const int smg_kernel_count;
/* Fast kernels by instruction set, the best first, ended by a set without name. runs[k] is NULL where the set has
 * nothing better than the exact kernel k. */
typedef struct {
    const char *name;
    const SmgKernelFn *runs;
} SmgKernelSet;
extern const SmgKernelSet smg_kernel_sets[];

static inline const uint32_t *smg_words(const SmgContext *x) { return (const uint32_t *)(const void *)x->file; }
static inline uint32_t smg_section_bytes(const SmgContext *x, int section) {
    return smg_words(x)[F_TABLE + 2 * section + 1];
}
static inline const uint32_t *smg_section(const SmgContext *x, int section) {
    return smg_words(x) + smg_words(x)[F_TABLE + 2 * section] / 4;
}
static inline const uint32_t *smg_entry_record(const SmgContext *x, int entry) {
    return smg_section(x, S_ENTRIES) + entry * ENTRY_WORDS;
}
static inline int smg_has_pages(const SmgContext *x) { return smg_words(x)[F_SECTIONS] > SECTIONS; }
static inline const char *smg_name(const SmgContext *x, uint32_t offset) {
    return (const char *)smg_section(x, S_STRINGS) + offset;
}

static inline unsigned smg_code_kernel(const uint32_t *code) { return code[0] & 0xffffu; }
static inline unsigned smg_code_operands(const uint32_t *code) { return code[0] >> 16 & 0xffu; }
static inline unsigned smg_code_flags(const uint32_t *code) { return code[0] >> 24; }
/* Does it run those behind it instead of a kernel? */
static inline int smg_code_repeats(const uint32_t *code) { return smg_code_kernel(code) >= SMG_STREAM; }
/* In a stream: 1 + the number of the value that each operand is part of, or 0. NULL: all 0. */
static inline const uint32_t *smg_code_rows(const uint32_t *code) {
    const uint32_t flags = smg_code_flags(code), operands = smg_code_operands(code);
    return flags & FLAG_ROWS ? code + 2 + operands * (1 + (flags & FLAG_LEVELS)) : NULL;
}
/* Also of a loop or stream. */
static inline uint32_t smg_code_words(const uint32_t *code) {
    const uint32_t flags = smg_code_flags(code), operands = smg_code_operands(code);
    return 2 + operands * (1 + (flags & FLAG_LEVELS) + (flags >> 3 & 1)) + (flags >> 2 & 1);
}
/* How often a loop runs its body, with n samples at hand; *is_samples: once for each of them. */
static inline int32_t smg_loop_count(const uint32_t *code, int32_t n, int *is_samples) {
    const int32_t count = smg_code_operands(code) ? (int32_t)code[2] : 0;
    *is_samples = !count;
    return count ? count : n;
}

/* The text of a rule that no file of ours breaks. Where flash is dear, one text stands for all of them: the file can be
 * opened elsewhere to see which rule it was. */
#if SMG_RULES
#define RULE(text) text
#else
#define RULE(text) "breaks a rule of the file format"
#endif

/* Messages are put together piece by piece; what does not fit is cut. The status follows from the fault. */
SmgStatus smg_say(SmgContext *x, SmgFault fault, const char *text);
void smg_add_text(SmgContext *x, const char *text);
void smg_add_number(SmgContext *x, uint64_t number);
/* "train, instruction 17, relu_f32: why" */
SmgStatus smg_say_at(SmgContext *x, SmgFault fault, int entry, uint32_t instruction, const char *kernel,
                     const char *why);

typedef struct {
    char letter; /* as in kernel.h */
    uint8_t optional;
} SmgRole;
/* Roles of `operands` operands by a kernel's signature, or -1 if the number does not fit. Optional operands are left
 * out from the last one on; a '+' repeats the last letter. */
int smg_roles(const char *signature, unsigned operands, SmgRole *roles);

/* smg_open in parts, for who has no room for the file's initial state and his own at the same time: is the file safe?
 * Then memory for it, in which STATE has its initial values and ARENA is zero already. */
SmgStatus smg_prove(SmgContext *x, const void *file, size_t bytes);
SmgStatus smg_take(SmgContext *x, void *state, size_t state_bytes, void *arena, size_t arena_bytes);

#if SMG_PAGES
/* The initial values of state in pages, if there is a pager; ARENA must be zero. */
SmgStatus smg_reset_pages(SmgContext *x);
/* Waits for whatever is on its way, so that nothing arrives after the step. */
void smg_stop_pages(SmgContext *x);
#endif
/* Is a float among these bytes NaN or infinite? train.c */
int smg_not_finite(const uint8_t *at, size_t bytes);
uint64_t smg_buffer_size(const uint32_t *record, int32_t n);
/* copy_b4 (width 4) or copy_b1 (1) with parameters p, where one side is a buffer without memory, from `start` bytes on;
 * the other is at `memory`. The parameters must have passed the kernel's own check. 0, or what the channel returned. */
int smg_channel_copy(const SmgChannel *channel, int buffer, int is_output, size_t start, uint8_t *memory,
                     const int32_t *p, unsigned width);
/* Proves one entry safe for n samples: every check of every instruction. */
SmgStatus smg_check_entry(SmgContext *x, int entry, int32_t n);
/* The words of a block with n put in; NULL if a product does not fit 32 bits. Blocks without n are used in place. */
const int32_t *smg_scaled(SmgContext *x, const uint32_t *block, int32_t n);
#endif
