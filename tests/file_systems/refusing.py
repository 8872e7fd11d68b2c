"""A FUSE file system that refuses shared mappings (direct_io) and fallocate, as some cluster file systems do.

    refusing.py MOUNTPOINT FOLDER     shows FOLDER at MOUNTPOINT, in the foreground
"""
import os
import sys

import fuse


class Refusing(fuse.Operations):
    def __init__(self, folder):
        self.folder = folder

    def at(self, path):
        return os.path.join(self.folder, path.lstrip("/"))

    def getattr(self, path, handle=None):
        status = os.lstat(self.at(path))
        return {name: getattr(status, name) for name in dir(status) if name.startswith("st_") and not name.endswith("_ns")}

    def readdir(self, path, handle):
        return [".", "..", *os.listdir(self.at(path))]

    def create(self, path, mode, info):
        info.fh = os.open(self.at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        info.direct_io = 1
        return 0

    def open(self, path, info):
        info.fh = os.open(self.at(path), info.flags & ~os.O_NOFOLLOW)
        info.direct_io = 1
        return 0

    def read(self, path, size, offset, info):
        return os.pread(info.fh, size, offset)

    def write(self, path, data, offset, info):
        return os.pwrite(info.fh, data, offset)

    def truncate(self, path, length, info=None):
        os.truncate(self.at(path), length)

    def fsync(self, path, only_data, info):
        os.fsync(info.fh)

    def mkdir(self, path, mode):
        os.mkdir(self.at(path), mode)

    def unlink(self, path):
        os.unlink(self.at(path))

    def rename(self, old, new):
        os.rename(self.at(old), self.at(new))

    def release(self, path, info):
        os.close(info.fh)


fuse.FUSE(Refusing(sys.argv[2]), sys.argv[1], raw_fi=True, foreground=True, nothreads=True)
