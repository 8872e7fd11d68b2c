"""The manager creates the pool for a configuration, and keeps the blocks of each request."""

from vllm.v1.core.block_pool import BlockPool


class KVCacheBlocks:
    def __init__(self, *blocks):
        self.blocks = blocks


class Coordinator:
    def __init__(self, pool):
        self.pool, self.req_to_blocks = pool, {}

    def get_blocks(self, request_id):
        return (self.req_to_blocks.get(request_id, []),)


class KVCacheManager:
    def __init__(self, kv_cache_config, max_model_len=4096, enable_caching=True):
        self.block_pool = BlockPool(kv_cache_config.num_blocks, enable_caching)
        self.coordinator = Coordinator(self.block_pool)

    def allocate_slots(self, request, num_new_tokens, new_computed_blocks=None):
        """A token needs a block."""
        blocks = self.coordinator.req_to_blocks.setdefault(request.request_id, [])
        if new_computed_blocks is not None:
            self.block_pool.touch(new_computed_blocks.blocks[0])
            blocks.extend(new_computed_blocks.blocks[0])
        new = self.block_pool.get_new_blocks(num_new_tokens)
        blocks.extend(new)
        self.block_pool.cache_full_blocks(request, new)
        return KVCacheBlocks(new)

    def remove_skipped_blocks(self, request_id, processed_computed_tokens):
        """Blocks outside of a window."""
        blocks = self.coordinator.req_to_blocks.get(request_id, [])
        self.block_pool.free_blocks(reversed(blocks[:processed_computed_tokens]))
        blocks[:processed_computed_tokens] = [self.block_pool.null_block] * processed_computed_tokens

    def pop_blocks_for_free(self, request):
        return self.coordinator.req_to_blocks.pop(request.request_id, [])

    def free(self, request):
        self.block_pool.free_blocks(reversed(self.coordinator.req_to_blocks.pop(request.request_id, [])))

    def reset_prefix_cache(self):
        return self.block_pool.reset_prefix_cache()
