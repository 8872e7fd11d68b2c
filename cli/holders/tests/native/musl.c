// Prints addresses that it holds; memory is that of musl's allocator.
#include <stdio.h>
#include <stdlib.h>

struct Link {
    struct Link *next;
    void *held;
} *list;
void *direct, **large, **pieces[8];
static long next = 0x500000000000;

static void *block(void) {
    long made = next;
    next += 0x100000000;
    printf("%lx\n", made);
    return (void *)made;
}

int main(void) {
    for (int i = 0; i < 1000; i++) {
        struct Link *link = calloc(1, sizeof *link);
        link->next = list, list = link;
    }
    list->next->next->held = block();
    direct = block();
    large = calloc(1 << 17, 8);
    large[1000] = block();
    for (int i = 0; i < 8; i++) {
        pieces[i] = calloc(1, 8 << i);
        pieces[i][0] = block();
    }
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}
