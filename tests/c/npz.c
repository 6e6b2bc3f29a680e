/* Reads arrays from many .npz files that may be anything: npz < stream, where the stream holds files, each after its
 * size. Each is put at the very end of an allocation, so that a read past it is seen. One line a file: what was found,
 * or why not. */
#include "runner/npz.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    static const char *const names[] = {"x", "y"};
    uint8_t head[4];
    while (fread(head, 1, 4, stdin) == 4) {
        const size_t bytes = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
        uint8_t *file = (uint8_t *)malloc(bytes ? bytes : 1);
        if (!file || fread(file, 1, bytes, stdin) != bytes) { return 2; }
        for (int i = 0; i < 2; i++) {
            NpzArray a;
            const char *why = npz_find(file, bytes, names[i], &a);
            double sum = 0;
            if (why) {
                printf("%s: %s; ", names[i], why);
                continue;
            }
            printf("%s: %c%d (", names[i], a.kind, a.item);
            for (int k = 0; k < a.rank; k++) { printf("%llu,", (unsigned long long)a.dims[k]); }
            for (uint64_t k = 0; k < a.bytes / (uint64_t)a.item; k++) { sum += npz_number(&a, k); }
            printf(") sum %.10g; ", sum);
        }
        printf("\n");
        free(file);
    }
    return 0;
}
