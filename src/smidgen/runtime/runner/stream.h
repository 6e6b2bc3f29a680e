/* A stream of samples, for programs made with the method `tinyol`: each is predicted and then learned from. */
#ifndef SMG_RUNNER_STREAM_H
#define SMG_RUNNER_STREAM_H
#include "../replay.h"
#include "../smidgen_learn.h"
#include "data.h"
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    FILE *losses, *out; /* the loss of each sample, and the first output before it was learned; NULL: nobody asks */
    double loss;        /* mean over all samples */
    SmgUsual usual;     /* at the end */
} Stream;

/* Opens the samples that `learn` takes; without targets, if the program's are the samples themselves. 0, or -1 with
 * d->message. */
int stream_open(Data *d, const SmgContext *x, const char *npz, char **raw, int raws);

/* Learns from all of them, in the order that they have. With replay, old ones are learned beside each, and it is kept.
 * NULL, or why not. */
const char *stream_learn(SmgContext *x, Data *d, const SmgReplay *replay, Stream *s);

#ifdef __cplusplus
}
#endif
#endif
