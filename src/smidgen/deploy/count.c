/* A QEMU plugin that counts the instructions of firmware: those of every kernel, and of every run of the program.
 *
 *   -plugin count.so,out=FILE,run=ADDRESS,enter=ADDRESS:NUMBER,…,leave=ADDRESS,…[,calls=1]
 *
 * run: where a run of the program starts; enter: the first instruction of kernel NUMBER; leave: where kernels return.
 * FILE gets lines "kernel NUMBER calls instructions", "run instructions" and "all instructions"; with calls=1 also
 * "call NUMBER instructions" for each call, before the line of its run. All of those addresses start a translated
 * block, because they are jumped to, so counting whole blocks is exact.
 * The interface is declared here (version 1, QEMU 4.2 and later), because distributions do not ship its header. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
typedef void (*BlockCallback)(unsigned int cpu, void *data);
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                           void (*cb)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, BlockCallback cb, enum qemu_plugin_cb_flags flags,
                                          void *data);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, enum qemu_plugin_op op, void *to,
                                              uint64_t add);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*cb)(qemu_plugin_id_t id, void *data), void *data);
EXPORT int qemu_plugin_version = 1;

enum { MOST_KERNELS = 256, MOST_MARKS = 1024, NOTHING = -1 };
typedef enum { RUN, ENTER, LEAVE } Kind;
typedef struct {
    uint64_t address;
    Kind kind;
    int kernel;
} Mark;

static Mark marks[MOST_MARKS];
static int mark_count;
static uint64_t counted;          /* instructions so far */
static uint64_t since;            /* `counted` when the present kernel was entered */
static uint64_t run_from, run_to; /* `counted` at the start of this run, and when its last kernel returned */
static int present = NOTHING, running, each_call;
static uint64_t calls[MOST_KERNELS], instructions[MOST_KERNELS];
static FILE *out;

static void end_run(void) {
    if (running && out) { fprintf(out, "run %llu\n", (unsigned long long)(run_to - run_from)); }
    running = 0;
}

/* Called before the block's own instructions are added to `counted`. */
static void at_mark(unsigned int cpu, void *data) {
    const Mark *m = (const Mark *)data;
    (void)cpu;
    if (m->kind == RUN) {
        end_run();
        run_from = run_to = counted;
        running = 1;
    } else if (m->kind == ENTER) {
        present = m->kernel;
        calls[present]++;
        since = counted;
    } else if (present != NOTHING) {
        instructions[present] += counted - since;
        if (each_call && running && out) {
            fprintf(out, "call %d %llu\n", present, (unsigned long long)(counted - since));
        }
        run_to = counted;
        present = NOTHING;
    }
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    const uint64_t address = qemu_plugin_tb_vaddr(tb);
    (void)id;
    for (int i = 0; i < mark_count; i++) {
        if (marks[i].address == address) {
            qemu_plugin_register_vcpu_tb_exec_cb(tb, at_mark, QEMU_PLUGIN_CB_NO_REGS, &marks[i]);
        }
    }
    qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &counted, qemu_plugin_tb_n_insns(tb));
}

static void at_exit(qemu_plugin_id_t id, void *data) {
    (void)id;
    (void)data;
    end_run();
    if (!out) { return; }
    for (int k = 0; k < MOST_KERNELS; k++) {
        if (calls[k]) {
            fprintf(out, "kernel %d %llu %llu\n", k, (unsigned long long)calls[k], (unsigned long long)instructions[k]);
        }
    }
    fprintf(out, "all %llu\n", (unsigned long long)counted);
    fclose(out);
}

/* Options are told apart by their first letter. */
static Kind kind_of(char letter) {
    if (letter == 'r') { return RUN; }
    return letter == 'e' ? ENTER : LEAVE;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
    (void)info;
    for (int i = 0; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        if (!value) { return 1; }
        value++;
        if (strncmp(argv[i], "out=", 4) == 0) {
            out = fopen(value, "w");
            continue;
        }
        if (strncmp(argv[i], "calls=", 6) == 0) {
            each_call = atoi(value);
            continue;
        }
        if (mark_count == MOST_MARKS) { return 1; }
        Mark *m = &marks[mark_count++];
        char *end;
        m->address = strtoull(value, &end, 0);
        m->kind = kind_of(argv[i][0]);
        m->kernel = m->kind == ENTER && *end == ':' ? atoi(end + 1) : 0;
        if (m->kernel < 0 || m->kernel >= MOST_KERNELS) { return 1; }
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, at_exit, NULL);
    return out ? 0 : 1;
}
