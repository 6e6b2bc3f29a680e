/* New classes at run time, for programs made with spare ones. Which classes are in use, and the names of those that
 * were added, is part of STATE: whatever saves STATE saves them.
 *
 *     static const SmgClasses classes = NET_CLASSES;            offsets and counts, made with the program
 *     const int cat = smg_add_class(&x, &classes, "cat");       its label from now on; -1: see smg_error
 *
 * A class that is not in use has probability 0 and learns nothing; the others are as if it did not exist. A training
 * step with its label is refused. */
#ifndef SMIDGEN_CLASSES_H
#define SMIDGEN_CLASSES_H
#include "smidgen.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t mask;  /* offset in STATE: what is added to the score of each class, float[known + spare]; 0: in use */
    uint32_t names; /* offset in STATE: char[spare][name_bytes] */
    uint32_t name_bytes; /* with the zero at the end */
    int32_t known, spare;
} SmgClasses;

/* How many are in use; -1 if the program does not have them where `c` says. */
int smg_class_count(const SmgContext *x, const SmgClasses *c);

/* Takes the next spare class and gives it a name. The label to train it with, or -1. */
int smg_add_class(SmgContext *x, const SmgClasses *c, const char *name);

/* The name of a class that was added, its number of smg_add_class; NULL for others. */
const char *smg_class_name(const SmgContext *x, const SmgClasses *c, int number);

#ifdef __cplusplus
}
#endif
#endif
