/* A member of a fleet: answers a gateway over the serial port, and learns with the program `net` what it is told to
 * (`smidgen gateway`). State is saved to slots. Here they are in a file of the machine that the emulator or debugger
 * runs on; a device of your own has two sectors of flash in its place (slots.h), and its own serial.c. */
#include "board.h"
#include "fleet.h"
#include "net_program.h"
#include "serial.h"

enum {
    PAYLOAD = NET_FLEET_PAYLOAD,
    UNIT = 8,
    SLOT_BYTES = SMG_SLOT_HEADER_BYTES + (NET_STATE_BYTES + UNIT - 1) / UNIT * UNIT
};

static SmgContext context;
static SmgFleet fleet;
static _Alignas(NET_ALIGN) uint8_t state[NET_STATE_BYTES] NET_STATE_BANK;
static _Alignas(NET_ALIGN) uint8_t arena[NET_ARENA_BYTES] NET_ARENA_BANK;
static uint8_t rows[NET_FLEET_ROWS_BYTES], frames[SMG_FLEET_FRAMES_BYTES(PAYLOAD)];

static int slots_file;

static uint32_t at_slot(int slot, uint32_t offset) { return (uint32_t)slot * SLOT_BYTES + offset; }

static int write_slot(void *self, int slot, uint32_t offset, const void *from, uint32_t bytes) {
    (void)self;
    return board_write(slots_file, at_slot(slot, offset), from, bytes);
}

static int read_slot(void *self, int slot, uint32_t offset, void *to, uint32_t bytes) {
    (void)self;
    return board_read(slots_file, at_slot(slot, offset), to, bytes);
}

/* Of a file it is enough that the header is gone. */
static int erase_slot(void *self, int slot) {
    static const uint32_t nothing[SMG_SLOT_HEADER_BYTES / 4];
    return write_slot(self, slot, 0, nothing, sizeof nothing);
}

static const SmgSlots slots = {
    .erase = erase_slot, .write = write_slot, .read = read_slot, .bytes = SLOT_BYTES, .unit = UNIT};

/* Another program that comes over the line lies in RAM: after a reset it is gone, and the gateway sends it again. */
#if NET_FLEET_RECIPE_BYTES
static _Alignas(64) uint8_t recipe[NET_FLEET_RECIPE_BYTES];

static int erase_recipe(void *self) {
    (void)self;
    recipe[0] = 0;
    return 0;
}

static int write_recipe(void *self, uint32_t offset, const void *from, uint32_t bytes) {
    (void)self;
    for (uint32_t i = 0; i < bytes; i++) { recipe[offset + i] = ((const uint8_t *)from)[i]; }
    return 0;
}

static const SmgFleetRecipes recipes = {
    .erase = erase_recipe, .write = write_recipe, .memory = recipe, .bytes = sizeof recipe};
#endif

static void answer(void *self, const uint8_t *bytes, uint32_t count) {
    (void)self;
    serial_write(bytes, count);
}

static const SmgFleetParts parts = {
    .context = &context,
    .program = net_program,
    .program_bytes = sizeof net_program,
    .state = state,
    .state_bytes = sizeof state,
    .arena = arena,
    .arena_bytes = sizeof arena,
    .rows = rows,
    .rows_bytes = sizeof rows,
    .frames = frames,
    .frames_bytes = sizeof frames,
    .slots = &slots,
#if NET_FLEET_RECIPE_BYTES
    .recipes = &recipes,
#endif
    .write = answer,
};

static int fail(const char *what) {
    board_print("error: ");
    board_print(what);
    board_print("\n");
    return 1;
}

int main(void) {
    slots_file = board_open("slots.bin", BOARD_KEEP);
    if (slots_file < 0) { slots_file = board_open("slots.bin", BOARD_UPDATE); }
    if (slots_file < 0) { return fail("slots.bin cannot be opened"); }
    if (serial_open()) { return fail("the serial port of this board is not known: see serial.h"); }
    if (smg_fleet_open(&fleet, &parts)) { return fail(smg_error(&context)); }
    for (;;) { smg_fleet_byte(&fleet, serial_read()); }
}
