"""A request, and the requests that are decoded together."""


class Req:
    def __init__(self, rid, origin_input_ids):
        self.rid, self.origin_input_ids, self.output_ids = rid, origin_input_ids, []


class ScheduleBatch:
    def __init__(self, reqs, tree_cache):
        self.reqs, self.tree_cache = reqs, tree_cache

    def prepare_for_decode(self):
        """A page of one token each."""
        for req in self.reqs:
            req.output_ids.append(0)
            req.kv = self.tree_cache.cat(req.kv, self.tree_cache.token_to_kv_pool_allocator.alloc(1))
