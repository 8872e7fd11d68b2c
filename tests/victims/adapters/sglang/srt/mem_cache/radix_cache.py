"""The prefix cache, which keeps the pages of requests that have ended; here without a tree."""

import torch


class RadixCache:
    def __init__(self, token_to_kv_pool_allocator, page_size):
        self.token_to_kv_pool_allocator, self.page_size = token_to_kv_pool_allocator, page_size
        self.reset()

    cat = staticmethod(lambda *tensors: torch.cat(tensors))

    def reset(self):
        self.values = []

    def evictable_size(self):
        return sum(len(value) for value in self.values)

    def cache_unfinished_req(self, req, chunked=False):
        pass

    def cache_finished_req(self, req, is_insert=True):
        if is_insert:
            self.values.append(req.kv)
        else:
            self.token_to_kv_pool_allocator.free(req.kv)

    def evict(self, count):
        for _ in range(count):
            self.token_to_kv_pool_allocator.free(self.values.pop())
