"""The result of ``dladdr``."""

import ctypes


class DlInfo(ctypes.Structure):
    """``Dl_info``."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]
