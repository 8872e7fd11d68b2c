// Entry of dlsym and dlvsym: saves the arguments, passes them and the caller to `decide`, then returns its answer or jumps
// to the real function.
    hint #34                        // bti c
    stp x29, x30, [sp, #-48]!
    mov x29, sp
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    mov x3, x30
    bl {decide}
    mov x9, x0
    ldr x2, [sp, #32]
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #48
    cmp x9, #1
    b.hi 2f
    b.eq 3f
    adrp x16, {real}
    ldr x16, [x16, :lo12:{real}]
    br x16
3:
    mov x0, #0
    ret
2:
    mov x0, x9
    ret
