/* A library that is not a driver but exports one of its names. */
__attribute__((visibility("default"))) int cuInit(unsigned flags) { return (int)flags; }
