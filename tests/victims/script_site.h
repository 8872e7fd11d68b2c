/* One call site of script.c: all verbs that have a stack, in a function called SITE. */
static NOINLINE void SITE(struct op *op) {
    long long *a = op->a;
    unsigned long long *out = &op->value;
    switch (op->verb) {
#define V(name, call) \
    case VERB_##name: op->result = (call); break;
        MAKING(V)
#undef V
    default: break;
    }
    STAY();
}
#undef SITE
