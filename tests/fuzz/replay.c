/* The fuzz target without libFuzzer: runs the files it is given and says of each what became of it; then, with
 * `-mutate count`, as many programs made from them by the mutator. Ends with the kernels that ran. */
#include "fuzz_program.h"
#include <stdio.h>
#include <stdlib.h>

enum { LONGEST = 1 << 16 };
static uint8_t data[LONGEST], other[LONGEST], made[LONGEST];

static size_t read_file(const char *path, uint8_t *into) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    const size_t size = fread(into, 1, LONGEST, file);
    fclose(file);
    return size;
}

int main(int argc, char **argv) {
    const int mutate = argc > 2 && strcmp(argv[1], "-mutate") == 0, count = argc - (mutate ? 3 : 1);
    char **paths = argv + (mutate ? 3 : 1);
    for (int i = 0; i < count; i++) {
        LLVMFuzzerTestOneInput(data, read_file(paths[i], data));
        printf("%s: %s\n", paths[i], fuzz_verdict);
    }
    for (int i = 0, all = mutate && count ? atoi(argv[2]) : 0; i < all; i++) {
        const unsigned seed = (unsigned)i * 2654435761u + 1;
        size_t size = read_file(paths[seed / 7 % (unsigned)count], data);
        if (i % 4 == 0) { /* with a part of another one */
            const size_t more = read_file(paths[seed / 13 % (unsigned)count], other);
            const size_t both = LLVMFuzzerCustomCrossOver(data, size, other, more, made, LONGEST, seed);
            if (both) { memcpy(data, made, size = both); }
        }
        size = LLVMFuzzerCustomMutator(data, size, LONGEST, seed);
        LLVMFuzzerTestOneInput(data, size);
        printf("mutation %d: %s\n", i, fuzz_verdict);
    }
    for (int i = 0; i < smg_kernel_count; i++) {
        printf("kernel %s: %s\n", smg_kernels[i]->name, fuzz_kernels_run[i] ? "ran" : "never");
    }
    return 0;
}
