"""Runs pytest with the plugin on the fake driver that the command contains: no GPU is needed."""

import os
import subprocess

import pytest

from culeak.command import find_command

pytest_plugins = ["pytester"]

#: A driver and no framework: stands in for the code under test.
GPU = '''
import ctypes

driver = ctypes.CDLL("libcuda.so.1")
driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]


def use(number=0):
    driver.cuInit(0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert driver.cuDeviceGet(ctypes.byref(device), number) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0


def occupy(size):
    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    return address.value


def free(address):
    assert driver.cuMemFree_v2(address) == 0


def stream():
    handle = ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
    return handle


def destroy(handle):
    assert driver.cuStreamDestroy_v2(handle) == 0


class Tensor:
    """Freed with the object, like a framework's tensor."""

    def __init__(self, size):
        self.address = occupy(size)

    def __del__(self):
        free(self.address)


use()
'''


@pytest.fixture
def run(pytester, monkeypatch, plugin):
    """run(source, *options): a run of pytest on a file of tests."""
    command = find_command()
    fake = subprocess.run([command, "shim-path", "--fake-driver"], stdout=subprocess.PIPE, check=True, universal_newlines=True)
    monkeypatch.setenv("CULEAK", command)
    monkeypatch.setenv("LD_LIBRARY_PATH", fake.stdout.strip())
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)
    pytester.makepyfile(gpu=GPU)

    def run(source, *options, file="test_it"):
        pytester.makepyfile(**{file: source})
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *plugin, *options)

    return run


@pytest.fixture
def plugin():
    """Options that load the plugin. The installed wheel registers the plugin; the source tree does not."""
    try:
        from importlib.metadata import entry_points
    except ImportError:  # pragma: no cover
        return []
    found = entry_points()
    of_pytest = found.select(group="pytest11") if hasattr(found, "select") else found.get("pytest11", [])
    return [] if any(point.name == "culeak" for point in of_pytest) else ["-p", "culeak.pytest_plugin"]


@pytest.fixture
def cupy(pytester):
    """A package of this name, whose pool grows through a library as CuPy's does."""
    package = pytester.mkpydir("cupy")
    (package / "cuda").mkdir()
    source = package / "memory.c"
    source.write_text(
        """
        int MemoryPool_malloc(int (*allocate)(unsigned long *, unsigned long), unsigned long bytes) {
            unsigned long address;
            volatile int result = allocate(&address, bytes);
            return result;
        }
        """
    )
    subprocess.run(["gcc", "-g", "-shared", "-fPIC", "-o", str(package / "cuda" / "memory.so"), str(source)], check=True)
    (package / "__init__.py").write_text(
        """
import ctypes
import os

_library = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "cuda", "memory.so"))


def grow(driver, size):
    assert _library.MemoryPool_malloc(driver.cuMemAlloc_v2, ctypes.c_size_t(size)) == 0
"""
    )
