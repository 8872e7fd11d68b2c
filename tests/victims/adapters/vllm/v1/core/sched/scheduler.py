"""The scheduler frees the blocks of a request that has ended, unless a connector still sends them."""

from vllm.v1.core.kv_cache_manager import KVCacheManager


class Scheduler:
    def __init__(self, kv_cache_config, connector=None):
        self.kv_cache_manager = KVCacheManager(kv_cache_config)
        self.connector = connector

    def _free_request(self, request, delay_free_blocks=False):
        assert request.is_finished()
        if self.connector is not None:
            self.kv_cache_manager.remove_skipped_blocks(request_id=request.request_id, processed_computed_tokens=1)
            delay_free_blocks |= self.connector(request)
        if not delay_free_blocks:
            self._free_blocks(request)

    def _free_blocks(self, request):
        self.kv_cache_manager.free(request)
