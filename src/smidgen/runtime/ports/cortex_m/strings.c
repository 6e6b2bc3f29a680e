/* The three functions that the runtime wants of a C library, in a fifth of the library's size. Most of what is copied
 * are words at multiples of four bytes, so that way is the fast one. */
#include <stddef.h>
#include <stdint.h>

typedef uint32_t __attribute__((may_alias)) Word;

/* Without it the compiler turns a loop into a call of the function that it is in. */
#define PLAIN __attribute__((optimize("no-tree-loop-distribute-patterns")))

int strcmp(const char *a, const char *b);
void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memset(void *to, int value, size_t bytes);

int strcmp(const char *a, const char *b) {
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return (unsigned char)*a - (unsigned char)*b;
}

PLAIN void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    uint8_t *t = (uint8_t *)to;
    const uint8_t *f = (const uint8_t *)from;
    if ((((uintptr_t)t | (uintptr_t)f) & 3) == 0) {
        Word *tw = (Word *)(void *)t;
        const Word *fw = (const Word *)(const void *)f;
        for (; bytes >= 16; bytes -= 16, tw += 4, fw += 4) {
            const Word a = fw[0], b = fw[1], c = fw[2], d = fw[3];
            tw[0] = a;
            tw[1] = b;
            tw[2] = c;
            tw[3] = d;
        }
        for (; bytes >= 4; bytes -= 4) { *tw++ = *fw++; }
        t = (uint8_t *)tw;
        f = (const uint8_t *)fw;
    }
    while (bytes--) { *t++ = *f++; }
    return to;
}

PLAIN void *memset(void *to, int value, size_t bytes) {
    uint8_t *t = (uint8_t *)to;
    if (((uintptr_t)t & 3) == 0) {
        Word *tw = (Word *)(void *)t;
        const Word four = (uint8_t)value * 0x01010101u;
        for (; bytes >= 16; bytes -= 16, tw += 4) {
            tw[0] = four;
            tw[1] = four;
            tw[2] = four;
            tw[3] = four;
        }
        for (; bytes >= 4; bytes -= 4) { *tw++ = four; }
        t = (uint8_t *)tw;
    }
    while (bytes--) { *t++ = (uint8_t)value; }
    return to;
}
