/* port/arithmetic.c against this machine's own floating point: special values with each other, then bits at random,
 * many of them with exponents close enough for the two numbers to meet. Prints how many were compared; 1 at a
 * difference. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ABI(name)   own_##name
#define WANT_DOUBLE 1
#define WANT_FLOAT  1
#include "arithmetic.c"

static uint64_t seed = 1, count;

static uint64_t bits(void) { /* xorshift */
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}
static double number(uint64_t u) {
    double d;
    memcpy(&d, &u, 8);
    return d;
}
static float number32(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint64_t of(double d) {
    uint64_t u;
    memcpy(&u, &d, 8);
    return d != d ? NAN64 : u;
}
static uint32_t of32(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return f != f ? NAN32 : u;
}

static void same(const char *what, uint64_t a, uint64_t b, uint64_t found, uint64_t wanted) {
    count++;
    if (found == wanted) { return; }
    printf("%s %016llx %016llx: %016llx instead of %016llx\n", what, (unsigned long long)a, (unsigned long long)b,
           (unsigned long long)found, (unsigned long long)wanted);
    exit(1);
}

static void pair(uint64_t a, uint64_t b) {
    const double x = number(a), y = number(b);
    same("dadd", a, b, own_dadd(a, b), of(x + y));
    same("dsub", a, b, own_dsub(a, b), of(x - y));
    same("drsub", a, b, own_drsub(a, b), of(y - x));
    same("dmul", a, b, own_dmul(a, b), of(x * y));
    same("ddiv", a, b, own_ddiv(a, b), of(x / y));
    same("d2f", a, 0, own_d2f(a), of32((float)x));
    same("l2d", a, 0, own_l2d((int64_t)a), of((double)(int64_t)a));
    same("ul2d", a, 0, own_ul2d(a), of((double)a));
}

static void divided(uint32_t a, uint32_t b) {
    const int64_t i = (int32_t)a, j = (int32_t)b;
    same("uidivmod", a, b, own_uidivmod(a, b), b ? (uint64_t)(a % b) << 32 | a / b : (uint64_t)a << 32);
    same("uidiv", a, b, own_uidiv(a, b), b ? a / b : 0);
    same("idivmod", a, b, own_idivmod((int32_t)a, (int32_t)b),
         j ? (uint64_t)(uint32_t)(i % j) << 32 | (uint32_t)(i / j) : (uint64_t)a << 32);
    same("idiv", a, b, (uint32_t)own_idiv((int32_t)a, (int32_t)b), j ? (uint32_t)(i / j) : 0);
}

static void pair32(uint32_t a, uint32_t b) {
    const float x = number32(a), y = number32(b);
    same("fadd", a, b, own_fadd(a, b), of32(x + y));
    same("fsub", a, b, own_fsub(a, b), of32(x - y));
    same("frsub", a, b, own_frsub(a, b), of32(y - x));
    same("fmul", a, b, own_fmul(a, b), of32(x * y));
    same("fdiv", a, b, own_fdiv(a, b), of32(x / y));
    same("fcmpeq", a, b, (uint64_t)own_fcmpeq(a, b), x == y);
    same("fcmplt", a, b, (uint64_t)own_fcmplt(a, b), x < y);
    same("fcmple", a, b, (uint64_t)own_fcmple(a, b), x <= y);
    same("fcmpgt", a, b, (uint64_t)own_fcmpgt(a, b), x > y);
    same("fcmpge", a, b, (uint64_t)own_fcmpge(a, b), x >= y);
    same("fcmpun", a, b, (uint64_t)own_fcmpun(a, b), x != x || y != y);
    same("f2d", a, 0, own_f2d(a), of((double)x));
    same("i2f", a, 0, own_i2f((int32_t)a), of32((float)(int32_t)a));
    same("ui2f", a, 0, own_ui2f(a), of32((float)a));
    same("i2d", a, 0, own_i2d((int32_t)a), of((double)(int32_t)a));
    divided(a, b);
    divided(a, b >> (a & 31)); /* of all sizes */
    same("ui2d", a, 0, own_ui2d(a), of((double)a));
}

/* Zero, the least and largest denormals and normals, one and its neighbours, halfway cases, infinity, NaN. */
static uint64_t special(int i) {
    static const uint64_t of_size[] = {0,
                                       1,
                                       2,
                                       0xfffffffffffff,
                                       0x10000000000000,
                                       0x10000000000001,
                                       0x3fefffffffffffff,
                                       0x3ff0000000000000,
                                       0x3ff0000000000001,
                                       0x3ff8000000000000,
                                       0x4000000000000000,
                                       0x43e0000000000000,
                                       0x7fefffffffffffff,
                                       INF64,
                                       NAN64,
                                       0x7ff0000000000001,
                                       0x36a0000000000000,
                                       0x3690000000000000,
                                       0x3690000000000001,
                                       0x47efffffefffffff,
                                       0x47effffff0000000,
                                       0x380fffffe0000000,
                                       0x380ffffff0000000,
                                       0x3ff0000010000000,
                                       0x3ff0000030000000,
                                       0x3ca0000000000000};
    const int sizes = sizeof of_size / sizeof *of_size;
    return i < 2 * sizes ? of_size[i % sizes] | (i < sizes ? 0 : SIGN64) : 0;
}

int main(int argc, char **argv) {
    const long rounds = argc > 1 ? atol(argv[1]) : 100000;
    for (int i = 0; i < 52; i++) {
        for (int j = 0; j < 52; j++) {
            pair(special(i), special(j));
            pair32(of32((float)number(special(i))), of32((float)number(special(j))));
        }
    }
    for (long i = 0; i < rounds; i++) {
        const uint64_t a = bits(), b = bits();
        pair(a, b);
        pair32((uint32_t)a, (uint32_t)b);
        const uint64_t near =
            (a & 0x7ff0000000000000u) + ((b >> 58) - 32) * 0x10000000000000u; /* up to 32 exponents away */
        pair(a, (b & 0x800fffffffffffffu) | (near & 0x7ff0000000000000u));
        pair32((uint32_t)a,
               ((uint32_t)b & 0x807fffffu) | (((uint32_t)a + ((uint32_t)(b >> 60) - 8) * 0x800000u) & INF32));
        pair(a & 0x800fffffffffffffu, b); /* denormals */
        pair32((uint32_t)a & 0x807fffffu, (uint32_t)b);
        pair(a & ~0xffffffffu, b & ~0x1ffffffu); /* short ones: exact results, ties */
        pair32((uint32_t)a & ~0xfffu, (uint32_t)b & ~0xfffu);
    }
    printf("%llu\n", (unsigned long long)count);
    return 0;
}
