"""The manager creates the pool for a configuration."""

from vllm.v1.core.block_pool import BlockPool


class KVCacheManager:
    def __init__(self, kv_cache_config, max_model_len=4096, enable_caching=True):
        self.block_pool = BlockPool(kv_cache_config.num_blocks, enable_caching)

    def allocate_slots(self, count):
        return self.block_pool.get_new_blocks(count)
