/* What the runtime does with a pager outside of kernels/page.c. */
#include "format.h"
#if SMG_PAGES

static const char *write_initial(const SmgContext *x) {
    const SmgPager *pager = x->pager;
    const uint32_t state = smg_page_state_bytes(x), arena = smg_arena_bytes(x);
    const uint32_t given = smg_section_bytes(x, S_PAGES) - PAGES_VALUES * 4;
    const char *why = given ? pager->write(pager->self, 0, smg_section(x, S_PAGES) + PAGES_VALUES, given) : NULL;
    for (uint32_t at = given, count; at < state && !why;
         at += count) { /* the arena is as good a source of zeros as any */
        count = state - at < arena ? state - at : arena;
        why = pager->write(pager->self, at, x->arena, count);
    }
    return why;
}

SmgStatus smg_reset_pages(SmgContext *x) {
    if (!x->pager || !smg_page_state_bytes(x)) { return SMG_OK; }
    const char *why = write_initial(x);
    if (!why) { return SMG_OK; }
    smg_say(x, SMG_FAULT_PAGER, "the initial state cannot be written to its pages: ");
    smg_add_text(x, why);
    return SMG_STOPPED;
}

void smg_stop_pages(SmgContext *x) {
    if (x->pager && x->pager->wait) { x->pager->wait(x->pager->self, NULL); }
}

SmgStatus smg_set_pager(SmgContext *x, const SmgPager *pager) {
    smg_say(x, SMG_NO_FAULT, "");
    if (!x->is_open) { return smg_say(x, SMG_FAULT_CALL, "no program is open"); }
    if (!pager || !pager->read || !pager->write || !pager->start != !pager->wait) {
        return smg_say(x, SMG_FAULT_CALL, "a pager needs read and write, and both or none of start and wait");
    }
    x->pager = pager;
    const SmgStatus status = smg_reset_state(x);
    if (status) { x->pager = NULL; }
    return status;
}
#else
SmgStatus smg_set_pager(SmgContext *x, const SmgPager *pager) {
    (void)pager;
    return smg_say(x, SMG_FAULT_CALL, "this runtime is built without paging");
}
#endif
