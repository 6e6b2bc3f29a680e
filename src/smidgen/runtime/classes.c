/* See classes.h. */
#include "classes.h"
#include "format.h"

static int fits(const SmgContext *x, const SmgClasses *c) {
    if (!x->is_open || !c || c->known < 1 || c->spare < 1 || c->name_bytes < 2) { return 0; }
    const uint64_t mask_end = c->mask + 4 * ((uint64_t)c->known + (uint64_t)c->spare);
    const uint64_t names_end = smg_add(c->names, smg_mul((uint64_t)c->spare, c->name_bytes));
    return c->mask % 4 == 0 && mask_end <= smg_state_bytes(x) && names_end <= smg_state_bytes(x);
}

int smg_class_count(const SmgContext *x, const SmgClasses *c) {
    if (!fits(x, c)) { return -1; }
    const float *mask = (const float *)(const void *)(x->state + c->mask);
    int count = c->known;
    while (count < c->known + c->spare && mask[count] == 0.0f) { count++; }
    return count;
}

static int refused(SmgContext *x, const char *why) {
    smg_say(x, SMG_FAULT_CALL, why);
    return -1;
}

int smg_add_class(SmgContext *x, const SmgClasses *c, const char *name) {
    const int number = smg_class_count(x, c);
    size_t length = 0;
    if (number < 0) { return refused(x, "the program has no such spare classes"); }
    if (number == c->known + c->spare) { return refused(x, "all spare classes are taken"); }
    while (name && name[length] && length < c->name_bytes) { length++; }
    if (!length || length == c->name_bytes) { return refused(x, "the name of a class is empty or too long"); }
    uint8_t *to = x->state + c->names + (uint32_t)(number - c->known) * c->name_bytes;
    memset(to, 0, c->name_bytes);
    memcpy(to, name, length);
    ((float *)(void *)(x->state + c->mask))[number] = 0.0f; /* last: from here on the class is in use */
    smg_say(x, SMG_NO_FAULT, "");
    return number;
}

const char *smg_class_name(const SmgContext *x, const SmgClasses *c, int number) {
    if (number < (c ? c->known : 0) || number >= smg_class_count(x, c)) { return NULL; }
    const char *name = (const char *)x->state + c->names + (uint32_t)(number - c->known) * c->name_bytes;
    return name[c->name_bytes - 1] ? NULL : name;
}
