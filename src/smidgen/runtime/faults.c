/* What went wrong, as numbers and as texts: SmgFault, and the message in the context. */
#include "format.h"

/* In the order of SmgFault from SMG_FAULT_LABEL on, each with its zero. What is wrong with a file or a call has many
 * texts, each where it is found. */
static const char texts[] = "a label is not the number of a class\0"
                            "a label is that of a spare class that was not added\0"
                            "a mean with ignored labels needs the whole batch at once\0"
                            "batch statistics need more than one value per channel\0"
                            "an embedding index is outside the table\0"
                            "an index is outside its axis\0"
                            "a max-pool index points outside its window\0"
                            "a max-pool index points outside the image\0"
                            "the channel could not read\0"
                            "the channel could not write\0"
#if SMG_PAGES
                            "the pager failed\0"
                            "a page does not read as it was written\0"
#endif
    ;

const char *smg_fault_text(SmgFault fault) {
    const char *at = texts, *end = texts + sizeof texts - 1;
    for (unsigned i = SMG_FAULT_LABEL; i < (unsigned)fault && at < end; i++) {
        while (*at++) {}
    }
    return fault < SMG_FAULT_LABEL ? "" : at;
}

SmgFault smg_fault(const SmgContext *x, SmgPlace *place) {
    if (place) {
        place->entry = x->fault_entry;
        place->instruction = x->fault_instruction;
    }
    return (SmgFault)x->fault;
}

const char *smg_error(const SmgContext *x) { return x->message; }

void smg_add_text(SmgContext *x, const char *text) {
    size_t at = 0;
    while (x->message[at]) { at++; }
    for (; *text && at + 1 < SMG_MESSAGE_BYTES; text++) {
        x->message[at++] = (unsigned char)*text < 32 ? '?' : *text; /* names come from the file */
    }
    x->message[at] = 0;
}

void smg_add_number(SmgContext *x, uint64_t number) {
    char digits[21];
    int at = 20;
    digits[at] = 0;
    number &= INT64_MAX; /* saturated sizes are the only ones beyond it */
    do {
        const uint64_t tenth = (uint64_t)smg_div((int64_t)number, 10);
        digits[--at] = (char)('0' + (number - tenth * 10));
        number = tenth;
    } while (number);
    smg_add_text(x, digits + at);
}

SmgStatus smg_say(SmgContext *x, SmgFault fault, const char *text) {
    x->message[0] = 0;
    smg_add_text(x, text);
    x->fault = (uint16_t)fault;
    x->fault_entry = -1;
    x->fault_instruction = 0;
    if (!fault) { return SMG_OK; }
    if (fault < SMG_FAULT_CALL) { return SMG_BAD_PROGRAM; }
    return fault == SMG_FAULT_CALL ? SMG_BAD_CALL : SMG_STOPPED;
}

SmgStatus smg_say_at(SmgContext *x, SmgFault fault, int entry, uint32_t instruction, const char *kernel,
                     const char *why) {
    const SmgStatus status = smg_say(x, fault, smg_name(x, smg_entry_record(x, entry)[E_NAME]));
    smg_add_text(x, ", instruction ");
    smg_add_number(x, instruction);
    smg_add_text(x, *kernel ? ", " : "");
    smg_add_text(x, kernel);
    smg_add_text(x, ": ");
    smg_add_text(x, why);
    x->fault_entry = (int16_t)entry;
    x->fault_instruction = instruction;
    return status;
}
