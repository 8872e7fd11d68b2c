/* Calls a forwarder, which may have no next definition to forward to. */
#include "victim.h"

extern void *ompt_start_tool(unsigned, const char *);

int main(void) {
    printf("%s\n", ompt_start_tool(1, "test") ? "tool" : "no tool");
    start_cuda();
    leak(100);
    return 0;
}
