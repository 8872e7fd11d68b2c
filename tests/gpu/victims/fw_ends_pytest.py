"""Tests that leave tensors in a module global until the session has ended. Run by pytest, not directly."""

import pytest
import torch

from printing import fact

held = []


@pytest.fixture(scope="session", autouse=True)
def last_act():
    yield
    print()  # ends pytest's line of dots
    torch.cuda.synchronize()
    fact("end_bytes", torch.cuda.memory_allocated())
    fact("peak_bytes", torch.cuda.max_memory_allocated())


@pytest.mark.parametrize("size", [10_000, 20_000, 30_000])
def test_keeps_its_tensor(size):
    before = torch.cuda.memory_allocated()
    held.append(torch.ones(size, device="cuda"))  # site: ends_pytest
    assert torch.cuda.memory_allocated() > before
