/* The callers of client_api.c, compiled as C++. */
extern "C" {
#include "victim.h"
}
#include "client_api.c"
