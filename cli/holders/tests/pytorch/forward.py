# Tangents of forward-mode AD in host memory, which only the dual tensors of a global list have. Prints a line for each: address of its
# storage in hexadecimal, and bytes. Then "ready", and waits.
import sys

import torch
import torch.autograd.forward_ad as forward_ad

duals = []


def perturb(primal, number):
    tangent = torch.full_like(primal, number)
    storage = tangent.untyped_storage()
    print(f"{storage.data_ptr():x} {storage.nbytes()}")
    duals.append(forward_ad.make_dual(primal, tangent))


def main():
    forward_ad.enter_dual_level()
    primal = torch.ones(2000)
    for number in range(4):
        perturb(primal, number)


main()
print("ready", flush=True)
sys.stdin.read()
