/* Adds classes to a program from C: classes program.smg state.out name…  Prints the label of each, then what a
 * training step says to every label; STATE goes to the file. */
#include "classes.h"
#include "ports/posix.h"
#include "smidgen_train.h"
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    static const SmgClasses classes = NET_CLASSES; /* from -D */
    char message[SMG_MESSAGE_BYTES];
    SmgStatus status;
    SmgPosix *p = argc > 2 ? smg_posix_open(argv[1], NULL, 0, 0, &status, message) : NULL;
    if (!p) { return 2; }
    SmgContext *x = smg_posix_context(p);
    for (int i = 3; i < argc; i++) {
        const int label = smg_add_class(x, &classes, argv[i]);
        const char *name = smg_class_name(x, &classes, label);
        printf("%d %s %s\n", label, name ? name : "-", smg_error(x));
    }
    const SmgClasses elsewhere = {smg_state_bytes(x), 0, 24, 1, 1}, none = {0, 0, 0, 0, 0};
    printf("%d %d %d\n", smg_class_count(x, &classes), smg_class_count(x, &elsewhere), smg_class_count(x, &none));
    /* labels from outside to beyond the classes in use: what a step says to each, and whether it changed STATE */
    static float images[8 * 8];
    static uint8_t before[1 << 18];
    for (int32_t label = -1; label <= classes.known + classes.spare; label++) {
        const SmgBuffer batch[] = {{images, sizeof images}, {&label, sizeof label}};
        float loss;
        memcpy(before, smg_posix_state(p), smg_state_bytes(x));
        status = smg_train_step(x, batch, 2, 1, &loss, NULL);
        printf("%d: %d %d %s\n", label, status, memcmp(before, smg_posix_state(p), smg_state_bytes(x)) != 0,
               smg_error(x));
        memcpy(smg_posix_state(p), before, smg_state_bytes(x));
    }
    FILE *out = fopen(argv[2], "wb");
    if (!out || fwrite(smg_posix_state(p), 1, smg_state_bytes(x), out) != smg_state_bytes(x) || fclose(out)) {
        return 3;
    }
    smg_posix_close(p);
    return 0;
}
