/* Sizes that cannot wrap: what does not fit 64 bits is SMG_TOO_MUCH. Included by kernel.h or extents.c, which say how
 * the functions are linked. */
SMG_EXTENTS uint64_t smg_mul(uint64_t a, uint64_t b) {
    const uint64_t high = a > b ? a : b, low = a > b ? b : a;
    if (low >> 32) { return SMG_TOO_MUCH; }
    /* high has two digits of 32 bits, low has one */
    const uint64_t carry = (high & 0xffffffffu) * low >> 32, top = (high >> 32) * low + carry;
    return top >> 32 ? SMG_TOO_MUCH : high * low;
}

SMG_EXTENTS uint64_t smg_add(uint64_t a, uint64_t b) { return a > SMG_TOO_MUCH - b ? SMG_TOO_MUCH : a + b; }

/* a / b for a >= 0 and b > 0. Where size matters, the library's division of 64 bits is not worth its thousand bytes:
 * nearly all numbers have 32. */
SMG_EXTENTS int64_t smg_div(int64_t a, int64_t b) {
#ifdef __OPTIMIZE_SIZE__
    if ((a | b) >> 31 == 0) { return (int32_t)a / (int32_t)b; }
    uint64_t rest = 0, quotient = 0;
    for (int bit = 62; bit >= 0; bit--) {
        rest = rest << 1 | ((uint64_t)a >> bit & 1);
        quotient <<= 1;
        if (rest >= (uint64_t)b) {
            rest -= (uint64_t)b;
            quotient |= 1;
        }
    }
    return (int64_t)quotient;
#else
    return a / b;
#endif
}

/* Elements covered by a strided walk: 1 + sum (dim-1)*stride, or 0 if a dim is 0; SMG_TOO_MUCH on negatives. */
SMG_EXTENTS uint64_t smg_span(const int32_t *dims, const int32_t *strides, int rank) {
    uint64_t last = 0;
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 0 || strides[i] < 0) { return SMG_TOO_MUCH; }
        if (dims[i] == 0) { return 0; }
        last = smg_add(last, smg_mul((uint64_t)dims[i] - 1, (uint64_t)strides[i]));
    }
    return smg_add(last, 1);
}
