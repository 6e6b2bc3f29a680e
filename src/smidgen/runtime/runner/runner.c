/* A program and all it needs in one static binary: trains and predicts on Linux without Python. See `runner --help`. */
#define _GNU_SOURCE
#include "../format.h"
#include "../smidgen_train.h"
#include "data.h"
#include "../ports/posix_pager.h"
#include "places.h"
#include "store.h"
#include "stream.h"
#include "tail.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>

static const char USAGE[] =
    "runner train --data TRAIN.npz [--epochs N] [--batch N] [--lr RATE] [--seed N | --no-shuffle]\n"
    "             [--state FILE] [--save-every STEPS] [--losses FILE] [--page-to FILE] [--json]\n"
    "runner learn --data STREAM.npz [--state FILE] [-o OUT.npy] [--lr RATE] [--losses FILE] [--page-to FILE] [--json]\n"
    "runner infer --data TEST.npz [--state FILE] [-o OUT.npy] [--page-to FILE] [--json]\n"
    "runner info\n"
    "runner program -o NET.smg\n"
    "\n"
    "--data       arrays x (or x0, x1, ...) and y; or --raw x.bin --raw y.bin, numbers as the program has them\n"
    "learn        of a program made with tinyol: predicts each sample, then learns from it, as job.learn does;\n"
    "             without y where the model reconstructs x; -o has the predictions\n"
    "--state      what was learned: read if the file is there, written at the end; a power cut does not spoil it\n"
    "--losses     the loss of each step, as little-endian f32\n"
    "--page-to    the page file of a program that pages; after an error, --state holds the last state that was saved\n"
    "The order of samples and every bit are those of job.fit on the host with kernels=\"exact\".\n";

typedef struct {
    const char *command, *data, *state, *losses, *out, *page_to;
    char *raw[DATA_MOST_INPUTS];
    int raws, json, shuffle, has_seed, has_lr;
    long epochs, batch, save_every;
    unsigned long long seed;
    float lr;
} Options;

static const uint8_t *program;
static size_t program_bytes;
static SmgContext context;
static SmgPosixPager pager;
static Data samples;

static int fail(int status, const char *what, const char *why) {
    fprintf(stderr, "error: %s%s%s\n", what, why && *why ? ": " : "", why ? why : "");
    return status;
}

static int usage(void) {
    fputs(USAGE, stderr);
    return 2;
}

/* ---- arguments ---- */

static int whole_number(const char *text, long least, long *value) {
    char *end;
    errno = 0;
    *value = strtol(text, &end, 10);
    return errno || *end || end == text || *value < least ? -1 : 0;
}

/* 0, or -1 for what is not understood. */
static int parse(int argc, char **argv, Options *o) {
    *o = (Options){.shuffle = 1, .epochs = 1};
    if (argc < 2) { return -1; }
    o->command = argv[1];
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--json") == 0) {
            o->json = 1;
            continue;
        }
        if (strcmp(name, "--no-shuffle") == 0) {
            o->shuffle = 0;
            continue;
        }
        if (i + 1 == argc) { return -1; }
        char *value = argv[++i], *end;
        if (strcmp(name, "--data") == 0) {
            o->data = value;
        } else if (strcmp(name, "--state") == 0) {
            o->state = value;
        } else if (strcmp(name, "--losses") == 0) {
            o->losses = value;
        } else if (strcmp(name, "--page-to") == 0) {
            o->page_to = value;
        } else if (strcmp(name, "-o") == 0) {
            o->out = value;
        } else if (strcmp(name, "--raw") == 0 && o->raws < DATA_MOST_INPUTS) {
            o->raw[o->raws++] = value;
        } else if (strcmp(name, "--epochs") == 0) {
            if (whole_number(value, 1, &o->epochs)) { return -1; }
        } else if (strcmp(name, "--batch") == 0) {
            if (whole_number(value, 1, &o->batch)) { return -1; }
        } else if (strcmp(name, "--save-every") == 0) {
            if (whole_number(value, 1, &o->save_every)) { return -1; }
        } else if (strcmp(name, "--seed") == 0) {
            long seed;
            if (whole_number(value, 0, &seed)) { return -1; }
            o->seed = (unsigned long long)seed;
            o->has_seed = 1;
        } else if (strcmp(name, "--lr") == 0) {
            o->lr = strtof(value, &end);
            o->has_lr = 1;
            if (end == value || *end || !(o->lr >= 0) || !isfinite(o->lr)) { return -1; }
        } else {
            return -1;
        }
    }
    return 0;
}

/* ---- the program ---- */

/* STATE takes the place of the program's initial one, so that a limit on all of the process (RLIMIT_AS) need not leave
 * room for both. NULL, or why not. */
static const char *open_program(void) {
    const char *why;
    program = tail_map(&program_bytes, &why);
    if (!program) { return why; }
    if (smg_prove(&context, program, program_bytes)) { return smg_error(&context); }
    const uint32_t state_bytes = smg_state_bytes(&context), arena_bytes = smg_arena_bytes(&context);
    const uint8_t *initial = (const uint8_t *)smg_section(&context, S_STATE);
    void *state = tail_take(initial, smg_section_bytes(&context, S_STATE), state_bytes),
         *arena = data_memory(arena_bytes);
    if (!state || !arena) { return "not enough memory for STATE and ARENA"; }
    return smg_take(&context, state, state_bytes, arena, arena_bytes) ? smg_error(&context) : NULL;
}

/* Opens the page file of a program that pages. NULL, or why not. */
static const char *open_pages(const Options *o) {
    if (!smg_page_bytes(&context)) { return NULL; }
    if (!o->page_to) { return "--page-to FILE is missing"; }
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error like any other */
    const char *why = smg_posix_pager_open(&pager, o->page_to, &context);
    if (why) { return why; }
    context.pager = &pager.pager; /* smg_set_pager would want the initial STATE again, which is not mapped any more */
    return smg_reset_pages(&context) ? smg_error(&context) : NULL;
}

static unsigned long long ram_bytes(void) {
    return (unsigned long long)smg_state_bytes(&context) + smg_arena_bytes(&context) + smg_context_bytes() +
           smg_stack_bytes() + smg_posix_pager_bytes(pager.has_thread);
}

/* STATE, and what of it is in pages. */
static unsigned long long state_hash(void) {
    uint8_t piece[SMG_PAGE_ALIGN];
    uint64_t hash = store_hash(STORE_HASH_START, context.state, smg_state_bytes(&context));
    for (size_t at = 0; at < smg_page_state_bytes(&context); at += sizeof piece) {
        if (!pager.pager.read(pager.pager.self, at, piece, sizeof piece)) {
            hash = store_hash(hash, piece, sizeof piece);
        }
    }
    return (unsigned long long)hash;
}

/* `"paged_in_bytes": …, ` of a program that pages. */
static const char *paged_json(void) {
    static char text[96];
    if (smg_page_bytes(&context)) {
        snprintf(text, sizeof text, ", \"paged_in_bytes\": %llu, \"paged_out_bytes\": %llu",
                 (unsigned long long)pager.read_bytes, (unsigned long long)pager.written_bytes);
    }
    return text;
}

static uint64_t program_seed(void) {
    int32_t seed = 0;
    if (net_counter >= 0) { memcpy(&seed, context.state + net_counter, 4); }
    return (uint64_t)seed;
}

/* ---- commands ---- */

/* Some samples through an entry: `total` are in the whole step, `before` of them were taken already. */
static const char *take(int entry, uint64_t first, SmgSamples n, float *loss) {
    SmgBuffer io[DATA_MOST_INPUTS + 1];
    if (data_take(&samples, first, n.n)) { return samples.message; }
    for (int i = 0; i < samples.count; i++) {
        io[i] = (SmgBuffer){samples.inputs[i].staged.data, (size_t)smg_buffer_bytes(&context, entry, i, n.n)};
    }
    io[samples.count] = (SmgBuffer){loss, sizeof *loss};
    if (smg_check_inputs(&context, entry, io, samples.count, n.n)) { return smg_error(&context); }
    return smg_run(&context, entry, io, samples.count + 1, n) ? smg_error(&context) : NULL;
}

/* An entry that takes no samples. */
static const char *pass(const char *name) {
    return smg_run(&context, smg_entry(&context, name), NULL, 0, (SmgSamples){1, 1, 0}) ? smg_error(&context) : NULL;
}

/* A step of n samples: at once, or in micro-batches whose gradients and losses add up. */
static const char *step(uint64_t first, int32_t n, float *loss) {
    const int32_t most = smg_batch(&context);
    if (n <= most) { return take(smg_entry(&context, "train"), first, (SmgSamples){n, n, 0}, loss); }
    const int grad = smg_entry(&context, "grad");
    const char *why = pass("zero");
    for (int32_t done = 0; !why && done < n; done += most) {
        const int32_t part = n - done < most ? n - done : most;
        why = take(grad, first + (uint64_t)done, (SmgSamples){part, n, done}, loss);
    }
    return why ? why : pass("apply");
}

/* The same with replay: n new samples and old ones beside them. They are kept if they are new. */
static const char *replayed(uint64_t first, int32_t n, int is_new, float *loss) {
    static void *rows;
    SmgBuffer io[DATA_MOST_INPUTS];
    const size_t bytes = smg_replay_rows_bytes(&net_replay, (uint32_t)n);
    if (!rows) { rows = data_memory(bytes); } /* the first step has the most samples */
    if (!rows) { return strerror(errno); }
    if (data_take(&samples, first, n)) { return samples.message; }
    for (int i = 0; i < samples.count; i++) { io[i] = samples.inputs[i].staged; }
    if (smg_replay_step(&context, &net_replay, io, samples.count, n, rows, bytes, loss, NULL)) {
        return smg_error(&context);
    }
    return is_new && smg_replay_keep(&context, &net_replay, rows, n) ? smg_error(&context) : NULL;
}

/* The state that was saved, if there is one, and the learning rate that was asked for. 0, or a status. */
static int restored(const Options *o, Store *store) {
    int is_new = 1;
    const char *why;
    if (o->state && (why = store_open(store, &context, o->state, &is_new))) { return fail(1, o->state, why); }
    if (!is_new && smg_restore(&context, &store->slots)) { return fail(1, o->state, smg_error(&context)); }
    if (net_replay.samples && !smg_replay_memory(&context, &net_replay)) { return fail(1, smg_error(&context), NULL); }
    if (o->has_lr && net_lr < 0) { return fail(2, "this runner cannot change its learning rate", NULL); }
    if (o->has_lr) { memcpy(context.state + net_lr, &o->lr, 4); }
    return 0;
}

static int learn(const Options *o) {
    Store store;
    Stream stream = {.loss = 0};
    if (smg_entry(&context, "learn") < 0) { return fail(1, "the program does not learn from a stream", "use train"); }
    if (stream_open(&samples, &context, o->data, (char **)o->raw, o->raws)) { return fail(1, samples.message, NULL); }
    const int status = restored(o, &store);
    if (status) { return status; }
    stream.losses = o->losses ? fopen(o->losses, "wb") : NULL;
    if (o->losses && !stream.losses) { return fail(1, o->losses, strerror(errno)); }
    stream.out = o->out ? fopen(o->out, "wb") : NULL;
    if (o->out && !stream.out) { return fail(1, o->out, strerror(errno)); }
    const char *why = stream_learn(&context, &samples, &net_replay, &stream);
    if (why) { return fail(1, why, NULL); }
    if (stream.losses && fclose(stream.losses)) { return fail(1, o->losses, strerror(errno)); }
    if (stream.out && fclose(stream.out)) { return fail(1, o->out, strerror(errno)); }
    if (o->state && smg_save(&context, &store.slots)) { return fail(1, o->state, smg_error(&context)); }
    const unsigned long long count = (unsigned long long)samples.samples;
    if (o->json) {
        printf("{\"samples\": %llu, \"loss\": %.9g, \"drift\": %.9g, \"state_hash\": \"%016llx\", \"ram_bytes\": %llu, "
               "\"peak_kb\": %ld%s}\n",
               count, stream.loss, (double)stream.usual.drift, state_hash(), ram_bytes(), store_peak_kb(),
               paged_json());
    } else {
        printf("%llu samples, loss %.6f, drift %.4f, state %016llx\n", count, stream.loss, (double)stream.usual.drift,
               state_hash());
        if (o->state) { printf("wrote %s\n", o->state); }
    }
    return 0;
}

static int train(const Options *o) {
    const int entry = smg_entry(&context, "train");
    Store store;
    const char *why;
    if (entry < 0) { return fail(1, "the program cannot train", NULL); }
    const int replays = net_replay.samples > 0;
    const long planned = replays ? (long)net_replay.fresh : net_samples, batch = o->batch ? o->batch : planned;
    const long most = replays && batch > smg_batch(&context) ? batch : smg_batch(&context);
    if (data_open(&samples, &context, entry, o->data, (char **)o->raw, o->raws, 0, most)) {
        return fail(1, samples.message, NULL);
    }
    if (batch > smg_batch(&context) && smg_entry(&context, "grad") < 0) {
        return fail(2, "--batch is larger than the program's", NULL);
    }
    const int status = restored(o, &store);
    if (status) { return status; }
    FILE *losses = o->losses ? fopen(o->losses, "wb") : NULL;
    if (o->losses && !losses) { return fail(1, o->losses, strerror(errno)); }
    float loss = 0;
    double mean = 0;
    long steps = 0;
    const uint64_t seed = o->has_seed ? o->seed : program_seed();
    for (long epoch = 0; epoch < o->epochs; epoch++) {
        double sum = 0;
        if (o->shuffle) { data_shuffle(&samples, seed, (uint64_t)epoch); }
        for (uint64_t first = 0; first < samples.samples; first += (uint64_t)batch) {
            const uint64_t left = samples.samples - first;
            const int32_t n = (int32_t)(left < (uint64_t)batch ? left : (uint64_t)batch);
            why = replays ? replayed(first, n, epoch == 0, &loss) : step(first, n, &loss);
            if (why) { return fail(1, why, NULL); }
            sum += (double)loss * n;
            steps++;
            if (losses && fwrite(&loss, sizeof loss, 1, losses) != 1) { return fail(1, o->losses, strerror(errno)); }
            if (!isfinite(loss)) { return fail(1, "the loss is not finite", "lower --lr"); }
            if (o->state && o->save_every && steps % o->save_every == 0 && smg_save(&context, &store.slots)) {
                return fail(1, o->state, smg_error(&context));
            }
        }
        mean = sum / (double)samples.samples;
        if (!o->json) {
            printf("epoch %ld/%ld  loss %.6f\n", epoch + 1, o->epochs, mean);
            fflush(stdout);
        }
    }
    if (losses && fclose(losses)) { return fail(1, o->losses, strerror(errno)); }
    if (o->state && smg_save(&context, &store.slots)) { return fail(1, o->state, smg_error(&context)); }
    if (o->json) {
        printf("{\"steps\": %ld, \"samples\": %llu, \"loss\": %.9g, \"state_hash\": \"%016llx\", \"ram_bytes\": %llu, "
               "\"peak_kb\": %ld%s}\n",
               steps, (unsigned long long)samples.samples, mean, state_hash(), ram_bytes(), store_peak_kb(),
               paged_json());
    } else {
        printf("%ld steps, %llu bytes of RAM as planned, peak of the process %ld KB, state %016llx\n", steps,
               ram_bytes(), store_peak_kb(), state_hash());
        if (o->state) { printf("wrote %s\n", o->state); }
    }
    return 0;
}

static int32_t best_of(const float *scores, int32_t count) {
    int32_t best = 0;
    for (int32_t k = 1; k < count; k++) {
        if (scores[k] > scores[best]) { best = k; }
    }
    return best;
}

static int infer(const Options *o) {
    const int entry = smg_entry(&context, "infer"), trained = smg_entry(&context, "train");
    Store store;
    SmgBufferInfo out;
    SmgBuffer io[DATA_MOST_INPUTS + 1];
    int is_new = 0;
    const char *why;
    /* The target, if there is one, is the last input of `train`. */
    if (entry < 0 || trained < 0) { return fail(1, "the program cannot infer", NULL); }
    if (data_open(&samples, &context, trained, o->data, (char **)o->raw, o->raws, 1, smg_batch(&context))) {
        return fail(1, samples.message, NULL);
    }
    if (o->state && (why = store_open(&store, &context, o->state, &is_new))) { return fail(1, o->state, why); }
    if (o->state && smg_restore(&context, &store.slots)) { return fail(1, o->state, smg_error(&context)); }
    const int buffers = smg_buffer_count(&context, entry), inputs = buffers - 1;
    if (inputs < 1 || samples.count < inputs || smg_buffer_info(&context, entry, inputs, &out) || !out.is_output ||
        out.type != SMG_F32 || out.batch_axis != 0) {
        return fail(1, "only programs with one output of f32 numbers can infer here", NULL);
    }
    const int32_t batch = smg_batch(&context);
    const uint64_t row = smg_buffer_bytes(&context, entry, inputs, 1) / 4;
    float *scores = (float *)data_memory((size_t)smg_buffer_bytes(&context, entry, inputs, batch));
    FILE *file = o->out ? fopen(o->out, "wb") : NULL;
    if (!scores || (o->out && !file)) { return fail(1, o->out ? o->out : "memory", strerror(errno)); }
    uint64_t dims[NPZ_MAX_RANK], right = 0;
    for (int i = 0; i < out.rank; i++) { dims[i] = (uint64_t)out.dims[i] * (i ? 1 : samples.samples); }
    if (file && store_npy(file, dims, out.rank)) { return fail(1, o->out, strerror(errno)); }
    const DataInput *target = samples.count > inputs ? &samples.inputs[inputs] : NULL;
    const int counts = target && target->info.type == SMG_I32 && target->elements == 1 && out.rank == 2;
    for (uint64_t first = 0; first < samples.samples; first += (uint64_t)batch) {
        const uint64_t left = samples.samples - first;
        const int32_t n = (int32_t)(left < (uint64_t)batch ? left : (uint64_t)batch);
        if (data_take(&samples, first, n)) { return fail(1, samples.message, NULL); }
        for (int i = 0; i < inputs; i++) {
            io[i] = (SmgBuffer){samples.inputs[i].staged.data, (size_t)smg_buffer_bytes(&context, entry, i, n)};
        }
        io[inputs] = (SmgBuffer){scores, (size_t)smg_buffer_bytes(&context, entry, inputs, n)};
        if (smg_run(&context, entry, io, buffers, (SmgSamples){n, n, 0})) { return fail(1, smg_error(&context), NULL); }
        if (file && fwrite(scores, 4, (size_t)(row * (uint64_t)n), file) != row * (uint64_t)n) {
            return fail(1, o->out, strerror(errno));
        }
        for (int32_t k = 0; counts && k < n; k++) {
            right += best_of(scores + (uint64_t)k * row, (int32_t)row) == ((const int32_t *)target->staged.data)[k];
        }
    }
    if (file && fclose(file)) { return fail(1, o->out, strerror(errno)); }
    const double share = (double)right / (double)samples.samples;
    if (o->json && counts) {
        printf("{\"samples\": %llu, \"accuracy\": %.9g, \"peak_kb\": %ld}\n", (unsigned long long)samples.samples,
               share, store_peak_kb());
    } else if (o->json) {
        printf("{\"samples\": %llu, \"peak_kb\": %ld}\n", (unsigned long long)samples.samples, store_peak_kb());
    } else if (counts) {
        printf("%llu samples, %.2f%% right\n", (unsigned long long)samples.samples, 100 * share);
    } else {
        printf("%llu samples\n", (unsigned long long)samples.samples);
    }
    return 0;
}

static const char *type_name(SmgType type) {
    if (type == SMG_F32) { return "f32"; }
    return type == SMG_I32 ? "i32" : "u8";
}

static int info(void) {
    SmgBufferInfo b;
    printf("%llu bytes of RAM: state %u, arena %u, context %zu, stack %zu; program %zu bytes, batch %d\n", ram_bytes(),
           smg_state_bytes(&context), smg_arena_bytes(&context), smg_context_bytes(), smg_stack_bytes(), program_bytes,
           smg_batch(&context));
    for (int e = 0; e < smg_entry_count(&context); e++) {
        printf("%s:", smg_entry_name(&context, e));
        for (int i = 0; i < smg_buffer_count(&context, e); i++) {
            if (smg_buffer_info(&context, e, i, &b)) { continue; }
            printf(" %s%s %s[", b.is_output ? "-> " : "", b.name, type_name(b.type));
            for (int k = 0; k < b.rank; k++) { printf(k == b.batch_axis ? "%s%dn" : "%s%d", k ? "," : "", b.dims[k]); }
            printf("]");
            if (b.scale != 1.0f || b.offset != 0.0f) { printf(" * %g %+g", (double)b.scale, (double)b.offset); }
        }
        printf("\n");
    }
    return 0;
}

static int write_program(const Options *o) {
    const char *why;
    if (!o->out) { return fail(2, "-o NET.smg is missing", NULL); }
    program = tail_map(&program_bytes, &why);
    if (!program) { return fail(1, "the program inside cannot be read", why); }
    FILE *file = fopen(o->out, "wb");
    if (!file || fwrite(program, 1, program_bytes, file) != program_bytes || fclose(file)) {
        return fail(1, o->out, strerror(errno));
    }
    return 0;
}

int main(int argc, char **argv) {
    Options o;
    if (argc > 1 && strcmp(argv[1], "--help") == 0) { return fputs(USAGE, stdout) == EOF; }
    if (parse(argc, argv, &o)) { return usage(); }
    static int (*const runs[])(const Options *) = {train, learn, infer};
    static const char *const names[] = {"train", "learn", "infer"};
    int number = 0;
    while (number < 3 && strcmp(o.command, names[number]) != 0) { number++; }
    const int needs_data = number < 3;
    if (needs_data && !o.data == !o.raws) { return fail(2, "give --data FILE.npz, or --raw for each input", NULL); }
    if (strcmp(o.command, "program") == 0) { return write_program(&o); }
    const char *why = open_program();
    if (why) { return fail(1, "the program inside cannot be opened", why); }
    why = needs_data ? open_pages(&o) : NULL;
    if (why) { return fail(o.page_to ? 1 : 2, o.page_to ? o.page_to : "the program pages", why); }
    if (needs_data) { return runs[number](&o); }
    if (strcmp(o.command, "info") == 0) { return info(); }
    return usage();
}
