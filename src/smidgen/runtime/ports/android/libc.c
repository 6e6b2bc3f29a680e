/* Stands in for Android's C library while ours is linked: names only, so that the loader knows where to look for them. */
#include "string.h"
void *memcpy(void *to, const void *from, size_t bytes) { return (void)from, (void)bytes, to; }
void *memmove(void *to, const void *from, size_t bytes) { return (void)from, (void)bytes, to; }
void *memset(void *to, int value, size_t bytes) { return (void)value, (void)bytes, to; }
int memcmp(const void *a, const void *b, size_t bytes) { return (void)a, (void)b, (void)bytes, 0; }
int strcmp(const char *a, const char *b) { return (void)a, (void)b, 0; }
size_t strlen(const char *text) { return (void)text, 0; }
