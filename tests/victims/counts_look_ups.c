/* Preloaded: counts how often the process walks the loader's list of objects. A hook does so at a call site that is new to
 * it; nothing else does it in a loop. */
#include <dlfcn.h>
#include <link.h>

__attribute__((visibility("default"))) unsigned long look_ups;

typedef int visit(struct dl_phdr_info *, size_t, void *);

int dl_iterate_phdr(visit *each, void *data) {
    static int (*next)(visit *, void *);
    if (!next) next = (int (*)(visit *, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
    look_ups++;
    return next(each, data);
}
