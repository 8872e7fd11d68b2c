/* Not a Python, but it exports the same symbols: an interpreter that the recorder must leave alone. The argument is its
 * version as a hexadecimal number; a second one makes it declare itself free-threaded. */
#include "victim.h"

unsigned long Py_Version;
struct { char cookie[8]; uint64_t version, free_threaded, offsets[61]; } _PyRuntime = {"xdebugpy"};
struct { uint64_t words[64]; } PyCode_Type, PyFrame_Type, PyUnicode_Type, PyBytes_Type;

static void called(void) { abort(); }
void *PyGILState_GetThisThreadState(void) { called(); return 0; }
void *_PyThreadState_UncheckedGet(void) { called(); return 0; }
/* The only function that is called: it is the same in every version, and a script has an end in each of them. */
int Py_IsFinalizing(void) { return 0; }

int main(int count, char **words) {
    Py_Version = strtoul(words[1], 0, 16);
    _PyRuntime.version = Py_Version;
    _PyRuntime.free_threaded = count > 2;
    start_cuda();
    CUdeviceptr pointer;
    OK(cuMemAlloc_v2(&pointer, 100));
    return 0;
}
