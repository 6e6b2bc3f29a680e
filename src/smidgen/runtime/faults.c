/* What went wrong, as numbers and as texts: SmgFault, and the message in the context. */
#include "format.h"

/* In the order of SmgFault. Faults of a file or a call have a text of their own where they are found. */
static const char *const texts[] = {
    "no fault",
    "the file is damaged, or not a program",
    "the file is of another format version",
    "the program uses a kernel that this runtime does not have",
    "the program is larger than this runtime has room for",
    "the program uses what this runtime does not do yet",
    "the call does not fit the program",
    "a label is not the number of a class",
    "a label is that of a spare class that was not added",
    "a mean with ignored labels needs the whole batch at once",
    "batch statistics need more than one value per channel",
    "an embedding index is outside the table",
    "an index is outside its axis",
    "a max-pool index points outside its window",
    "a max-pool index points outside the image",
    "the channel could not read",
    "the channel could not write",
    "the pager failed",
    "a page does not read as it was written",
    "the memory of the slots failed",
};
_Static_assert(sizeof texts / sizeof *texts == SMG_FAULT_COUNT, "a fault without a text");

const char *smg_fault_text(SmgFault fault) {
    return (unsigned)fault < SMG_FAULT_COUNT ? texts[fault] : "an unknown fault";
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
