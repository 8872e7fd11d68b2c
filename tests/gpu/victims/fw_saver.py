"""A PyTorch program whose memory is released and mapped again by a preload: that of victims/saver.c or torch_memory_saver.

Arguments: stand_in or package, and when to end: awake, asleep or awake_again.
"""

import ctypes
import sys

import torch

from printing import fact, leave, result

MIB = 1 << 20
kind, phase = sys.argv[1:]


class StandIn:
    def __init__(self):
        self.library = ctypes.CDLL(None)
        self.library.saver_pause.restype = ctypes.c_longlong

    def region(self):
        return self

    def __enter__(self):
        self.library.saver_region(1)

    def __exit__(self, *_):
        self.library.saver_region(0)

    def pause(self):
        result("gave_back", self.library.saver_pause())

    def resume(self):
        result("resumed", self.library.saver_resume())


def package():
    from torch_memory_saver import torch_memory_saver

    return torch_memory_saver


saver = StandIn() if kind == "stand_in" else package()
outside = torch.ones(8 * MIB, device="cuda")  # 32 MiB that stay mapped
outside.mul_(1)  # Loads its kernel before the capture.
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # site: saver_graph
    pooled = outside * 2  # site: saver_pool
graph.replay()
with saver.region():
    inside = torch.ones(16 * MIB, device="cuda")  # 64 MiB, a separate segment
torch.cuda.synchronize()
result("sum", outside.sum().item(), inside.sum().item())
fact("reserved", torch.cuda.memory_reserved())
fact("region", inside.numel() * 4)
before = torch.cuda.mem_get_info()[0]
if phase != "awake":
    saver.pause()
    result("freed_mib", round((torch.cuda.mem_get_info()[0] - before) / MIB))
if phase == "awake_again":
    saver.resume()
    result("taken_again_mib", round((before - torch.cuda.mem_get_info()[0]) / MIB))
    inside.fill_(2)
    result("sum", outside.sum().item(), inside.sum().item())
torch.cuda.synchronize()
leave()
