"""The part of a scheduler that prefills for other servers."""


class SchedulerDisaggregationPrefillMixin:
    def __init__(self, tree_cache):
        self.tree_cache, self.disagg_prefill_inflight_queue = tree_cache, []

    def process_disagg_prefill_inflight_queue(self, rids_to_check=None):
        """Requests that were sent leave the queue, and the cache takes over their pages."""
        done = [req for req in self.disagg_prefill_inflight_queue if req.rid == rids_to_check]
        for req in done:
            self.tree_cache.cache_finished_req(req)
            self.disagg_prefill_inflight_queue.remove(req)
        return done
