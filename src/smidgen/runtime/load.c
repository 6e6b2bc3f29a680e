/* Opens a program file. The file is hostile until proved otherwise: every offset, size and product is checked here, in
 * 64-bit arithmetic that cannot wrap, so that vm.c needs no checks at all. */
#include "crc.h"
#include "format.h"

_Static_assert(SMG_MAX_WORDS <= SMG_MAX_PARAMS, "smidgen.h and kernel.h disagree");
_Static_assert(SMG_MAX_RANK == 8, "SmgBufferInfo.dims");
_Static_assert(SMG_MAX_ENTRIES <= 32, "SmgContext.paging");
_Static_assert(sizeof(SmgContext) <= 2048, "the context is RAM too");

#define BAD(text) smg_say(x, SMG_FAULT_PROGRAM, RULE(text))

static int is_aligned(const void *pointer, uint32_t align) { return ((uintptr_t)pointer & (align - 1)) == 0; }

static uint32_t header_bytes(const uint32_t *w) { return SMG_HEADER_BYTES + (w[F_SECTIONS] > SECTIONS ? 8 : 0); }

SmgStatus smg_measure(SmgContext *x, const void *file, size_t bytes) {
    memset(x, 0, sizeof *x);
    x->fault_entry = -1;
    if (!file || bytes < SMG_HEADER_BYTES) { return BAD("the file is shorter than its header"); }
    if (!is_aligned(file, 4)) { return smg_say(x, SMG_FAULT_CALL, "the file must start at a multiple of 4 bytes"); }
    const uint32_t *w = (const uint32_t *)file;
    if (w[F_MAGIC] != SMG_MAGIC) { return smg_say(x, SMG_FAULT_PROGRAM, "not a smidgen program"); }
    if (w[F_VERSION] != SMG_VERSION) {
        smg_say(x, SMG_FAULT_VERSION, "the file has format version ");
        smg_add_number(x, w[F_VERSION]);
        smg_add_text(x, ", this runtime reads version ");
        smg_add_number(x, SMG_VERSION);
        return SMG_BAD_PROGRAM;
    }
    if (w[F_TOTAL] > bytes) {
        smg_say(x, SMG_FAULT_PROGRAM, "the file is cut off: ");
        smg_add_number(x, bytes);
        smg_add_text(x, " of ");
        smg_add_number(x, w[F_TOTAL]);
        smg_add_text(x, " bytes");
        return SMG_BAD_PROGRAM;
    }
    if (w[F_TOTAL] < SMG_HEADER_BYTES) { return BAD("the file claims to be shorter than its header"); }
    if (w[F_BATCH] < 1 || w[F_BATCH] > INT32_MAX) { return BAD("the batch size is out of range"); }
    const uint32_t align = w[F_ALIGN];
    if (align < 4 || align > 64 || (align & (align - 1))) { return BAD("the alignment is not 4, 8, 16, 32 or 64"); }
    if (w[F_CONST] > INT32_MAX || w[F_STATE] > INT32_MAX || w[F_ARENA] > INT32_MAX) {
        return BAD("a region is larger than 2 GB");
    }
    if (w[F_SECTIONS] != SECTIONS && (w[F_SECTIONS] != SECTIONS + 1 || !SMG_PAGES)) {
        if (w[F_SECTIONS] != SECTIONS + 1) { return BAD("the number of sections is wrong"); }
        return smg_say(x, SMG_FAULT_LATER, "this runtime is built without paging");
    }
    if (w[F_SECTIONS] > SECTIONS) { /* the one section whose content says how much memory is needed */
        const uint32_t offset = w[F_TABLE + 2 * S_PAGES], count = w[F_TABLE + 2 * S_PAGES + 1];
        if (w[F_TOTAL] < header_bytes(w) || offset % 4 || (uint64_t)offset + count > w[F_TOTAL] ||
            count < PAGES_VALUES * 4) {
            return BAD("the section on pages lies outside the file");
        }
        const uint32_t *pages = w + offset / 4;
        if (pages[PAGES_BYTES] > INT32_MAX) { return BAD("a region is larger than 2 GB"); }
        if (!pages[PAGES_BYTES]) { return BAD("the section on pages has no pages"); }
        if (pages[PAGES_STATE] > pages[PAGES_BYTES] || count - PAGES_VALUES * 4 > pages[PAGES_STATE]) {
            return BAD("the initial state in pages is larger than its region");
        }
    }
    x->file = (const uint8_t *)file;
    return SMG_OK;
}

/* Sections lie in the file one after the other, so they cannot overlap. */
static SmgStatus check_sections(SmgContext *x) {
    const uint32_t *w = smg_words(x);
    uint64_t end = header_bytes(w);
    for (uint32_t i = 0; i < w[F_SECTIONS]; i++) {
        const uint32_t offset = w[F_TABLE + 2 * i], bytes = w[F_TABLE + 2 * i + 1];
        if (offset < end || offset % 4) { return BAD("sections overlap or are not aligned"); }
        end = (uint64_t)offset + bytes;
        if (end > w[F_TOTAL]) { return BAD("a section ends behind the file"); }
    }
    if (smg_section_bytes(x, S_TYPES) % 4 || smg_section_bytes(x, S_ENTRIES) % (ENTRY_WORDS * 4) ||
        smg_section_bytes(x, S_BUFFERS) % (BUFFER_WORDS * 4) || smg_section_bytes(x, S_KERNELS) % 4 ||
        smg_section_bytes(x, S_CODE) % 4 || smg_section_bytes(x, S_PARAMS) % 4) {
        return BAD("a section does not hold whole records");
    }
    if (smg_has_pages(x) && smg_page_state_bytes(x) && !w[F_ARENA]) {
        return BAD("state in pages needs an arena to come to");
    }
    if (smg_section_bytes(x, S_CONST) != w[F_CONST]) { return BAD("the constants do not fill their region"); }
    if (smg_section_bytes(x, S_STATE) > w[F_STATE]) { return BAD("the initial state is larger than its region"); }
    if (!is_aligned(smg_section(x, S_CONST), w[F_ALIGN])) {
        return smg_say(x, SMG_FAULT_CALL, "the file does not start at a multiple of its alignment");
    }
    const uint32_t strings = smg_section_bytes(x, S_STRINGS);
    if (strings && smg_name(x, 0)[strings - 1] != 0) { return BAD("the last name does not end"); }
    return SMG_OK;
}

/* Every name in the file ends inside its section if it starts there. */
static int is_name(const SmgContext *x, uint32_t offset) { return offset < smg_section_bytes(x, S_STRINGS); }

/* A bit for each type in the table, or all of them: it has a type that this runtime does not know. */
static uint32_t listed_types(const SmgContext *x) {
    uint32_t listed = 0;
    for (uint32_t i = smg_section_bytes(x, S_TYPES) / 4; i; i--) {
        const uint32_t word = smg_section(x, S_TYPES)[i - 1], code = word & 0xff;
        if (code >= SMG_TYPE_COUNT || word >> 8 != smg_types[code].bytes) { return UINT32_MAX; }
        listed |= 1u << code;
    }
    return listed;
}

static int is_finite(uint32_t bits) { return bits << 1 < 0xff000000; }

/* Above zero and finite: the bits of floats are in their order. */
static int is_positive(uint32_t bits) { return bits - 1 < 0x7f7fffff; }

static SmgStatus check_buffers(SmgContext *x) {
    const uint32_t listed = listed_types(x);
    uint32_t used = 0;
    if (listed == UINT32_MAX) {
        return smg_say(x, SMG_FAULT_LATER, "the program has a type that this runtime does not know");
    }
    const uint32_t count = smg_section_bytes(x, S_BUFFERS) / (BUFFER_WORDS * 4);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *b = smg_section(x, S_BUFFERS) + (size_t)i * BUFFER_WORDS, kind = b[B_KIND];
        const uint32_t rank = kind >> 16 & 0xff, batch_axis = kind >> 24, bits = kind >> 8 & 0xff;
        const uint32_t most = bits & BUFFER_SCALED ? SMG_MAX_RANK - 2 : SMG_MAX_RANK;
        if (!is_name(x, b[B_NAME])) { return BAD("a buffer has no name"); }
        if ((kind & 0xff) >= SMG_TYPE_COUNT || bits > (BUFFER_OUTPUT | BUFFER_SCALED) || rank > most ||
            (batch_axis != 0xff && batch_axis >= rank)) {
            return BAD("a buffer has an unknown type or rank");
        }
        used |= 1u << (kind & 0xff);
        if (bits & BUFFER_SCALED &&
            !((kind & 0xff) - SMG_I32 <= SMG_I16 - SMG_I32 && is_positive(b[B_SCALE]) && is_finite(b[B_OFFSET]))) {
            return BAD("a buffer cannot have its scale");
        }
        for (uint32_t d = 0; d < most; d++) {
            if (b[B_DIMS + d] > INT32_MAX) { return BAD("a buffer has a negative size"); }
        }
    }
    return used == listed ? SMG_OK : BAD("the table of types is not that of the buffers");
}

static SmgStatus check_entries(SmgContext *x) {
    const uint32_t count = smg_section_bytes(x, S_ENTRIES) / (ENTRY_WORDS * 4);
    const uint32_t buffers = smg_section_bytes(x, S_BUFFERS) / (BUFFER_WORDS * 4);
    const uint32_t words = smg_section_bytes(x, S_CODE) / 4;
    if (count > SMG_MAX_ENTRIES) { return smg_say(x, SMG_FAULT_ROOM, "too many entry points"); }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *e = smg_entry_record(x, (int)i);
        if (!is_name(x, e[E_NAME])) { return BAD("an entry point has no name"); }
        if (e[E_BUFFER] > buffers || (uint64_t)e[E_INPUTS] + e[E_OUTPUTS] > buffers - e[E_BUFFER]) {
            return BAD("an entry point names buffers that do not exist");
        }
        for (uint32_t b = 0; b < e[E_INPUTS] + e[E_OUTPUTS]; b++) {
            const uint32_t kind = smg_section(x, S_BUFFERS)[(size_t)(e[E_BUFFER] + b) * BUFFER_WORDS + B_KIND];
            if ((kind >> 8 & 1) != (b >= e[E_INPUTS])) { return BAD("an entry point mixes inputs and outputs"); }
        }
        if (e[E_CODE] > words || e[E_WORDS] > words - e[E_CODE]) { return BAD("an entry point lies outside the code"); }
    }
    return SMG_OK;
}

static SmgStatus find_kernels(SmgContext *x) {
    const uint32_t count = smg_section_bytes(x, S_KERNELS) / 4;
    if (count > SMG_MAX_KERNELS) { return smg_say(x, SMG_FAULT_ROOM, "the program uses too many different kernels"); }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t offset = smg_section(x, S_KERNELS)[i];
        if (!is_name(x, offset)) { return BAD("a kernel has no name"); }
        int k = 0;
        while (k < smg_kernel_count && strcmp(smg_kernels[k]->name, smg_name(x, offset))) { k++; }
        if (k == smg_kernel_count) {
            smg_say(x, SMG_FAULT_KERNEL, "this runtime has no kernel '");
            smg_add_text(x, smg_name(x, offset));
            smg_add_text(x, "'");
            return SMG_BAD_PROGRAM;
        }
        x->kernels[i] = (uint16_t)k;
    }
    return SMG_OK;
}

SmgStatus smg_prove(SmgContext *x, const void *file, size_t bytes) {
    SmgStatus status = smg_measure(x, file, bytes);
    if (status) { return status; }
    const uint32_t *w = smg_words(x);
    if (smg_crc32(0, (const uint8_t *)file + SMG_CRC_FROM, w[F_TOTAL] - SMG_CRC_FROM) != w[F_CRC]) {
        status = smg_say(x, SMG_FAULT_PROGRAM, "the checksum does not match: the file is damaged");
    }
    if (!status) { status = check_sections(x); }
    if (!status) { status = check_buffers(x); }
    if (!status) { status = check_entries(x); }
    if (!status) { status = find_kernels(x); }
    const int entries = status ? 0 : (int)(smg_section_bytes(x, S_ENTRIES) / (ENTRY_WORDS * 4));
    for (int i = 0; i < entries && !status; i++) { status = smg_check_entry(x, i, (int32_t)w[F_BATCH]); }
    if (status) { x->file = NULL; }
    return status;
}

SmgStatus smg_take(SmgContext *x, void *state, size_t state_bytes, void *arena, size_t arena_bytes) {
    const uint32_t *w = smg_words(x);
    if (state_bytes < w[F_STATE] || arena_bytes < w[F_ARENA] || (w[F_STATE] && !state) || (w[F_ARENA] && !arena)) {
        smg_say(x, SMG_FAULT_CALL, "the program needs ");
        smg_add_number(x, w[F_STATE]);
        smg_add_text(x, " bytes of state and ");
        smg_add_number(x, w[F_ARENA]);
        smg_add_text(x, " bytes of arena");
    } else if (!is_aligned(state, w[F_ALIGN]) || !is_aligned(arena, w[F_ALIGN])) {
        smg_say(x, SMG_FAULT_CALL, "state and arena must be aligned as the program says");
    } else {
        /* An empty region has an address too, so that an operand without bytes is not NULL. */
        x->state = state ? (uint8_t *)state : (uint8_t *)x;
        x->arena = arena ? (uint8_t *)arena : (uint8_t *)x;
        x->is_open = 1;
        return SMG_OK;
    }
    x->file = NULL;
    return SMG_BAD_CALL;
}

SmgStatus smg_open(SmgContext *x, const void *file, size_t bytes, void *state, size_t state_bytes, void *arena,
                   size_t arena_bytes) {
    SmgStatus status = smg_prove(x, file, bytes);
    if (!status) { status = smg_take(x, state, state_bytes, arena, arena_bytes); }
    return status ? status : smg_reset_state(x);
}
