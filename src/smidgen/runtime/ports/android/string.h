/* All that the runtime takes of a C library, for a target that comes without headers. */
#ifndef SMG_STRING_H
#define SMG_STRING_H
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);
int strcmp(const char *a, const char *b);
size_t strlen(const char *text);
#endif
