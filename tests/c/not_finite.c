/* A training step in C is offered NaN and infinity, in memory, through a channel and in a micro-batch: not_finite
 * program.smg. Prints what each step says, and whether it changed STATE. */
#include "ports/posix.h"
#include "smidgen_train.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static float images[2][8 * 8];
static const int32_t labels[2] = {1, 0};

static int read_images(void *self, int buffer, size_t offset, void *to, size_t bytes) {
    (void)self;
    memcpy(to, (buffer ? (const char *)labels : (const char *)images) + offset, bytes);
    return 0;
}

static int write_loss(void *self, int buffer, size_t offset, const void *from, size_t bytes) {
    (void)buffer;
    memcpy((char *)self + offset, from, bytes);
    return 0;
}

int main(int argc, char **argv) {
    static const float offered[] = {1.0f, NAN, -INFINITY, 3.4e38f};
    static uint8_t before[1 << 16];
    char message[SMG_MESSAGE_BYTES];
    float loss;
    SmgStatus status;
    SmgPosix *p = argc > 1 ? smg_posix_open(argv[1], NULL, 0, 0, &status, message) : NULL;
    if (!p) { return 2; }
    SmgContext *x = smg_posix_context(p);
    const SmgChannel channel = {&loss, read_images, write_loss};
    const SmgBuffer batch[] = {{images, sizeof images}, {(void *)labels, sizeof labels}},
                    none[] = {{0}, {(void *)labels, sizeof labels}};
    for (int way = 0; way < 3; way++) {
        for (int i = 0; i < 4; i++) {
            images[1][7] = offered[i];
            memcpy(before, smg_posix_state(p), smg_state_bytes(x));
            if (way == 2) { smg_zero(x); }
            status = way == 0   ? smg_train_step(x, batch, 2, 2, &loss, NULL)
                     : way == 1 ? smg_train_step(x, none, 2, 2, NULL, &channel)
                                : smg_grad(x, batch, 2, (SmgSamples){2, 4, 0}, &loss, NULL);
            printf("%d %d %d %d %s\n", way, status, (int)smg_fault(x, NULL),
                   memcmp(before, smg_posix_state(p), smg_state_bytes(x)) != 0, smg_error(x));
            memcpy(smg_posix_state(p), before, smg_state_bytes(x));
        }
    }
    smg_posix_close(p);
    return 0;
}
