/* The fuzz target: opens any bytes as a program and runs whatever opens: `train` and `infer` first, then the other
 * entry points; first on plausible data, then on arbitrary bits with another number of samples.
 *
 *   make fuzz                            20 minutes of libFuzzer with mutate.c; new inputs, findings: build/fuzz
 *   python -m tests.fuzz.build replay    the same target without libFuzzer (replay.c): clang or gcc
 *   python -m tests.fuzz.seeds           writes corpus/seed-*.smg anew: real networks and every op's cases
 *
 * corpus/ holds small programs that are replayed by `make test`: seed-* from seeds.py, grown-* that fuzzing found to
 * reach new code, and one file for each finding, named after it.
 *
 * A finding is a report of the address or undefined-behaviour sanitizer, or one of these:
 *   - a step with arbitrary data that leaves other bits behind when every operand is memory of its own (apart.c).
 *   - more work than the operands justify. Work is counted in basic blocks, by the coverage hook below, so that it does
 *     not depend on the machine. No kernel may do more than a constant times the product of its two largest operands
 *     (a convolution or a product of matrices does that much), and opening a file is linear in its length.
 *   - a byte of the file that has changed, an unknown status, a message without an end.
 * Programs that are honest but large are cut off after STEPS blocks; programs that ask for more than LARGEST bytes are
 * only opened. All memory is allocated to the byte. While a program runs, the part of the file in front of its
 * constants is poisoned, for nothing may read it then. */
#define _GNU_SOURCE
#include "fuzz_program.h"
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISONS 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define POISONS 1
#endif
#ifdef POISONS
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(start, bytes)   ((void)(start), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(start, bytes) ((void)(start), (void)(bytes))
#endif
#ifdef __clang__
#define NOT_COUNTED __attribute__((no_sanitize("coverage")))
#else
#define NOT_COUNTED __attribute__((no_sanitize_coverage))
#endif

enum { LARGEST = 1 << 24, LARGEST_KEPT = 1 << 18, MAX_BUFFERS = 64, STEPS = 2000000 };
#define LARGEST_INPUT ((uint64_t)1 << 40)

char fuzz_verdict[256];
uint8_t fuzz_kernels_run[FUZZ_MAX_KERNELS];

/* ---- work, in basic blocks ---- */

static uint64_t steps, limit;
static uint64_t all_steps; /* of the steps of the last input that came to an end */
static int counting;
static jmp_buf out_of_steps;

/* Called at every basic block of the runtime; the linker puts it in the place of the sanitizers' own (build.py). */
void __wrap___sanitizer_cov_trace_pc(void);
NOT_COUNTED void __wrap___sanitizer_cov_trace_pc(void) {
    if (!counting || ++steps <= limit) { return; }
    counting = 0;
    longjmp(out_of_steps, 1);
}

static void finding(const char *what, const char *more) {
    fprintf(stderr, "finding: %s (%s)\n", what, more);
    abort();
}

void fuzz_finding(const char *what) { finding(what, "with operands apart"); }

/* The most work that one instruction may do: two largest operands a and b. */
static uint64_t justified(const SmgContext *x, const uint32_t *code, int32_t n, int32_t scale, const FuzzRows *rows) {
    const SmgKernel *kernel = smg_kernels[x->kernels[smg_code_kernel(code)]];
    const uint32_t *block = smg_section(x, S_PARAMS) + code[1];
    const int operands = (int)smg_code_operands(code);
    uint64_t need[SMG_MAX_OPERANDS] = {0}, a = 0, b = 0;
    SmgContext own = *x; /* scaled parameters are put into the context */
    const int32_t *p = smg_scaled(&own, block, scale);
    if (p && rows) { p = fuzz_row_params(&own, block, p, rows); }
    if (!p || kernel->extent(p, (int)(block[0] & 0xffffu), operands, (SmgRun){n, n, 0}, need)) { return 0; }
    for (int i = 0; i < operands; i++) {
        if (need[i] > a) {
            b = a, a = need[i];
        } else if (need[i] > b) {
            b = need[i];
        }
    }
    return smg_add(8192 + 64 * (a + b), smg_mul(64 * (a / 4), b / 4));
}

/* The same for an instruction of a stream: iterations, in which nothing may be left to do, cost a little each. */
static uint64_t justified_in_stream(const SmgContext *x, const uint32_t *code, const uint32_t *table, uint32_t place,
                                    int32_t n) {
    const SmgStream s = smg_stream_of(table);
    uint64_t total = 512 * (uint64_t)s.iterations;
    for (int32_t i = 0; i < s.iterations; i++) {
        const FuzzRows rows = fuzz_rows(table, code, place, i);
        if (rows.made) { total = smg_add(total, justified(x, code, n, rows.scale, &rows)); }
        if (rows.is_last) { break; }
    }
    return total;
}

/* The same for an entry point; *kernels[] are marked if `mark` is set. */
static uint64_t justified_by_entry(const SmgContext *x, int entry, int32_t n, int mark) {
    const uint32_t *record = smg_entry_record(x, entry);
    const uint32_t *at = smg_section(x, S_CODE) + record[E_CODE], *end = at + record[E_WORDS];
    uint64_t total = 100000;
    const uint32_t *table = NULL; /* of the stream around */
    uint32_t in_loop = 0, in_stream = 0, place = 0;
    int is_samples = 0;
    int32_t count = 1;
    while (at < end) {
        if (smg_code_kernel(at) == SMG_LOOP) {
            count = smg_loop_count(at, n, &is_samples);
            in_loop = at[1];
            at += smg_code_words(at);
            continue;
        }
        if (smg_code_kernel(at) == SMG_STREAM) {
            table = smg_section(x, S_PARAMS) + at[2];
            in_stream = at[1];
            place = 0;
            in_loop--;
            at += smg_code_words(at);
            continue;
        }
        const uint64_t once = in_stream ? justified_in_stream(x, at, table, place++, n)
                                        : justified(x, at, n, in_loop && is_samples ? 1 : n, NULL);
        in_stream -= in_stream ? 1 : 0;
        total = smg_add(total, smg_mul(once, in_loop ? (uint64_t)count : 1));
        if (mark) { fuzz_kernels_run[x->kernels[smg_code_kernel(at)]] = 1; }
        in_loop -= in_loop ? 1 : 0;
        at += smg_code_words(at);
    }
    return total;
}

/* ---- data for the caller's buffers ---- */

static uint32_t seed;
static uint32_t next(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed ^ seed >> 15;
}

static const uint32_t unusual[] = {
    0,           0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffffffffu, 1,
    0x00800000u, 0x7f7fffffu, 0xff7fffffu, 0x3f800000u, 0xbf800000u, 0x7fffffffu, 0x4b000000u,
    0xcf000000u, 0x4f000000u, 2,           0x33800000u, 0x7f800001u, 0x42b17218u,
};

static void fill(uint8_t *data, size_t bytes, SmgType type, int round) {
    if (smg_types[type].bytes < 4) {
        for (size_t i = 0; i < bytes; i++) { data[i] = (uint8_t)(round ? next() >> 8 : next() >> 8 & 1); }
        return;
    }
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t word = next();
        const float plausible = (float)(int32_t)word / 1073741824.0f;
        if (round == 0 && type == SMG_F32) { memcpy(&word, &plausible, 4); }
        if (round == 0 && type == SMG_I32) { word = word >> 8 & 1; }
        if (round && type == SMG_I32 && word >> 16 & 1) {
            word = word >> 8 & 7; /* labels, or nearly so */
        } else if (round && word >> 16 & 2) {
            word = unusual[(word >> 8) % (sizeof unusual / 4)];
        }
        memcpy(data + i, &word, 4);
    }
}

/* ---- running ---- */

static SmgBuffer buffers[MAX_BUFFERS];
static void *allocated[MAX_BUFFERS]; /* static: a run may be left in the middle */
static size_t mapped[MAX_BUFFERS];   /* bytes, of those that are not malloc's */

static void free_buffers(void) {
    for (int i = 0; i < MAX_BUFFERS; i++) {
        if (mapped[i]) {
            munmap(allocated[i], mapped[i]);
        } else {
            free(allocated[i]);
        }
        allocated[i] = NULL, mapped[i] = 0;
    }
}

/* A large input is zeros that take no memory: sizes near the end of what integers hold can be tried with it. */
static void *zeros(int i, uint64_t bytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *data = bytes > LARGEST_INPUT ? MAP_FAILED : mmap(NULL, bytes, PROT_READ, flags, -1, 0);
    if (data == MAP_FAILED) { return NULL; }
    mapped[i] = bytes;
    return data;
}

/* 0 if the buffers are too large. */
static int make_buffers(const SmgContext *x, int entry, int32_t n, int round) {
    const int count = smg_buffer_count(x, entry);
    if (count > MAX_BUFFERS) { return 0; }
    for (int i = 0; i < count; i++) {
        SmgBufferInfo info;
        if (smg_buffer_info(x, entry, i, &info)) { finding("no information on a buffer", smg_entry_name(x, entry)); }
        const uint64_t bytes = smg_buffer_bytes(x, entry, i, n);
        if (info.scale != info.scale || info.offset != info.offset) { finding("a scale that is no number", info.name); }
        const size_t odd = smg_types[info.type].bytes < 4 && round; /* bytes of the caller may lie at any address */
        const int small = bytes <= FUZZ_LARGEST_BUFFER;
        if (!small && info.is_output) { return 0; }
        allocated[i] = small ? malloc(bytes + odd ? bytes + odd : 1) : zeros(i, bytes);
        if (!allocated[i]) { return 0; }
        buffers[i].data = (uint8_t *)allocated[i] + (small ? odd : 0), buffers[i].bytes = bytes;
        if (small) { fill((uint8_t *)buffers[i].data, bytes, info.type, round); }
    }
    return 1;
}

static void check_answer(const SmgContext *x, SmgStatus status) {
    const SmgFault fault = smg_fault(x, NULL);
    if (status < SMG_OK || status > SMG_STOPPED) { finding("an unknown status", ""); }
    if ((unsigned)fault >= SMG_FAULT_COUNT || !fault != !status) { finding("a fault that does not fit", smg_error(x)); }
    const size_t length = strnlen(smg_error(x), SMG_MESSAGE_BYTES);
    if (length == SMG_MESSAGE_BYTES) { finding("a message without an end", ""); }
    if (!length != (status == SMG_OK)) { finding("a message without a failure, or none with one", smg_error(x)); }
}

/* ---- pages: memory to the byte, and what is started arrives as late as it may ---- */

static uint8_t *pages;
static size_t page_bytes;
static struct {
    size_t offset, bytes;
    void *to;
} started[SMG_MAX_STARTED];

static void check_page(size_t offset, size_t bytes) {
    if (offset > page_bytes || bytes > page_bytes - offset) { finding("a page outside its region", ""); }
}
static const char *read_page(void *self, size_t offset, void *to, size_t bytes) {
    check_page(offset, bytes);
    (void)self;
    memcpy(to, pages + offset, bytes);
    return NULL;
}
static const char *write_page(void *self, size_t offset, const void *from, size_t bytes) {
    check_page(offset, bytes);
    (void)self;
    memcpy(pages + offset, from, bytes);
    return NULL;
}
static const char *start_page(void *self, size_t offset, void *to, size_t bytes) {
    int i = 0;
    check_page(offset, bytes);
    while (i < SMG_MAX_STARTED && started[i].to) { i++; }
    if (i == SMG_MAX_STARTED) { finding("too many pages are on their way", ""); }
    started[i].offset = offset, started[i].bytes = bytes, started[i].to = to;
    (void)self;
    memset(to, 0xff, bytes);
    return NULL;
}
static const char *wait_page(void *self, void *to) {
    int found = !to;
    for (int i = 0; i < SMG_MAX_STARTED; i++) {
        if (!started[i].to || (to && started[i].to != to)) { continue; }
        memcpy(started[i].to, pages + started[i].offset, started[i].bytes);
        started[i].to = NULL, found = 1;
    }
    if (!found) { finding("a page is waited for that nobody started", ""); }
    (void)self;
    return NULL;
}
static const SmgPager late = {NULL, read_page, write_page, start_page, wait_page},
                      at_once = {NULL, read_page, write_page, NULL, NULL};

/* STATE, ARENA, pages and all outputs one after the other: `put` writes them back. */
static uint8_t before[LARGEST_KEPT], after[LARGEST_KEPT];
static size_t keep(SmgContext *x, int entry, uint8_t *kept, int put) {
    size_t at = 0;
    const int count = smg_buffer_count(x, entry);
    for (int i = -3; i < count; i++) {
        const int own = i < 0, is_input = !own && (uint32_t)i < smg_entry_record(x, entry)[E_INPUTS];
        uint8_t *data = i == -3 ? pages : i == -2 ? x->state : i == -1 ? x->arena : (uint8_t *)buffers[i].data;
        const size_t bytes = i == -3   ? page_bytes
                             : i == -2 ? smg_state_bytes(x)
                             : i == -1 ? smg_arena_bytes(x)
                                       : buffers[i].bytes;
        if (is_input || !bytes) { continue; }
        if (bytes > LARGEST_KEPT - at) { return 0; }
        if (put) {
            memcpy(data, kept + at, bytes);
        } else {
            memcpy(kept + at, data, bytes);
        }
        at += bytes;
    }
    return at;
}

/* The same step once more from where it began, each operand apart: the same complaint and the same bits. */
static void run_apart(SmgContext *x, int entry, SmgSamples samples, SmgFault stopped) {
    static uint8_t again[LARGEST_KEPT];
    const size_t bytes = keep(x, entry, after, 0);
    keep(x, entry, before, 1);
    steps = 0, limit = 4 * STEPS;
    if (setjmp(out_of_steps)) {
        if (x->pager) { x->pager = &late; }
        fuzz_apart_free();
        return;
    }
    counting = 1;
    if (x->pager) { x->pager = &at_once; }
    const SmgFault fault = fuzz_run_apart(x, entry, buffers, samples);
    if (x->pager) { x->pager = &late; }
    counting = 0;
    if (fault != stopped) { finding("a step ends in another way with its operands apart", smg_fault_text(fault)); }
    keep(x, entry, again, 0);
    if (memcmp(after, again, bytes)) {
        finding("a step leaves other bits with its operands apart", smg_entry_name(x, entry));
    }
}

/* One step of one entry point within `left` blocks; what is left of them. */
static uint64_t run(SmgContext *x, int entry, int round, uint64_t left) {
    const int32_t batch = smg_batch(x), few = batch < 9 ? batch : 9;
    const int32_t n = round ? 1 + (int32_t)(next() % (uint32_t)few) : batch < 64 ? batch : few;
    const int32_t first = round ? (int32_t)(next() % 3) : 0, rest = round ? (int32_t)(next() % 3) : 0;
    const SmgSamples samples = {n, first + n + rest, first};
    if (!make_buffers(x, entry, n, round)) { return left; /* too large to be tried */ }
    const uint64_t most = justified_by_entry(x, entry, n, 0);
    const size_t kept = round ? keep(x, entry, before, 0) : 0;
    steps = 0, limit = most < left ? most : left;
    if (setjmp(out_of_steps)) {
        if (most < left) { finding("more work than the operands justify", smg_entry_name(x, entry)); }
        wait_page(NULL, NULL);
        snprintf(fuzz_verdict, sizeof fuzz_verdict, "cut off: %s", smg_entry_name(x, entry));
        return 0;
    }
    counting = 1;
    const SmgStatus status = smg_run(x, entry, buffers, smg_buffer_count(x, entry), samples);
    counting = 0;
    check_answer(x, status);
    all_steps += steps;
    if (status == SMG_OK) {
        justified_by_entry(x, entry, n, 1);
    } else {
        snprintf(fuzz_verdict, sizeof fuzz_verdict, "stopped: %s", smg_error(x));
    }
    left -= steps;
    if (kept && status != SMG_BAD_PROGRAM) { run_apart(x, entry, samples, smg_fault(x, NULL)); }
    return left;
}

static void run_all(SmgContext *x) {
    uint64_t left = STEPS;
    all_steps = 0;
    const int first = smg_entry(x, "train"), second = smg_entry(x, "infer"), count = smg_entry_count(x);
    for (int round = 0; round < 2; round++) {
        for (int i = -2; i < count && left; i++) {
            const int entry = i == -2 ? first : i == -1 ? second : i;
            if (entry < 0 || (i >= 0 && (i == first || i == second))) { continue; }
            left = run(x, entry, round, left);
            free_buffers();
        }
    }
    if (!fuzz_verdict[0]) {
        snprintf(fuzz_verdict, sizeof fuzz_verdict, "ran: %llu blocks", (unsigned long long)all_steps);
    }
    if (smg_run(x, -1, buffers, 0, (SmgSamples){1, 1, 0}) != SMG_BAD_CALL ||
        smg_run(x, count, buffers, 0, (SmgSamples){1, 1, 0}) != SMG_BAD_CALL ||
        (count && smg_run(x, 0, buffers, smg_buffer_count(x, 0), (SmgSamples){0, 1, 0}) != SMG_BAD_CALL)) {
        finding("a wrong call is accepted", smg_error(x));
    }
}

static SmgStatus open_counted(SmgContext *x, const void *file, size_t bytes, void *state, size_t state_bytes,
                              void *arena, size_t arena_bytes) {
    steps = 0, limit = 100000 + 1024 * (uint64_t)bytes;
    if (setjmp(out_of_steps)) { finding("opening takes more work than the file is long", ""); }
    counting = 1;
    const SmgStatus status = smg_open(x, file, bytes, state, state_bytes, arena, arena_bytes);
    counting = 0;
    check_answer(x, status);
    return status;
}

static void say_kernels(void) {
    int run = 0;
    for (int i = 0; i < smg_kernel_count; i++) { run += fuzz_kernels_run[i]; }
    fprintf(stderr, "kernels that ran: %d of %d; not:", run, smg_kernel_count);
    for (int i = 0; i < smg_kernel_count; i++) {
        if (!fuzz_kernels_run[i]) { fprintf(stderr, " %s", smg_kernels[i]->name); }
    }
    fprintf(stderr, "\n");
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return atexit(say_kernels);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static SmgContext x;
    void *file = NULL, *state = NULL, *arena = NULL;
    if (posix_memalign(&file, 64, size)) { return 0; }
    if (size) { memcpy(file, data, size); }
    seed = 1;
    if (size >= SMG_HEADER_BYTES) { memcpy(&seed, data + F_CRC * 4, 4); }
    fuzz_verdict[0] = 0;
    SmgStatus status = smg_measure(&x, file, size);
    size_t state_bytes = status ? 0 : smg_state_bytes(&x), arena_bytes = status ? 0 : smg_arena_bytes(&x);
    page_bytes = status ? 0 : smg_page_bytes(&x);
    if (state_bytes + arena_bytes + page_bytes > LARGEST) {
        state_bytes = arena_bytes = page_bytes = 0; /* opening will say what it needs */
    }
    if (!(pages = (uint8_t *)calloc(1, page_bytes ? page_bytes : 1))) { return 0; }
    if (posix_memalign(&state, 64, state_bytes) || posix_memalign(&arena, 64, arena_bytes)) { return 0; }
    status = open_counted(&x, file, size, state, state_bytes, arena, arena_bytes);
    if (status) {
        snprintf(fuzz_verdict, sizeof fuzz_verdict, "refused: %s", smg_error(&x));
        if (smg_run(&x, 0, buffers, 0, (SmgSamples){1, 1, 0}) != SMG_BAD_CALL) {
            finding("a refused program runs", "");
        }
    } else {
        const int fits = page_bytes == smg_page_bytes(&x); /* else its pages are too large to be tried */
        if (smg_has_pages(&x) && fits) { check_answer(&x, smg_set_pager(&x, &late)); }
        uint8_t *unread = (uint8_t *)file + smg_words(&x)[F_TABLE + 2 * S_META];
        const size_t bytes = (size_t)((const uint8_t *)smg_section(&x, S_CONST) - unread);
        ASAN_POISON_MEMORY_REGION(unread, bytes);
        if (fits) {
            run_all(&x);
        } else {
            snprintf(fuzz_verdict, sizeof fuzz_verdict, "cut off: pages");
        }
        ASAN_UNPOISON_MEMORY_REGION(unread, bytes);
    }
    if (size && memcmp(file, data, size)) { finding("the file has changed", fuzz_verdict); }
    free(file);
    free(state);
    free(arena);
    free(pages);
    return 0;
}
