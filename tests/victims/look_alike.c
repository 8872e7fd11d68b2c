/* A library that is no driver and exports one of its names. */
__attribute__((visibility("default"))) int cuInit(unsigned flags) { return (int)flags; }
