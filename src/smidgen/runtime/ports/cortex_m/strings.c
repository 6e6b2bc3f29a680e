/* strcmp in twenty instructions: the C library's is made for speed and takes seven hundred bytes. */
int strcmp(const char *a, const char *b);
int strcmp(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return (unsigned char)*a - (unsigned char)*b;
}
