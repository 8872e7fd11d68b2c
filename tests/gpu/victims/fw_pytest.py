"""Tests on PyTorch for the pytest plugin; their names contain the expected results. Run by pytest, not directly."""

import pytest
import torch

cache = []


def tensor(mebibytes):
    return torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda")


@pytest.fixture
def model():
    return torch.nn.Linear(1024, 1024, device="cuda")


def test_needs_64_mib_and_leaves_nothing():
    half = tensor(32)
    tensor(32)
    del half


@pytest.mark.limit_gpu_leaks("8 MiB")
def test_leaks_16_mib_FAILS():
    cache.append(tensor(16))  # site: pytest_leak


@pytest.mark.limit_gpu_leaks(0)
def test_cached_segments_are_no_leak():
    tensor(256)
    tensor(3)


@pytest.mark.limit_gpu_memory("100 MiB")
def test_needs_120_mib_FAILS():
    one = tensor(60)
    two = tensor(60)  # site: pytest_peak
    del one, two


@pytest.mark.limit_gpu_memory("100 MiB")
def test_needs_100_mib():
    one = tensor(60)
    two = tensor(40)
    del one, two


@pytest.mark.limit_gpu_leaks(0, warmups=1)
def test_a_training_step_leaves_nothing(model):
    out = model(torch.randn(64, 1024, device="cuda"))
    out.sum().backward()
    model.zero_grad(set_to_none=True)


@pytest.mark.limit_gpu_leaks(0)
def test_a_first_multiplication_leaves_only_what_libraries_keep():
    torch.mm(torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda"))
    torch.cuda.synchronize()
