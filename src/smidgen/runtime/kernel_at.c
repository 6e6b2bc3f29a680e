/* What a message says of the place of a fault, for Python on the host. */
#include "format.h"

/* The kernel of an instruction of an open program; NULL if it has none there. */
const char *smg_probe_kernel_at(const SmgContext *x, int entry, uint32_t instruction) {
    if (entry < 0 || entry >= smg_entry_count(x)) { return NULL; }
    const uint32_t *record = smg_entry_record(x, entry), *code = smg_section(x, S_CODE) + record[E_CODE];
    if (instruction >= record[E_INSTRUCTIONS]) { return NULL; }
    for (; instruction; instruction--) { code += smg_code_words(code); }
    return smg_code_repeats(code) ? NULL : smg_kernels[x->kernels[smg_code_kernel(code)]]->name;
}
