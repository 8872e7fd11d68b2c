# Blocks that change their holder all the time, blocks that do not, and cycles; objects come and go beside them.
import ctypes
import gc

libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p
libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]


class T(ctypes.Structure):
    _fields_ = [("impl", ctypes.c_uint64), ("pad", ctypes.c_uint64)]


class Holder:
    pass


def block(place, label, expected):
    storage = libc.calloc(1, 64)
    impl = libc.calloc(1, 96)
    at = 0x7F0000000000 + place * 0x100000
    ctypes.c_uint64.from_address(storage + 24).value = at
    ctypes.c_uint64.from_address(impl + 24).value = storage
    t = T()
    t.impl = impl
    print("%x 4096 %s%d %s" % (at, label, place, expected))
    return t


def cycle(place):
    a, b = Holder(), Holder()
    a.other, b.other = [b], {"a": a}
    a.tensor = block(place, "cycle", "Cycle")


gc.disable()
dicts = [{} for _ in range(50)]
still = []
for place in range(1000):
    if place < 500:
        dicts[place % 50][place] = block(place, "moving", "Held")
    else:
        holder = Holder()
        holder.tensor = block(place, "still", "Held")
        still.append(holder)
for place in range(1000, 1020):
    cycle(place)
del place, holder
churned = [[[k] for k in range(100)] for _ in range(1000)]
print("ready", flush=True)
q = 0
while True:
    for _ in range(1000):
        a, b = dicts[q % 50], dicts[(q * 7 + 3) % 50]
        q += 1
        if a:
            key = next(iter(a))
            holder = Holder()
            holder.box = [a[key]]
            b[key] = holder.box[0]
            if a is not b:
                del a[key]
        churned[q % 1000] = [[k] for k in range(100)]
