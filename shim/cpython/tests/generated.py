"""Functions that are created, called and dropped, so that new code objects reuse the addresses of old ones."""

import ctypes
import sys

probe = ctypes.CDLL(sys.argv[1]).probe
probe.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t]
probe.restype = ctypes.c_size_t
ROOM = 1 << 16
buffer = ctypes.create_string_buffer(ROOM)


def report():
    length = probe(buffer, ROOM, 3)
    print(buffer.raw[:length].decode().replace("\n", ";"))


for number in range(int(sys.argv[2])):
    space = {"report": report}
    exec(compile("def made_{0}():\n  report()\nmade_{0}()".format(number), "file_{}.py".format(number % 97), "exec"), space)
    space.clear()

# Texts with the same name and first line.
def cell(line):
    lines = ["x = 1"] * 12
    lines[line - 1] = "report()"
    exec("\n".join(lines), {"report": report})


for number in range(500):
    cell(6 + number % 7)

# Functions with the same name and line in classes with other names.
for number in range(500):
    space = {"report": report}
    exec("class Made{0:02}:\n  def step(self):\n    report()".format(number % 20), space)
    space["Made{0:02}".format(number % 20)]().step()
