/* Learned state that survives power loss: two slots of flash (or of a file, an EEPROM, a card), written in turn.
 *
 *     static const SmgSlots slots = {
 *         .erase = my_erase, .write = my_write, .read = my_read, .bytes = 131072, .unit = 8};
 *     smg_open(&x, …);
 *     if (smg_restore(&x, &slots)) …;      the newest complete state, if there is one; else the program's own
 *     … train …
 *     if (smg_save(&x, &slots)) …;
 *
 * smg_save never touches the slot with the newest complete state, so whenever the power goes, that one stays. What a
 * slot holds counts only if its checksum fits, and only for the very program that wrote it.
 * Nothing is allocated, nothing is global; the stack needs less than smg_run does. */
#ifndef SMIDGEN_SLOTS_H
#define SMIDGEN_SLOTS_H
#include "smidgen.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SMG_SLOT_VERSION      1
#define SMG_SLOT_HEADER_BYTES 32
#define SMG_SLOT_MAX_UNIT     32

/* The board's memory. Slots have the numbers 0 and 1 and lie in different sectors. Functions return 0 when all is
 * done. */
typedef struct {
    void *self; /* handed to all three */
    int (*erase)(void *self, int slot);
    /* offset and bytes are multiples of `unit`; each byte is written at most once after an erase, the first ones last.
     * */
    int (*write)(void *self, int slot, uint32_t offset, const void *from, uint32_t bytes);
    int (*read)(void *self, int slot, uint32_t offset, void *to, uint32_t bytes);
    uint32_t bytes; /* of one slot; smg_slot_bytes are needed */
    uint32_t unit;  /* what the memory can write at least: a power of two up to SMG_SLOT_MAX_UNIT */
} SmgSlots;

/* What a slot has to hold for the open program. */
uint32_t smg_slot_bytes(const SmgContext *x, uint32_t unit);

/* Writes STATE into the slot that does not hold the newest complete one, and reads it back. SMG_OK: from now on this
 * is what smg_restore finds. Otherwise the state saved before is still there. */
SmgStatus smg_save(SmgContext *x, const SmgSlots *slots);

/* Sets STATE to the newest complete one. If there is none, or none of this program, the status is SMG_BAD_CALL and
 * STATE is as it was. */
SmgStatus smg_restore(SmgContext *x, const SmgSlots *slots);

#ifdef __cplusplus
}
#endif
#endif
