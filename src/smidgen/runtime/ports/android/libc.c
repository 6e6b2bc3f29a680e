/* Stands in for Android's C library while ours is linked: names only, so that the loader knows where to look for
 * them. */
#include "string.h"
void *memcpy(void *to, const void *from, size_t bytes) {
    (void)from;
    (void)bytes;
    return to;
}
void *memmove(void *to, const void *from, size_t bytes) {
    (void)from;
    (void)bytes;
    return to;
}
void *memset(void *to, int value, size_t bytes) {
    (void)value;
    (void)bytes;
    return to;
}
int memcmp(const void *a, const void *b, size_t bytes) {
    (void)a;
    (void)b;
    (void)bytes;
    return 0;
}
int strcmp(const char *a, const char *b) {
    (void)a;
    (void)b;
    return 0;
}
size_t strlen(const char *text) {
    (void)text;
    return 0;
}
