"""Blocks with reference counts; block 0 is a placeholder and never free."""

from collections import deque


class KVCacheBlock:
    def __init__(self, block_id, pool):
        self.block_id, self.pool = block_id, pool
        self.ref_cnt, self.is_null, self.block_hash = 0, False, None


class BlockPool:
    def __init__(self, num_gpu_blocks, enable_caching, hash_block_size=16):
        self.blocks = [KVCacheBlock(number, self) for number in range(num_gpu_blocks)]
        self.free_block_queue = deque(self.blocks)
        self.null_block = self.free_block_queue.popleft()
        self.null_block.is_null = True

    def get_new_blocks(self, num_blocks):
        if num_blocks > len(self.free_block_queue):
            raise ValueError("too few free blocks")
        blocks = [self.free_block_queue.popleft() for _ in range(num_blocks)]
        for block in blocks:
            assert block.ref_cnt == 0
            block.ref_cnt, block.block_hash = 1, None
        return blocks

    def get_num_free_blocks(self):
        return len(self.free_block_queue)

    def cache_full_blocks(self, request, blocks):
        for block in blocks:
            block.block_hash = (request.prefix, block.block_id) if request.prefix else None

    def reset_prefix_cache(self):
        for block in self.blocks:
            block.block_hash = None
        return True

    def touch(self, blocks):
        for block in blocks:
            if block.is_null:
                continue
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks):
        others = []
        for block in ordered_blocks:
            if block.is_null:
                continue
            if block.pool is not self:
                others.append(block)
                continue
            block.ref_cnt -= 1
            if block.ref_cnt == 0 and block.block_hash is None:
                self.free_block_queue.appendleft(block)
            elif block.ref_cnt == 0:
                self.free_block_queue.append(block)
        for block in others:
            block.pool.free_blocks([block])

    def unpin_blocks(self, blocks, on_reuse):
        for block in blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append(block)
