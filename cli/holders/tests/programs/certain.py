# Lists that lead to the addresses of blocks, beside memory of a library with the same words, nearer to a variable. Prints a line for
# each block: address in hexadecimal, bytes, the global that holds it, and the class. Then "ready", and waits.
import ctypes
import sys

libc = ctypes.CDLL(None)
libc.calloc.restype = ctypes.c_void_p


class Library(ctypes.Structure):
    _fields_ = [("memory", ctypes.c_void_p)]


class ArrayImpl:
    def __init__(self, address):
        self.buffer = {"pointer": ctypes.c_void_p(address)}


def memory(word):
    words = (ctypes.c_uint64 * 8).from_address(libc.calloc(8, 8))
    words[2] = word
    return ctypes.addressof(words)


beginning, inside = 0x302000000, 0x304000000
print("%x 4096 a_list Held" % beginning)
print("%x 4096 another Held" % inside)
libraries = [Library(memory(beginning)), Library(memory(inside + 512))]
a_list = [ArrayImpl(beginning)]
another = [ArrayImpl(inside)]
sorted(range(1000), key=lambda n: -n)
print("ready", flush=True)
sys.stdin.readline()
