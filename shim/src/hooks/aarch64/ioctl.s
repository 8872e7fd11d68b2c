// Entry of ioctl: jumps to the next definition unless the low 16 bits of the request are those of a request that is recorded.
    hint #34                        // bti c
    and w16, w1, #0xffff
    mov w17, #{free}
    sub w16, w16, w17
    cbz w16, 2f
    cmp w16, #{transfer}
    b.eq 2f
    b.hi 1f
    cmp w16, #{alloc}
    b.eq 2f
    cmp w16, #{duplicate}
    b.eq 2f
    cmp w16, #{heap}
    b.eq 2f
1:  adrp x16, {next}
    ldr x16, [x16, :lo12:{next}]
    br x16
2:
    b {body}
